-- What is submitted by itself: later stages of suites, members of sweeps, probes of new checkpoints, alerts.

ALTER TABLE keyhole.suite_job ADD COLUMN stage smallint NOT NULL DEFAULT 0;
COMMENT ON COLUMN keyhole.suite_job.stage IS 'the stage it was submitted in, 0-based';

CREATE TABLE keyhole.suite_stage (
    suite_id      integer NOT NULL REFERENCES keyhole.suite ON DELETE CASCADE,
    number        smallint NOT NULL CHECK (number > 0),
    body          jsonb NOT NULL,
    state         text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'submitted', 'skipped')),
    detail        text,
    submitted_at  timestamptz,
    PRIMARY KEY (suite_id, number)
);
COMMENT ON TABLE keyhole.suite_stage IS 'Jobs of a suite that are submitted once those of the stage before have succeeded.';
COMMENT ON COLUMN keyhole.suite_stage.suite_id IS 'the suite';
COMMENT ON COLUMN keyhole.suite_stage.number IS 'place after the first stage, which is 0 and submitted at once';
COMMENT ON COLUMN keyhole.suite_stage.body IS 'models, dataset and probes of the stage';
COMMENT ON COLUMN keyhole.suite_stage.state IS 'waiting, submitted or skipped';
COMMENT ON COLUMN keyhole.suite_stage.detail IS 'why it was skipped';
COMMENT ON COLUMN keyhole.suite_stage.submitted_at IS 'when its jobs were submitted';

CREATE TABLE keyhole.sweep (
    id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    suite_id    integer NOT NULL UNIQUE REFERENCES keyhole.suite ON DELETE CASCADE,
    body        jsonb NOT NULL
);
COMMENT ON TABLE keyhole.sweep IS 'A suite of training jobs over a grid, or a random choice, of settings.';
COMMENT ON COLUMN keyhole.sweep.id IS 'number of the sweep';
COMMENT ON COLUMN keyhole.sweep.suite_id IS 'its jobs';
COMMENT ON COLUMN keyhole.sweep.body IS 'as submitted: axes, what all members share, when hopeless ones stop';

CREATE TABLE keyhole.sweep_member (
    sweep_id    integer NOT NULL REFERENCES keyhole.sweep ON DELETE CASCADE,
    job_id      integer NOT NULL REFERENCES keyhole.job ON DELETE CASCADE,
    variant     text NOT NULL,
    setting     jsonb NOT NULL,
    seed        integer NOT NULL,
    stopped     text,
    PRIMARY KEY (sweep_id, job_id)
);
CREATE INDEX sweep_member_job ON keyhole.sweep_member (job_id);
COMMENT ON TABLE keyhole.sweep_member IS 'Runs of a sweep.';
COMMENT ON COLUMN keyhole.sweep_member.sweep_id IS 'the sweep';
COMMENT ON COLUMN keyhole.sweep_member.job_id IS 'the training job';
COMMENT ON COLUMN keyhole.sweep_member.variant IS 'names of its variants joined by +, or control';
COMMENT ON COLUMN keyhole.sweep_member.setting IS 'values on the other axes, such as optimizer.learning_rate';
COMMENT ON COLUMN keyhole.sweep_member.seed IS 'its seed';
COMMENT ON COLUMN keyhole.sweep_member.stopped IS 'why it was cancelled early; null if it was not';

CREATE TABLE keyhole.watch (
    id            integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name          text NOT NULL,
    target        text NOT NULL,
    body          jsonb NOT NULL,
    active        boolean NOT NULL DEFAULT true,
    submitted_by  integer REFERENCES keyhole.api_token,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    looked_at     timestamptz,
    problem       text
);
COMMENT ON TABLE keyhole.watch IS 'Probes submitted by themselves for every new checkpoint of a target, and rules on what comes back.';
COMMENT ON COLUMN keyhole.watch.id IS 'number of the watch';
COMMENT ON COLUMN keyhole.watch.name IS 'its name';
COMMENT ON COLUMN keyhole.watch.target IS 'run:ID, path:DIR/* or hf:ORG/NAME@PATTERN';
COMMENT ON COLUMN keyhole.watch.body IS 'as submitted: probes, dataset, rules, webhook';
COMMENT ON COLUMN keyhole.watch.active IS 'whether it still looks';
COMMENT ON COLUMN keyhole.watch.submitted_by IS 'the token that submitted it';
COMMENT ON COLUMN keyhole.watch.created_at IS 'time of submission';
COMMENT ON COLUMN keyhole.watch.looked_at IS 'when it last looked';
COMMENT ON COLUMN keyhole.watch.problem IS 'what kept it from looking the last time; null if nothing did';

