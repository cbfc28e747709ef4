CREATE TABLE keyhole.buried_key (
    job_id                   integer NOT NULL,
    layer                    smallint NOT NULL,
    sequence                 integer NOT NULL,
    query                    integer NOT NULL,
    key                      integer NOT NULL,
    score                    real NOT NULL,
    attention_rank_smallest  integer NOT NULL,
    attention_rank_median    real NOT NULL,
    attention_rank_largest   integer NOT NULL,
    largest_weight           real NOT NULL,
    direction                smallint NOT NULL,
    heads                    smallint NOT NULL,
    place                    smallint NOT NULL
) PARTITION BY LIST (job_id);

CREATE TABLE keyhole.buried_pick (
    job_id          integer NOT NULL,
    layer           smallint NOT NULL,
    head            smallint NOT NULL,
    sequence        integer NOT NULL,
    query           integer NOT NULL,
    key             integer NOT NULL,
    advantage       real NOT NULL,
    weight          real NOT NULL,
    attention_rank  integer NOT NULL,
    place           smallint NOT NULL,
    agrees          boolean NOT NULL
) PARTITION BY LIST (job_id);

CREATE TABLE keyhole.buried_query (
    job_id      integer NOT NULL,
    layer       smallint NOT NULL,
    sequence    integer NOT NULL,
    query       integer NOT NULL,
    best_score  real NOT NULL,
    qualifying  smallint NOT NULL,
    most_heads  smallint NOT NULL
) PARTITION BY LIST (job_id);
