CREATE TABLE keyhole.shared_routing (
    job_id           integer NOT NULL,
    layer            smallint NOT NULL,
    sequence         integer NOT NULL,
    query            integer NOT NULL,
    loss_nats        real NOT NULL,
    extra_loss_nats  real NOT NULL
) PARTITION BY LIST (job_id);

CREATE TABLE keyhole.shared_routing_unmodified (
    job_id     integer NOT NULL,
    sequence   integer NOT NULL,
    query      integer NOT NULL,
    loss_nats  real NOT NULL
) PARTITION BY LIST (job_id);
