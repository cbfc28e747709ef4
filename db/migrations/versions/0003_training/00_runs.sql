-- Training runs and what is measured of them by step.

CREATE TABLE keyhole.run (
    id            integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name          text NOT NULL,
    origin        text NOT NULL CHECK (origin IN ('trained', 'imported')),
    job_id        integer UNIQUE REFERENCES keyhole.job ON DELETE CASCADE,
    source        text,
    variant       text,
    seed          integer,
    steps         integer,
    steps_done    integer NOT NULL DEFAULT 0,
    pinned        jsonb NOT NULL DEFAULT '{}',
    submitted_by  integer REFERENCES keyhole.api_token,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK ((origin = 'trained') = (job_id IS NOT NULL)),
    CHECK ((origin = 'imported') = (source IS NOT NULL))
);
COMMENT ON TABLE keyhole.run IS 'One trajectory of a model: trained by a job, or a series of models that was imported.';
COMMENT ON COLUMN keyhole.run.id IS 'number of the run';
COMMENT ON COLUMN keyhole.run.name IS 'label of its job, or the name given at its import';
COMMENT ON COLUMN keyhole.run.origin IS 'trained or imported';
COMMENT ON COLUMN keyhole.run.job_id IS 'the training job; null for imported runs';
COMMENT ON COLUMN keyhole.run.source IS 'the series of models of an imported run';
COMMENT ON COLUMN keyhole.run.variant IS 'names of its variants joined by +, or control; null for imported runs';
COMMENT ON COLUMN keyhole.run.seed IS 'seed of weights and data order; null for imported runs';
COMMENT ON COLUMN keyhole.run.steps IS 'steps that it is to take; null for imported runs';
COMMENT ON COLUMN keyhole.run.steps_done IS 'steps taken so far, as last told';
COMMENT ON COLUMN keyhole.run.pinned IS 'identity of the validation data set and tokenizer that parameters name, by parameter';
COMMENT ON COLUMN keyhole.run.submitted_by IS 'the token that submitted it';
COMMENT ON COLUMN keyhole.run.created_at IS 'time of submission';

-- Numbers by step, in long form. A step that is computed again after a loss replaces its rows.
CREATE TABLE keyhole.training_metric (
    run_id  integer NOT NULL REFERENCES keyhole.run ON DELETE CASCADE,
    step    integer NOT NULL,
    metric  text NOT NULL,
    layer   smallint,
    head    smallint,
    value   double precision NOT NULL,
    UNIQUE NULLS NOT DISTINCT (run_id, metric, layer, head, step)
);
COMMENT ON TABLE keyhole.training_metric IS 'Numbers of a run by step: losses, learning rate, speed, attention, solver.';
COMMENT ON COLUMN keyhole.training_metric.run_id IS 'the run';
COMMENT ON COLUMN keyhole.training_metric.step IS 'optimizer steps taken when it was measured';
COMMENT ON COLUMN keyhole.training_metric.metric IS 'name of the number, with its unit';
COMMENT ON COLUMN keyhole.training_metric.layer IS 'layer, 0-based; null where the number is the model''s';
COMMENT ON COLUMN keyhole.training_metric.head IS 'query head, 0-based; null where the number is the layer''s or model''s';
COMMENT ON COLUMN keyhole.training_metric.value IS 'the number';

-- Spectral norms of each matrix and of its last update.
CREATE TABLE keyhole.training_matrix (
    run_id        integer NOT NULL REFERENCES keyhole.run ON DELETE CASCADE,
    step          integer NOT NULL,
    layer         smallint,
    matrix        text NOT NULL,
    height        integer NOT NULL,
    width         integer NOT NULL,
    weight_sigma  double precision NOT NULL,
    update_sigma  double precision,
    UNIQUE NULLS NOT DISTINCT (run_id, layer, matrix, step)
);
COMMENT ON TABLE keyhole.training_matrix IS 'Spectral norms of a run''s weight matrices and of their updates, by step.';
COMMENT ON COLUMN keyhole.training_matrix.run_id IS 'the run';
COMMENT ON COLUMN keyhole.training_matrix.step IS 'optimizer steps taken when it was measured';
COMMENT ON COLUMN keyhole.training_matrix.layer IS 'layer, 0-based; null for matrices outside of layers';
COMMENT ON COLUMN keyhole.training_matrix.matrix IS 'name of the matrix within its layer, such as q, k, v, o, mlp.c_fc';
COMMENT ON COLUMN keyhole.training_matrix.height IS 'outputs of the matrix';
COMMENT ON COLUMN keyhole.training_matrix.width IS 'inputs of the matrix';
COMMENT ON COLUMN keyhole.training_matrix.weight_sigma IS 'largest singular value of the weight';
COMMENT ON COLUMN keyhole.training_matrix.update_sigma IS 'largest singular value of the change by the last step, learning rate included; null at step 0';

-- One attempt at a time trains a run: its shards are the segments of one trajectory, in their order.
CREATE OR REPLACE VIEW keyhole.open_work AS
SELECT job.id, job.queue, job.priority, live.attempts
FROM keyhole.job
CROSS JOIN LATERAL (
    SELECT count(*) AS attempts,
           count(*) FILTER (WHERE NOT EXISTS (
               SELECT FROM keyhole.shard
               WHERE shard.job_id = job.id AND shard.state = 'running' AND shard.attempt_id = attempt.id
           )) AS without_shard
    FROM keyhole.attempt WHERE attempt.job_id = job.id AND attempt.ended_at IS NULL
) AS live
WHERE job.state IN ('queued', 'running')
  AND (job.queue <> 'training' OR live.attempts = 0)
  AND ((SELECT count(*) FROM keyhole.shard WHERE shard.job_id = job.id AND shard.state = 'queued') > live.without_shard
       OR (job.shards_done = job.shards AND live.attempts = 0));
