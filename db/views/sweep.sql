CREATE VIEW analysis.sweep AS
SELECT sweep.id, sweep.suite_id, suite.name, sweep.model, sweep.dataset, sweep.body -> 'axes' AS axes,
       sweep.body -> 'parameters' AS parameters, api_token.name AS submitted_by, suite.created_at
FROM keyhole.sweep
JOIN keyhole.suite ON suite.id = sweep.suite_id
LEFT JOIN keyhole.api_token ON api_token.id = suite.submitted_by;

COMMENT ON VIEW analysis.sweep IS 'Sweeps: one training in several settings, with several variants and seeds.';
COMMENT ON COLUMN analysis.sweep.id IS 'number of the sweep; sweep_id everywhere else';
COMMENT ON COLUMN analysis.sweep.suite_id IS 'the suite whose first stage its jobs are';
COMMENT ON COLUMN analysis.sweep.name IS 'name given at submission, else that of the preset or the axes';
COMMENT ON COLUMN analysis.sweep.model IS 'source of the model that all members start from';
COMMENT ON COLUMN analysis.sweep.dataset IS 'source of the data set';
COMMENT ON COLUMN analysis.sweep.axes IS 'values, or ranges, by parameter';
COMMENT ON COLUMN analysis.sweep.parameters IS 'parameters that all members share';
COMMENT ON COLUMN analysis.sweep.submitted_by IS 'name of the API token that submitted it';
COMMENT ON COLUMN analysis.sweep.created_at IS 'time of submission';

CREATE VIEW analysis.sweep_member AS
SELECT
    sweep_member.sweep_id,
    sweep_member.number,
    sweep_member.job_id,
    run.id AS run_id,
    sweep_member.variant,
    sweep_member.setting,
    sweep_member.seed,
    coalesce(job.state, 'deleted') AS state,
    CASE WHEN job.state IN ('cancelling', 'cancelled') THEN sweep_member.stopped END AS stopped,
    job.error_code,
    run.steps,
    run.steps_done,
    final.value AS final_validation_loss_nats,
    best.value AS best_validation_loss_nats,
    best.step AS best_step
FROM keyhole.sweep_member
LEFT JOIN keyhole.job ON job.id = sweep_member.job_id
LEFT JOIN keyhole.run ON run.job_id = sweep_member.job_id
LEFT JOIN LATERAL (
    SELECT value FROM keyhole.training_metric
    WHERE run_id = run.id AND metric = 'validation_loss_nats' AND layer IS NULL AND head IS NULL
      AND step = run.steps AND job.state = 'succeeded'
) AS final ON true
LEFT JOIN LATERAL (
    SELECT step, value FROM keyhole.training_metric
    WHERE run_id = run.id AND metric = 'validation_loss_nats' AND layer IS NULL AND head IS NULL
    ORDER BY value, step LIMIT 1
) AS best ON true;

COMMENT ON VIEW analysis.sweep_member IS 'Training runs of sweeps, with their validation losses.';
COMMENT ON COLUMN analysis.sweep_member.sweep_id IS 'the sweep';
COMMENT ON COLUMN analysis.sweep_member.number IS 'place in the sweep, 0-based: by seed, then setting, then variant';
COMMENT ON COLUMN analysis.sweep_member.job_id IS 'the training job; NULL if it was deleted';
COMMENT ON COLUMN analysis.sweep_member.run_id IS 'its run; NULL if the job was deleted';
COMMENT ON COLUMN analysis.sweep_member.variant IS 'names of its variants joined by +, or control';
COMMENT ON COLUMN analysis.sweep_member.setting IS 'values on the axes, by parameter';
COMMENT ON COLUMN analysis.sweep_member.seed IS 'seed of weights and data order';
COMMENT ON COLUMN analysis.sweep_member.state IS 'state of the job, or deleted';
COMMENT ON COLUMN analysis.sweep_member.stopped IS 'why its setting was given up early; NULL if it was not';
COMMENT ON COLUMN analysis.sweep_member.error_code IS 'code of the error that failed it, such as diverged';
COMMENT ON COLUMN analysis.sweep_member.steps IS 'steps that it is to take; NULL if the job was deleted';
COMMENT ON COLUMN analysis.sweep_member.steps_done IS 'steps taken so far; NULL if the job was deleted';
COMMENT ON COLUMN analysis.sweep_member.final_validation_loss_nats IS 'mean loss on the held-out tokens at the last step; NULL unless it has succeeded';
COMMENT ON COLUMN analysis.sweep_member.best_validation_loss_nats IS 'the least such loss at any step so far';
COMMENT ON COLUMN analysis.sweep_member.best_step IS 'the step of that';
