CREATE TABLE keyhole.jacobian_spectrum (
    job_id                integer NOT NULL,
    layer                 smallint NOT NULL,
    head                  smallint NOT NULL,
    sequence              integer NOT NULL,
    query                 integer NOT NULL,
    effective_rank        real NOT NULL,
    effective_rank_sigma  real NOT NULL,
    participation_ratio   real NOT NULL,
    modes_above_1e_2      smallint NOT NULL,
    modes_above_1e_3      smallint NOT NULL,
    sigma_max             real NOT NULL,
    top_attention         real NOT NULL
) PARTITION BY LIST (job_id);

CREATE TABLE keyhole.jacobian_mode (
    job_id    integer NOT NULL,
    layer     smallint NOT NULL,
    head      smallint NOT NULL,
    sequence  integer NOT NULL,
    mode      smallint NOT NULL,
    queries   integer NOT NULL,
    mean      real NOT NULL,
    q05       real NOT NULL,
    q25       real NOT NULL,
    median    real NOT NULL,
    q75       real NOT NULL,
    q95       real NOT NULL
) PARTITION BY LIST (job_id);
