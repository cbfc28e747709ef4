-- From the table itself and not from the view over it, so that these files can be run in any order.
CREATE VIEW analysis.transfer_sweep_change AS
SELECT
    job_id,
    layer,
    head,
    sequence,
    query,
    first_key,
    second_key,
    bool_or(chosen) AS chosen,
    max(r) AS r,
    count(*) AS points,
    max(c) AS sweep_range,
    max(first_weight) FILTER (WHERE c = 0) AS first_weight,
    max(second_weight) FILTER (WHERE c = 0) AS second_weight,
    max(hard_loss_nats) FILTER (WHERE c = 0) AS hard_loss_nats,
    max(soft_loss_nats) FILTER (WHERE c = 0) AS soft_loss_nats,
    max(hard_loss_nats) - min(hard_loss_nats) AS hard_change_nats,
    max(soft_loss_nats) - min(soft_loss_nats) AS soft_change_nats
FROM keyhole.transfer_sweep
GROUP BY job_id, layer, head, sequence, query, first_key, second_key;

COMMENT ON VIEW analysis.transfer_sweep_change IS 'Attention-transfer sweeps, one row each: what the losses change by over the sweep (Table 8).';
COMMENT ON COLUMN analysis.transfer_sweep_change.job_id IS 'the job';
COMMENT ON COLUMN analysis.transfer_sweep_change.layer IS 'layer, 0-based';
COMMENT ON COLUMN analysis.transfer_sweep_change.head IS 'query head, 0-based';
COMMENT ON COLUMN analysis.transfer_sweep_change.sequence IS 'sequence of the job''s data set, 0-based';
COMMENT ON COLUMN analysis.transfer_sweep_change.query IS 'position of the query whose row is changed';
COMMENT ON COLUMN analysis.transfer_sweep_change.first_key IS 'key whose score gets +c';
COMMENT ON COLUMN analysis.transfer_sweep_change.second_key IS 'key whose score gets -c';
COMMENT ON COLUMN analysis.transfer_sweep_change.chosen IS 'whether the probe chose the anchors; false if the job named them';
COMMENT ON COLUMN analysis.transfer_sweep_change.r IS 'soft over hard attention gradient of the row, as in calibration';
COMMENT ON COLUMN analysis.transfer_sweep_change.points IS 'values of c';
COMMENT ON COLUMN analysis.transfer_sweep_change.sweep_range IS 'largest c';
COMMENT ON COLUMN analysis.transfer_sweep_change.first_weight IS 'attention weight of the first key at c = 0';
COMMENT ON COLUMN analysis.transfer_sweep_change.second_weight IS 'attention weight of the second key at c = 0';
COMMENT ON COLUMN analysis.transfer_sweep_change.hard_loss_nats IS 'loss of the observed next token at c = 0';
COMMENT ON COLUMN analysis.transfer_sweep_change.soft_loss_nats IS 'loss averaged over the teacher''s next tokens at c = 0';
COMMENT ON COLUMN analysis.transfer_sweep_change.hard_change_nats IS 'largest minus smallest hard loss of the sweep';
COMMENT ON COLUMN analysis.transfer_sweep_change.soft_change_nats IS 'largest minus smallest soft loss of the sweep';
