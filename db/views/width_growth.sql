CREATE VIEW analysis.width_growth AS
WITH point AS (  -- one of each run, step and kind of matrix: the mean over its layers, in logarithms
    SELECT
        suite_job.suite_id, run.id AS run_id, run.variant,
        job.parameters #>> '{optimizer,name}' AS optimizer,
        (job.parameters #>> '{optimizer,learning_rate}')::double precision AS learning_rate,
        (job.parameters #>> '{optimizer,weight_decay}')::double precision AS weight_decay,
        measured.step, measured.matrix,
        sqrt(measured.height::double precision * measured.width) AS matrix_width,
        avg(ln(measured.update_sigma)) FILTER (WHERE measured.update_sigma > 0 AND measured.update_sigma < 'Infinity')
            AS log_update,
        avg(ln(measured.weight_sigma)) FILTER (WHERE measured.weight_sigma > 0 AND measured.weight_sigma < 'Infinity')
            AS log_weight
    FROM keyhole.suite_job
    JOIN keyhole.run ON run.job_id = suite_job.job_id
    JOIN keyhole.job ON job.id = suite_job.job_id
    JOIN keyhole.training_matrix AS measured ON measured.run_id = run.id
    WHERE measured.layer IS NOT NULL
    GROUP BY suite_job.suite_id, run.id, job.id, measured.step, measured.matrix, measured.height, measured.width
), fitted AS (
    SELECT
        suite_id, variant, optimizer, learning_rate, weight_decay, step, matrix,
        count(DISTINCT run_id) AS runs, count(DISTINCT matrix_width) AS widths,
        min(matrix_width) AS smallest_width, max(matrix_width) AS largest_width,
        regr_slope(log_update, ln(matrix_width)) AS update_exponent,
        regr_count(log_update, ln(matrix_width)) AS n_update,
        regr_syy(log_update, ln(matrix_width)) AS syy_update,
        regr_sxy(log_update, ln(matrix_width)) AS sxy_update,
        regr_sxx(log_update, ln(matrix_width)) AS sxx_update,
        regr_slope(log_weight, ln(matrix_width)) AS weight_exponent,
        regr_count(log_weight, ln(matrix_width)) AS n_weight,
        regr_syy(log_weight, ln(matrix_width)) AS syy_weight,
        regr_sxy(log_weight, ln(matrix_width)) AS sxy_weight,
        regr_sxx(log_weight, ln(matrix_width)) AS sxx_weight
    FROM point
    GROUP BY suite_id, variant, optimizer, learning_rate, weight_decay, step, matrix
    HAVING count(DISTINCT matrix_width) > 1
)
SELECT
    suite_id, variant, optimizer, learning_rate, weight_decay, step, matrix, runs, widths, smallest_width, largest_width,
    update_exponent,
    -- of a slope: what the line leaves over, by its degrees of freedom and the spread of the widths
    sqrt(greatest(0, syy_update - update_exponent * sxy_update) / nullif(greatest(0, n_update - 2), 0) / sxx_update)
        AS update_exponent_se,
    weight_exponent,
    sqrt(greatest(0, syy_weight - weight_exponent * sxy_weight) / nullif(greatest(0, n_weight - 2), 0) / sxx_weight)
        AS weight_exponent_se
FROM fitted;

COMMENT ON VIEW analysis.width_growth IS 'Spectral norms against width, σ ~ width^exponent: a line through logarithms, over the runs of a suite that differ in width and seed.';
COMMENT ON COLUMN analysis.width_growth.suite_id IS 'the suite';
COMMENT ON COLUMN analysis.width_growth.variant IS 'names of the runs'' variants joined by +, or control';
COMMENT ON COLUMN analysis.width_growth.optimizer IS 'adamw, sgd or muon';
COMMENT ON COLUMN analysis.width_growth.learning_rate IS 'at the top of the schedule';
COMMENT ON COLUMN analysis.width_growth.weight_decay IS 'decoupled weight decay, which is part of an update';
COMMENT ON COLUMN analysis.width_growth.step IS 'optimizer steps taken';
COMMENT ON COLUMN analysis.width_growth.matrix IS 'name of the matrix within its layer; the mean over layers is taken, of logarithms';
COMMENT ON COLUMN analysis.width_growth.runs IS 'runs, each one point';
COMMENT ON COLUMN analysis.width_growth.widths IS 'widths among them';
COMMENT ON COLUMN analysis.width_growth.smallest_width IS 'smallest width of the matrix, √(outputs · inputs)';
COMMENT ON COLUMN analysis.width_growth.largest_width IS 'largest width of the matrix';
COMMENT ON COLUMN analysis.width_growth.update_exponent IS 'slope of ln update_sigma on ln width: 1/2 for noise of one size in every entry, 1 for one common direction; NULL at step 0';
COMMENT ON COLUMN analysis.width_growth.update_exponent_se IS 'standard error of that slope; NULL with less than three runs';
COMMENT ON COLUMN analysis.width_growth.weight_exponent IS 'slope of ln weight_sigma on ln width; about 1/2 at step 0, where weights are noise';
COMMENT ON COLUMN analysis.width_growth.weight_exponent_se IS 'standard error of that slope; NULL with less than three runs';
