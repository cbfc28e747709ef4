CREATE TABLE keyhole.calibration (
    job_id     integer NOT NULL,
    layer      smallint NOT NULL,
    head       smallint NOT NULL,
    sequence   integer NOT NULL,
    query      integer NOT NULL,
    r          real NOT NULL,
    hard_norm  real NOT NULL,
    soft_norm  real NOT NULL
) PARTITION BY LIST (job_id);

CREATE TABLE keyhole.transfer_sweep (
    job_id          integer NOT NULL,
    layer           smallint NOT NULL,
    head            smallint NOT NULL,
    sequence        integer NOT NULL,
    query           integer NOT NULL,
    first_key       integer NOT NULL,
    second_key      integer NOT NULL,
    c               real NOT NULL,
    r               real NOT NULL,
    chosen          boolean NOT NULL,
    first_weight    real NOT NULL,
    second_weight   real NOT NULL,
    hard_loss_nats  double precision NOT NULL,
    soft_loss_nats  double precision NOT NULL
) PARTITION BY LIST (job_id);
