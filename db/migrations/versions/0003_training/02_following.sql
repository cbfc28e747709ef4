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
CREATE INDEX suite_stage_waiting ON keyhole.suite_stage (suite_id, number) WHERE state = 'waiting';
COMMENT ON TABLE keyhole.suite_stage IS 'Later stages of suites: jobs that are submitted once those before have ended.';
COMMENT ON COLUMN keyhole.suite_stage.suite_id IS 'the suite';
COMMENT ON COLUMN keyhole.suite_stage.number IS 'place after the first stage, which is 0 and submitted at once';
COMMENT ON COLUMN keyhole.suite_stage.body IS 'models, dataset and probes of the stage';
COMMENT ON COLUMN keyhole.suite_stage.state IS 'waiting, submitted or skipped';
COMMENT ON COLUMN keyhole.suite_stage.detail IS 'why it was skipped, or what keeps it waiting though its turn has come';
COMMENT ON COLUMN keyhole.suite_stage.submitted_at IS 'when its jobs were submitted';

CREATE TABLE keyhole.sweep (
    id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    suite_id    integer NOT NULL UNIQUE REFERENCES keyhole.suite ON DELETE CASCADE,
    model       text NOT NULL,
    dataset     text NOT NULL,
    body        jsonb NOT NULL
);
COMMENT ON TABLE keyhole.sweep IS 'A suite of training jobs over a grid, or a random choice, of settings.';
COMMENT ON COLUMN keyhole.sweep.id IS 'number of the sweep';
COMMENT ON COLUMN keyhole.sweep.suite_id IS 'its jobs';
COMMENT ON COLUMN keyhole.sweep.model IS 'source of the model that all members start from, as submitted';
COMMENT ON COLUMN keyhole.sweep.dataset IS 'source of the data set, as submitted';
COMMENT ON COLUMN keyhole.sweep.body IS 'as submitted: axes, what all members share, when hopeless ones stop';

CREATE TABLE keyhole.sweep_request (
    token_id     integer NOT NULL REFERENCES keyhole.api_token,
    key          text NOT NULL,
    body_sha256  bytea NOT NULL,
    sweep_id     integer NOT NULL REFERENCES keyhole.sweep ON DELETE CASCADE,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (token_id, key)
);
COMMENT ON TABLE keyhole.sweep_request IS 'Idempotency keys of submissions of sweeps.';
COMMENT ON COLUMN keyhole.sweep_request.token_id IS 'token that sent the request';
COMMENT ON COLUMN keyhole.sweep_request.key IS 'its Idempotency-Key';
COMMENT ON COLUMN keyhole.sweep_request.body_sha256 IS 'SHA-256 of the request''s body';
COMMENT ON COLUMN keyhole.sweep_request.sweep_id IS 'sweep that the request made';
COMMENT ON COLUMN keyhole.sweep_request.created_at IS 'time of the request';

CREATE TABLE keyhole.sweep_member (
    sweep_id    integer NOT NULL REFERENCES keyhole.sweep ON DELETE CASCADE,
    number      integer NOT NULL,
    job_id      integer REFERENCES keyhole.job ON DELETE SET NULL,
    variant     text NOT NULL,
    setting     jsonb NOT NULL,
    seed        integer NOT NULL,
    stopped     text,
    PRIMARY KEY (sweep_id, number),
    UNIQUE (sweep_id, job_id)
);
CREATE INDEX sweep_member_job ON keyhole.sweep_member (job_id);
COMMENT ON TABLE keyhole.sweep_member IS 'Runs of a sweep. A member stays when its job is deleted, so that its setting is known to lack a seed.';
COMMENT ON COLUMN keyhole.sweep_member.sweep_id IS 'the sweep';
COMMENT ON COLUMN keyhole.sweep_member.number IS 'place in the sweep, 0-based: by seed, then setting, then variant';
COMMENT ON COLUMN keyhole.sweep_member.job_id IS 'the training job; null if it was deleted';
COMMENT ON COLUMN keyhole.sweep_member.variant IS 'names of its variants joined by +, with options where names alone would not tell; or control';
COMMENT ON COLUMN keyhole.sweep_member.setting IS 'values on the other axes, such as optimizer.learning_rate';
COMMENT ON COLUMN keyhole.sweep_member.seed IS 'its seed';
COMMENT ON COLUMN keyhole.sweep_member.stopped IS 'why its setting was given up and it was cancelled; null if it was not';