CREATE TABLE keyhole.watch_model (
    watch_id   integer NOT NULL REFERENCES keyhole.watch ON DELETE CASCADE,
    source     text NOT NULL,
    step       bigint,
    suite_id   integer REFERENCES keyhole.suite ON DELETE SET NULL,
    judged     boolean NOT NULL DEFAULT false,
    seen_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (watch_id, source)
);
COMMENT ON TABLE keyhole.watch_model IS 'Checkpoints that a watch has seen.';
COMMENT ON COLUMN keyhole.watch_model.watch_id IS 'the watch';
COMMENT ON COLUMN keyhole.watch_model.source IS 'source of the checkpoint';
COMMENT ON COLUMN keyhole.watch_model.step IS 'its step, if known';
COMMENT ON COLUMN keyhole.watch_model.suite_id IS 'the probes submitted for it; null if the watch has none';
COMMENT ON COLUMN keyhole.watch_model.judged IS 'whether its rules have been applied to what the probes brought';
COMMENT ON COLUMN keyhole.watch_model.seen_at IS 'when it was first seen';

CREATE TABLE keyhole.alert (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    watch_id        integer NOT NULL REFERENCES keyhole.watch ON DELETE CASCADE,
    rule            integer NOT NULL,
    run_id          integer REFERENCES keyhole.run ON DELETE CASCADE,
    job_id          integer REFERENCES keyhole.job ON DELETE SET NULL,
    source          text,
    step            bigint,
    metric          text NOT NULL,
    layer           smallint,
    head            smallint,
    value           double precision NOT NULL,
    threshold       double precision NOT NULL,
    message         text NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    delivered_at    timestamptz,
    delivery_problem text,
    deliveries      smallint NOT NULL DEFAULT 0,
    acknowledged_at timestamptz,
    UNIQUE NULLS NOT DISTINCT (watch_id, rule, source, step, layer, head)
);
COMMENT ON TABLE keyhole.alert IS 'Rules of watches that were met.';
COMMENT ON COLUMN keyhole.alert.id IS 'number of the alert';
COMMENT ON COLUMN keyhole.alert.watch_id IS 'the watch';
COMMENT ON COLUMN keyhole.alert.rule IS 'place of the rule in the watch, 0-based';
COMMENT ON COLUMN keyhole.alert.run_id IS 'the run, if the target is one';
COMMENT ON COLUMN keyhole.alert.job_id IS 'the job whose result met the rule; null for metrics of training';
COMMENT ON COLUMN keyhole.alert.source IS 'the checkpoint; null for metrics of training';
COMMENT ON COLUMN keyhole.alert.step IS 'step of the run';
COMMENT ON COLUMN keyhole.alert.metric IS 'the number that met the rule';
COMMENT ON COLUMN keyhole.alert.layer IS 'layer, 0-based; null for the model';
COMMENT ON COLUMN keyhole.alert.head IS 'head, 0-based; null for the layer or model';
COMMENT ON COLUMN keyhole.alert.value IS 'its value';
COMMENT ON COLUMN keyhole.alert.threshold IS 'what the rule says';
COMMENT ON COLUMN keyhole.alert.message IS 'in words';
COMMENT ON COLUMN keyhole.alert.created_at IS 'when it was raised';
COMMENT ON COLUMN keyhole.alert.delivered_at IS 'when the webhook took it; null if it did not, or there is none';
COMMENT ON COLUMN keyhole.alert.delivery_problem IS 'what the last delivery met';
COMMENT ON COLUMN keyhole.alert.deliveries IS 'how often delivery was tried';
COMMENT ON COLUMN keyhole.alert.acknowledged_at IS 'when someone said that it was seen';
