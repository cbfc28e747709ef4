CREATE VIEW analysis.run AS
SELECT
    run.id,
    run.name,
    run.origin,
    run.job_id,
    CASE WHEN run.origin = 'imported' THEN 'imported' ELSE job.state END AS state,
    job.phase,
    run.variant,
    run.seed,
    run.steps,
    run.steps_done,
    coalesce(job.model_source, run.source) AS model,
    job.dataset_source AS dataset,
    job.parameters #>> '{optimizer,name}' AS optimizer,
    (job.parameters #>> '{optimizer,learning_rate}')::double precision AS learning_rate,
    (job.parameters #>> '{optimizer,weight_decay}')::double precision AS weight_decay,
    (job.parameters ->> 'sequences_per_step')::integer AS sequences_per_step,
    (job.parameters ->> 'length')::integer AS length,
    last.step AS last_validation_step,
    last.value AS last_validation_loss_nats,
    best.step AS best_validation_step,
    best.value AS best_validation_loss_nats,
    bits.value AS last_validation_bits_per_byte,
    job.parameters,
    run.pinned,
    api_token.name AS submitted_by,
    run.created_at,
    job.started_at,
    job.finished_at,
    extract(epoch FROM coalesce(job.finished_at, now()) - job.started_at)::double precision AS duration_s,
    job.error_code,
    job.error_message
FROM keyhole.run
LEFT JOIN keyhole.job ON job.id = run.job_id
LEFT JOIN keyhole.api_token ON api_token.id = run.submitted_by
LEFT JOIN LATERAL (
    SELECT step, value FROM keyhole.training_metric
    WHERE run_id = run.id AND metric = 'validation_loss_nats' AND layer IS NULL AND head IS NULL
    ORDER BY step DESC LIMIT 1
) AS last ON true
LEFT JOIN LATERAL (
    SELECT step, value FROM keyhole.training_metric
    WHERE run_id = run.id AND metric = 'validation_loss_nats' AND layer IS NULL AND head IS NULL
    ORDER BY value, step LIMIT 1
) AS best ON true
LEFT JOIN LATERAL (
    SELECT value FROM keyhole.training_metric
    WHERE run_id = run.id AND metric = 'validation_bits_per_byte' AND layer IS NULL AND head IS NULL
    ORDER BY step DESC LIMIT 1
) AS bits ON true;

COMMENT ON VIEW analysis.run IS 'Training runs, and series of models that were imported as runs.';
COMMENT ON COLUMN analysis.run.id IS 'number of the run; run_id everywhere else. Its models are run:ID@STEP';
COMMENT ON COLUMN analysis.run.name IS 'label of its job, or the name given at its import';
COMMENT ON COLUMN analysis.run.origin IS 'trained or imported';
COMMENT ON COLUMN analysis.run.job_id IS 'the training job; NULL for imported runs';
COMMENT ON COLUMN analysis.run.state IS 'state of its job, or imported';
COMMENT ON COLUMN analysis.run.phase IS 'what its job is doing';
COMMENT ON COLUMN analysis.run.variant IS 'names of its variants joined by +, or control; NULL for imported runs';
COMMENT ON COLUMN analysis.run.seed IS 'seed of weights and data order';
COMMENT ON COLUMN analysis.run.steps IS 'optimizer steps that it is to take';
COMMENT ON COLUMN analysis.run.steps_done IS 'steps taken so far';
COMMENT ON COLUMN analysis.run.model IS 'what it started from: config:NAME, or a pretrained model; of imported runs their series';
COMMENT ON COLUMN analysis.run.dataset IS 'source of the data set';
COMMENT ON COLUMN analysis.run.optimizer IS 'adamw, sgd or muon';
COMMENT ON COLUMN analysis.run.learning_rate IS 'at the top of the schedule';
COMMENT ON COLUMN analysis.run.weight_decay IS 'decoupled weight decay of matrices';
COMMENT ON COLUMN analysis.run.sequences_per_step IS 'sequences in one step';
COMMENT ON COLUMN analysis.run.length IS 'tokens per sequence';
COMMENT ON COLUMN analysis.run.last_validation_step IS 'step of the latest validation';
COMMENT ON COLUMN analysis.run.last_validation_loss_nats IS 'mean loss on held-out tokens there';
COMMENT ON COLUMN analysis.run.best_validation_step IS 'step of the lowest validation loss';
COMMENT ON COLUMN analysis.run.best_validation_loss_nats IS 'lowest validation loss so far';
COMMENT ON COLUMN analysis.run.last_validation_bits_per_byte IS 'the latest validation loss in bits per byte of text; NULL for token files';
COMMENT ON COLUMN analysis.run.parameters IS 'all parameters of the training job';
COMMENT ON COLUMN analysis.run.pinned IS 'identity of the validation data set and tokenizer that parameters name, by parameter';
COMMENT ON COLUMN analysis.run.submitted_by IS 'name of the API token that submitted it';
COMMENT ON COLUMN analysis.run.created_at IS 'time of submission';
COMMENT ON COLUMN analysis.run.started_at IS 'time of the first attempt since submission or the last retry';
COMMENT ON COLUMN analysis.run.finished_at IS 'time its job ended';
COMMENT ON COLUMN analysis.run.duration_s IS 'seconds from start to finish, or until now';
COMMENT ON COLUMN analysis.run.error_code IS 'code of the error that failed it';
COMMENT ON COLUMN analysis.run.error_message IS 'what went wrong';
