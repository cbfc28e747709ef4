-- Tables of the spine. Everything lives in the schema keyhole, owned by the role that migrates;
-- analysts see the views of db/views only.

CREATE TABLE keyhole.api_token (
    id            integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name          text NOT NULL,
    scope         text NOT NULL CHECK (scope IN ('read', 'submit', 'admin')),
    prefix        text NOT NULL,
    sha256        bytea NOT NULL UNIQUE,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at    timestamptz,
    last_used_at  timestamptz,
    revoked_at    timestamptz
);

CREATE TABLE keyhole.model (
    id            integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    identity      text NOT NULL UNIQUE,
    source        text NOT NULL,
    model_type    text NOT NULL,
    architecture  jsonb NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE keyhole.tokenizer (
    id               integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    sha256           text NOT NULL UNIQUE,
    vocabulary_size  integer NOT NULL
);

CREATE TABLE keyhole.vocabulary (
    tokenizer_id  integer NOT NULL REFERENCES keyhole.tokenizer ON DELETE CASCADE,
    token_id      integer NOT NULL,
    text          text NOT NULL,
    PRIMARY KEY (tokenizer_id, token_id)
);

CREATE TABLE keyhole.dataset (
    id            integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    fingerprint   text NOT NULL,
    identity      text NOT NULL,
    source        text NOT NULL,
    tokenizer_id  integer REFERENCES keyhole.tokenizer,
    sequences     integer NOT NULL,
    length        integer NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- the same token ids under two tokenizers are two texts
    UNIQUE NULLS NOT DISTINCT (fingerprint, tokenizer_id)
);

CREATE TABLE keyhole.sequence (
    dataset_id  integer NOT NULL REFERENCES keyhole.dataset ON DELETE CASCADE,
    sequence    integer NOT NULL,
    token_ids   integer[] NOT NULL,
    PRIMARY KEY (dataset_id, sequence)
);

CREATE TABLE keyhole.sequence_document (
    dataset_id      integer NOT NULL,
    sequence        integer NOT NULL,
    start_position  integer NOT NULL,
    stop_position   integer NOT NULL,
    document        integer NOT NULL,
    name            text,
    PRIMARY KEY (dataset_id, sequence, start_position),
    FOREIGN KEY (dataset_id, sequence) REFERENCES keyhole.sequence ON DELETE CASCADE
);

CREATE TABLE keyhole.job (
    id                integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind              text NOT NULL,
    version           integer NOT NULL,
    queue             text NOT NULL,
    state             text NOT NULL DEFAULT 'queued'
        CHECK (state IN ('queued', 'running', 'cancelling', 'succeeded', 'failed', 'cancelled')),
    phase             text NOT NULL DEFAULT 'queued',
    priority          smallint NOT NULL DEFAULT 0,
    label             text,
    model_source      text NOT NULL,
    model_identity    text NOT NULL,
    model_id          integer REFERENCES keyhole.model,
    dataset_source    text NOT NULL,
    dataset_identity  text NOT NULL,
    dataset_id        integer REFERENCES keyhole.dataset,
    parameters        jsonb NOT NULL,
    reuse_key         text NOT NULL,
    time_limit_s      integer NOT NULL,
    max_attempts      smallint NOT NULL,
    crashes           smallint NOT NULL DEFAULT 0,
    shards            integer NOT NULL,
    shards_done       integer NOT NULL DEFAULT 0,
    rows              bigint NOT NULL DEFAULT 0,
    measured_s        double precision NOT NULL DEFAULT 0,
    environment       jsonb,
    checks            jsonb,
    error_code        text,
    error_message     text,
    error_hint        text,
    error_traceback   text,
    submitted_by      integer REFERENCES keyhole.api_token,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at        timestamptz,
    finished_at       timestamptz,
    hinted_at         timestamptz
);
CREATE INDEX job_reuse_key ON keyhole.job (reuse_key, id DESC) WHERE state IN ('queued', 'running', 'succeeded');
CREATE INDEX job_open ON keyhole.job (queue, priority DESC, id) WHERE state IN ('queued', 'running', 'cancelling');
CREATE INDEX job_kind_state ON keyhole.job (kind, state, id DESC);

CREATE TABLE keyhole.job_request (
    token_id     integer NOT NULL REFERENCES keyhole.api_token,
    key          text NOT NULL,
    body_sha256  bytea NOT NULL,
    job_id       integer NOT NULL REFERENCES keyhole.job ON DELETE CASCADE,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (token_id, key)
);

CREATE TABLE keyhole.attempt (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    token         uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    job_id        integer NOT NULL REFERENCES keyhole.job ON DELETE CASCADE,
    number        integer NOT NULL,
    worker        text NOT NULL,
    device        text NOT NULL,
    started_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    heartbeat_at  timestamptz,
    lease_until   timestamptz NOT NULL,
    ended_at      timestamptz,
    outcome       text CHECK (outcome IN
        ('completed', 'failed', 'crashed', 'lost', 'cancelled', 'timed_out', 'released')),
    detail        text,
    CHECK ((ended_at IS NULL) = (outcome IS NULL)),
    UNIQUE (job_id, number)
);
CREATE INDEX attempt_live ON keyhole.attempt (job_id) WHERE ended_at IS NULL;

CREATE TABLE keyhole.shard (
    job_id          integer NOT NULL REFERENCES keyhole.job ON DELETE CASCADE,
    index           integer NOT NULL,
    state           text NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'done')),
    first_sequence  integer NOT NULL,
    sequences       integer NOT NULL,
    attempt_id      bigint REFERENCES keyhole.attempt,
    claim_token     uuid,
    rows            bigint,
    checks          jsonb,
    started_at      timestamptz,
    finished_at     timestamptz,
    PRIMARY KEY (job_id, index),
    CHECK ((state = 'queued') = (claim_token IS NULL))
);
CREATE INDEX shard_open ON keyhole.shard (job_id, index) WHERE state <> 'done';

