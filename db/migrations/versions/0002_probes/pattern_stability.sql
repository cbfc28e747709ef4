-- Distances between attention patterns of two checkpoints; kind pattern_stability.
CREATE TABLE keyhole.pattern_distance (
    job_id                  integer NOT NULL,
    layer                   smallint NOT NULL,
    head                    smallint NOT NULL,
    sequence                integer NOT NULL,
    first                   smallint NOT NULL,
    second                  smallint NOT NULL,
    js_nats                 real NOT NULL,
    total_variation         real NOT NULL,
    cosine                  real NOT NULL,
    paired_head             smallint NOT NULL,
    paired_js_nats          real NOT NULL,
    paired_total_variation  real NOT NULL,
    paired_cosine           real NOT NULL
) PARTITION BY LIST (job_id);
