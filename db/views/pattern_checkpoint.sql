CREATE VIEW analysis.pattern_checkpoint AS
SELECT
    job.id AS job_id,
    0 AS number,
    job.parameters ->> 'run' AS run,
    (job.parameters ->> 'step')::bigint AS step,
    job.model_source AS model
FROM keyhole.job
WHERE job.kind = 'pattern_stability'
UNION ALL
SELECT
    job.id,
    listed.number::integer,
    listed.checkpoint ->> 'run',
    (listed.checkpoint ->> 'step')::bigint,
    coalesce(job_model.source, listed.checkpoint ->> 'model')
FROM keyhole.job
CROSS JOIN LATERAL jsonb_array_elements(job.parameters -> 'checkpoints') WITH ORDINALITY AS listed (checkpoint, number)
LEFT JOIN keyhole.job_model ON job_model.job_id = job.id AND job_model.number = listed.number - 1
WHERE job.kind = 'pattern_stability';

COMMENT ON VIEW analysis.pattern_checkpoint IS 'Checkpoints that jobs of the kind pattern_stability compare, by the numbers that pattern_distance has.';
COMMENT ON COLUMN analysis.pattern_checkpoint.job_id IS 'the job';
COMMENT ON COLUMN analysis.pattern_checkpoint.number IS 'number of the checkpoint: 0 is the job''s own model, the others follow as they were listed';
COMMENT ON COLUMN analysis.pattern_checkpoint.run IS 'training run it is of, as named at submission';
COMMENT ON COLUMN analysis.pattern_checkpoint.step IS 'training step it was taken at, as given at submission';
COMMENT ON COLUMN analysis.pattern_checkpoint.model IS 'source of the model';