-- Jobs that another attempt would serve: more shards are open than live attempts without a shard will take,
-- or every shard is done and nobody is left to compute the summaries.
CREATE VIEW keyhole.open_work AS
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
  AND ((SELECT count(*) FROM keyhole.shard WHERE shard.job_id = job.id AND shard.state = 'queued') > live.without_shard
       OR (job.shards_done = job.shards AND live.attempts = 0));

CREATE TABLE keyhole.job_event (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id  integer NOT NULL REFERENCES keyhole.job ON DELETE CASCADE,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    type    text NOT NULL,
    data    jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX job_event_job ON keyhole.job_event (job_id, id);

CREATE TABLE keyhole.worker (
    name          text PRIMARY KEY,
    host          text NOT NULL,
    queues        text NOT NULL,
    devices       text NOT NULL,
    version       text NOT NULL,
    started_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    polled_at     timestamptz,
    gpu_memory_bytes bigint
);

CREATE TABLE keyhole.counter (
    name   text PRIMARY KEY,
    value  bigint NOT NULL DEFAULT 0
);

-- Distribution of one metric: by head (layer and head set), by layer (head null) and for the job (both null).
CREATE TABLE keyhole.summary (
    job_id           integer NOT NULL REFERENCES keyhole.job ON DELETE CASCADE,
    metric           text NOT NULL,
    layer            smallint,
    head             smallint,
    n                bigint NOT NULL,
    n_infinite       bigint NOT NULL,
    n_undefined      bigint NOT NULL,
    mean             double precision,
    sd               double precision,
    minimum          double precision,
    q01              double precision,
    q05              double precision,
    q25              double precision,
    median           double precision,
    q75              double precision,
    q95              double precision,
    q99              double precision,
    maximum          double precision,
    histogram_low    double precision NOT NULL,
    histogram_width  double precision NOT NULL,
    histogram        bigint[] NOT NULL,
    UNIQUE NULLS NOT DISTINCT (job_id, metric, layer, head),
    CHECK (head IS NULL OR layer IS NOT NULL)
);

-- Per-query tables: no keys, no foreign keys, partitioned by job (see db/partitions.py).
CREATE TABLE keyhole.gradient_scale (
    job_id     integer NOT NULL,
    layer      smallint NOT NULL,
    head       smallint NOT NULL,
    sequence   integer NOT NULL,
    query      integer NOT NULL,
    log10_d_a  real NOT NULL,
    log10_d_c  real NOT NULL
) PARTITION BY LIST (job_id);

-- Names of partitions that hold several jobs (see db/merging.py).
CREATE SEQUENCE keyhole.partition_number AS bigint;
