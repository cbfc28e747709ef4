CREATE TABLE keyhole.ratchet (
    job_id                 integer NOT NULL,
    layer                  smallint NOT NULL,
    head                   smallint NOT NULL,
    sequence               integer NOT NULL,
    query                  integer NOT NULL,
    top_key                integer NOT NULL,
    runner_up              integer NOT NULL,
    log_odds_runner_up     real NOT NULL,
    log_odds_rest          real NOT NULL,
    log10_delta            real NOT NULL,
    log10_x_squared        real NOT NULL,
    gain_top               real NOT NULL,
    gain_runner_up         real NOT NULL,
    advantage_top          real NOT NULL,
    advantage_runner_up    real NOT NULL,
    odds_growth_runner_up  real NOT NULL,
    odds_growth_rest       real NOT NULL
) PARTITION BY LIST (job_id);

CREATE TABLE keyhole.ratchet_band (
    job_id         integer NOT NULL,
    layer          smallint NOT NULL,
    head           smallint NOT NULL,
    sequence       integer NOT NULL,
    band           smallint NOT NULL,
    sources        bigint NOT NULL,
    gain_positive  bigint NOT NULL,
    step_positive  bigint NOT NULL,
    mean_gain      real NOT NULL,
    mean_abs_step  real NOT NULL
) PARTITION BY LIST (job_id);
