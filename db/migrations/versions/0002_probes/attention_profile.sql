-- Per query: where its attention goes. Per sequence of repeated random tokens: scores of head types.
CREATE TABLE keyhole.attention_profile (
    job_id           integer NOT NULL,
    layer            smallint NOT NULL,
    head             smallint NOT NULL,
    sequence         integer NOT NULL,
    query            integer NOT NULL,
    entropy_nats     real NOT NULL,
    top_weight       real NOT NULL,
    top_key          integer NOT NULL,
    self_weight      real NOT NULL,
    previous_weight  real NOT NULL,
    local_mass       real NOT NULL,
    sink_mass        real NOT NULL,
    no_key_mass      real NOT NULL
) PARTITION BY LIST (job_id);

CREATE TABLE keyhole.attention_profile_repeated (
    job_id           integer NOT NULL,
    layer            smallint NOT NULL,
    head             smallint NOT NULL,
    sequence         integer NOT NULL,
    induction_score  real NOT NULL,
    duplicate_score  real NOT NULL,
    previous_score   real NOT NULL
) PARTITION BY LIST (job_id);