CREATE TABLE keyhole.watch (
    id            integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name          text NOT NULL,
    target        text NOT NULL,
    body          jsonb NOT NULL,
    active        boolean NOT NULL DEFAULT true,
    ended         text,
    submitted_by  integer REFERENCES keyhole.api_token,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    looked_at     timestamptz,
    problem       text,
    CHECK (active = (ended IS NULL))
);
CREATE INDEX watch_active ON keyhole.watch (id) WHERE active;
COMMENT ON TABLE keyhole.watch IS 'Probes submitted by themselves for every new checkpoint of a target, and rules on what comes back.';
COMMENT ON COLUMN keyhole.watch.id IS 'number of the watch';
COMMENT ON COLUMN keyhole.watch.name IS 'its name';
COMMENT ON COLUMN keyhole.watch.target IS 'run:ID, suite:ID, sweep:ID, path:DIR/* or hf:ORG/NAME@PATTERN';
COMMENT ON COLUMN keyhole.watch.body IS 'as submitted: probes, dataset, rules, webhook';
COMMENT ON COLUMN keyhole.watch.active IS 'whether it still looks';
COMMENT ON COLUMN keyhole.watch.ended IS 'why it no longer looks; null while it does';
COMMENT ON COLUMN keyhole.watch.submitted_by IS 'the token that submitted it';
COMMENT ON COLUMN keyhole.watch.created_at IS 'time of submission';
COMMENT ON COLUMN keyhole.watch.looked_at IS 'when it last looked; of runs within some seconds';
COMMENT ON COLUMN keyhole.watch.problem IS 'what kept it from looking the last time; null if nothing did';

CREATE TABLE keyhole.watch_run (
    watch_id  integer NOT NULL REFERENCES keyhole.watch ON DELETE CASCADE,
    run_id    integer NOT NULL REFERENCES keyhole.run ON DELETE CASCADE,
    PRIMARY KEY (watch_id, run_id)
);
CREATE INDEX watch_run_run ON keyhole.watch_run (run_id);
COMMENT ON TABLE keyhole.watch_run IS 'Runs that a watch looks at; those of a suite or sweep join as they are made.';
COMMENT ON COLUMN keyhole.watch_run.watch_id IS 'the watch';
COMMENT ON COLUMN keyhole.watch_run.run_id IS 'the run';

CREATE TABLE keyhole.watch_model (
    watch_id     integer NOT NULL REFERENCES keyhole.watch ON DELETE CASCADE,
    source       text NOT NULL,
    run_id       integer REFERENCES keyhole.run ON DELETE CASCADE,
    step         bigint,
    suite_id     integer REFERENCES keyhole.suite ON DELETE SET NULL,
    judged_jobs  integer[] NOT NULL DEFAULT '{}',
    judged       boolean NOT NULL DEFAULT false,
    problem      text,
    seen_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (watch_id, source)
);
CREATE INDEX watch_model_open ON keyhole.watch_model (watch_id) WHERE NOT judged OR problem IS NOT NULL;
COMMENT ON TABLE keyhole.watch_model IS 'Checkpoints that a watch has seen.';
COMMENT ON COLUMN keyhole.watch_model.watch_id IS 'the watch';
COMMENT ON COLUMN keyhole.watch_model.source IS 'source of the checkpoint';
COMMENT ON COLUMN keyhole.watch_model.run_id IS 'its run, if the target is one';
COMMENT ON COLUMN keyhole.watch_model.step IS 'its step, if known';
COMMENT ON COLUMN keyhole.watch_model.suite_id IS 'the probes submitted for it; null if it was there before the watch, or the suite was deleted';
COMMENT ON COLUMN keyhole.watch_model.judged_jobs IS 'jobs of the suite to whose results the rules have been applied';
COMMENT ON COLUMN keyhole.watch_model.judged IS 'whether nothing more is waited for';
COMMENT ON COLUMN keyhole.watch_model.problem IS 'which of its jobs brought nothing, and why; null if all did';
COMMENT ON COLUMN keyhole.watch_model.seen_at IS 'when it was first seen';

-- What a rule remembers. A row is written in the transaction that stores the alerts which follow from it.
CREATE TABLE keyhole.watch_rule (
    watch_id  integer NOT NULL REFERENCES keyhole.watch ON DELETE CASCADE,
    rule      smallint NOT NULL,
    run_id    integer NOT NULL REFERENCES keyhole.run ON DELETE CASCADE,
    step      integer NOT NULL,
    memory    jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (watch_id, rule, run_id)
);
COMMENT ON TABLE keyhole.watch_rule IS 'How far rules on numbers of the training have been applied to a run.';
COMMENT ON COLUMN keyhole.watch_rule.watch_id IS 'the watch';
COMMENT ON COLUMN keyhole.watch_rule.rule IS 'place of the rule in the watch, 0-based';
COMMENT ON COLUMN keyhole.watch_rule.run_id IS 'the run';
COMMENT ON COLUMN keyhole.watch_rule.step IS 'last step that was judged; numbers of earlier ones are not looked at again';
COMMENT ON COLUMN keyhole.watch_rule.memory IS 'of loss jumps the least and the latest losses so far';

