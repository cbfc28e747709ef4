-- Jobs that read more models than one: a teacher, other checkpoints. The first model is in the job itself.
CREATE TABLE keyhole.job_model (
    job_id    integer NOT NULL REFERENCES keyhole.job ON DELETE CASCADE,
    number    integer NOT NULL,
    source    text NOT NULL,
    identity  text NOT NULL,
    model_id  integer REFERENCES keyhole.model,
    PRIMARY KEY (job_id, number)
);
COMMENT ON TABLE keyhole.job_model IS 'Models a job reads besides its first.';
COMMENT ON COLUMN keyhole.job_model.job_id IS 'the job';
COMMENT ON COLUMN keyhole.job_model.number IS 'place in the parameters, 0-based';
COMMENT ON COLUMN keyhole.job_model.source IS 'source of the model, resolved';
COMMENT ON COLUMN keyhole.job_model.identity IS 'digest of its files';
COMMENT ON COLUMN keyhole.job_model.model_id IS 'the model, once a worker has loaded it';

-- Suites: several jobs submitted together. A job that stood already can be part of a suite too.
CREATE TABLE keyhole.suite (
    id            integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name          text NOT NULL,
    submitted_by  integer REFERENCES keyhole.api_token,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE keyhole.suite IS 'Jobs that were submitted together.';
COMMENT ON COLUMN keyhole.suite.id IS 'number of the suite';
COMMENT ON COLUMN keyhole.suite.name IS 'name of the preset, or the name given at submission';
COMMENT ON COLUMN keyhole.suite.submitted_by IS 'the token that submitted it';
COMMENT ON COLUMN keyhole.suite.created_at IS 'time of submission';

CREATE TABLE keyhole.suite_job (
    suite_id  integer NOT NULL REFERENCES keyhole.suite ON DELETE CASCADE,
    position  integer NOT NULL,
    job_id    integer NOT NULL REFERENCES keyhole.job ON DELETE CASCADE,
    reused    boolean NOT NULL,
    PRIMARY KEY (suite_id, position)
);
CREATE INDEX suite_job_job ON keyhole.suite_job (job_id);
COMMENT ON TABLE keyhole.suite_job IS 'Which jobs a suite is made of.';
COMMENT ON COLUMN keyhole.suite_job.suite_id IS 'the suite';
COMMENT ON COLUMN keyhole.suite_job.position IS 'place in the suite, 0-based';
COMMENT ON COLUMN keyhole.suite_job.job_id IS 'the job';
COMMENT ON COLUMN keyhole.suite_job.reused IS 'whether the job stood already when the suite was submitted';

-- Passes that several jobs can share: same model, tokens, batch and arithmetic, and one loss.
ALTER TABLE keyhole.job ADD COLUMN pass_key text, ADD COLUMN pass_credit text;
CREATE INDEX job_pass ON keyhole.job (pass_key, id) WHERE state IN ('queued', 'running');
COMMENT ON COLUMN keyhole.job.pass_key IS 'jobs with equal keys can be measured in the same passes; null if it runs its own';
COMMENT ON COLUMN keyhole.job.pass_credit IS 'the loss of its backward pass; null if it needs none';

-- An attempt that rides along is made by the child of another one, its leader, which also renews its lease.
ALTER TABLE keyhole.attempt ADD COLUMN leader_id bigint REFERENCES keyhole.attempt ON DELETE SET NULL;
CREATE INDEX attempt_riders ON keyhole.attempt (leader_id) WHERE ended_at IS NULL AND leader_id IS NOT NULL;
COMMENT ON COLUMN keyhole.attempt.leader_id IS 'the attempt in whose child this one rides along; null if it has its own';