CREATE TABLE keyhole.watch_crossing (
    watch_id  integer NOT NULL REFERENCES keyhole.watch ON DELETE CASCADE,
    rule      smallint NOT NULL,
    run_id    integer REFERENCES keyhole.run ON DELETE CASCADE,
    matrix    text,
    layer     smallint,
    head      smallint,
    step      bigint,
    value     double precision NOT NULL,
    since     timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE NULLS NOT DISTINCT (watch_id, rule, run_id, matrix, layer, head)
);
COMMENT ON TABLE keyhole.watch_crossing IS 'Where a rule is met now: it raises no further alert there until the number has recovered.';
COMMENT ON COLUMN keyhole.watch_crossing.watch_id IS 'the watch';
COMMENT ON COLUMN keyhole.watch_crossing.rule IS 'place of the rule in the watch, 0-based';
COMMENT ON COLUMN keyhole.watch_crossing.run_id IS 'the run, if the target is one';
COMMENT ON COLUMN keyhole.watch_crossing.matrix IS 'the matrix, of rules on spectral norms';
COMMENT ON COLUMN keyhole.watch_crossing.layer IS 'layer, 0-based; null for the model';
COMMENT ON COLUMN keyhole.watch_crossing.head IS 'head, 0-based; null for the layer or model';
COMMENT ON COLUMN keyhole.watch_crossing.step IS 'step at which the rule was first met';
COMMENT ON COLUMN keyhole.watch_crossing.value IS 'the number at that step';
COMMENT ON COLUMN keyhole.watch_crossing.since IS 'when that was seen';

CREATE TABLE keyhole.alert (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    watch_id         integer NOT NULL REFERENCES keyhole.watch ON DELETE CASCADE,
    rule             smallint NOT NULL,
    run_id           integer REFERENCES keyhole.run ON DELETE CASCADE,
    job_id           integer REFERENCES keyhole.job ON DELETE SET NULL,
    source           text,
    step             bigint,
    metric           text NOT NULL,
    matrix           text,
    layer            smallint,
    head             smallint,
    value            double precision NOT NULL,
    threshold        double precision NOT NULL,
    others           integer NOT NULL DEFAULT 0,
    message          text NOT NULL,
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    deliver_at       timestamptz,
    deliveries       smallint NOT NULL DEFAULT 0,
    delivered_at     timestamptz,
    delivery_problem text,
    acknowledged_at  timestamptz,
    acknowledged_by  integer REFERENCES keyhole.api_token,
    UNIQUE NULLS NOT DISTINCT (watch_id, rule, run_id, source, step, matrix, layer, head)
);
CREATE INDEX alert_run ON keyhole.alert (run_id, id);
CREATE INDEX alert_job ON keyhole.alert (job_id);
CREATE INDEX alert_deliver ON keyhole.alert (deliver_at) WHERE deliver_at IS NOT NULL;
COMMENT ON TABLE keyhole.alert IS 'Rules of watches that were met.';
COMMENT ON COLUMN keyhole.alert.id IS 'number of the alert';
COMMENT ON COLUMN keyhole.alert.watch_id IS 'the watch';
COMMENT ON COLUMN keyhole.alert.rule IS 'place of the rule in the watch, 0-based';
COMMENT ON COLUMN keyhole.alert.run_id IS 'the run, if the target is one';
COMMENT ON COLUMN keyhole.alert.job_id IS 'the job whose result met the rule; null for numbers of the training';
COMMENT ON COLUMN keyhole.alert.source IS 'the checkpoint; null for numbers of the training';
COMMENT ON COLUMN keyhole.alert.step IS 'step of the run, or the one that the checkpoint''s name tells';
COMMENT ON COLUMN keyhole.alert.metric IS 'the number that met the rule';
COMMENT ON COLUMN keyhole.alert.matrix IS 'the matrix, of spectral norms';
COMMENT ON COLUMN keyhole.alert.layer IS 'layer, 0-based; null for the model';
COMMENT ON COLUMN keyhole.alert.head IS 'head, 0-based; null for the layer or model';
COMMENT ON COLUMN keyhole.alert.value IS 'its value';
COMMENT ON COLUMN keyhole.alert.threshold IS 'the value from which the rule is met';
COMMENT ON COLUMN keyhole.alert.others IS 'further places where the rule was met at that look, which got no alert of their own';
COMMENT ON COLUMN keyhole.alert.message IS 'in words';
COMMENT ON COLUMN keyhole.alert.created_at IS 'when it was raised';
COMMENT ON COLUMN keyhole.alert.deliver_at IS 'when the webhook is tried next; null if it took it, was given up, or there is none';
COMMENT ON COLUMN keyhole.alert.deliveries IS 'how often delivery was tried';
COMMENT ON COLUMN keyhole.alert.delivered_at IS 'when the webhook took it; null if it did not, or there is none';
COMMENT ON COLUMN keyhole.alert.delivery_problem IS 'what the last delivery met';
COMMENT ON COLUMN keyhole.alert.acknowledged_at IS 'when someone said that it was seen';
COMMENT ON COLUMN keyhole.alert.acknowledged_by IS 'the token with which that was said';
