CREATE VIEW analysis.pattern_stability AS
SELECT
    job_id,
    layer,
    first,
    second,
    avg(js_nats) AS js_nats,
    avg(total_variation) AS total_variation,
    avg(cosine) AS cosine,
    avg(paired_js_nats) AS paired_js_nats,
    avg(paired_total_variation) AS paired_total_variation,
    avg(paired_cosine) AS paired_cosine,
    avg((paired_head <> head)::integer)::double precision AS assigned_elsewhere
FROM keyhole.pattern_distance
GROUP BY job_id, layer, first, second;

COMMENT ON VIEW analysis.pattern_stability IS 'Distances between the attention patterns of two checkpoints by layer: means over heads and sequences. Computed when it is read: give job_id.';
COMMENT ON COLUMN analysis.pattern_stability.job_id IS 'the job';
COMMENT ON COLUMN analysis.pattern_stability.layer IS 'layer, 0-based';
COMMENT ON COLUMN analysis.pattern_stability.first IS 'number of a checkpoint; see pattern_checkpoint';
COMMENT ON COLUMN analysis.pattern_stability.second IS 'number of the other checkpoint, larger than first';
COMMENT ON COLUMN analysis.pattern_stability.js_nats IS 'mean Jensen–Shannon divergence with heads paired by index, in nats';
COMMENT ON COLUMN analysis.pattern_stability.total_variation IS 'mean total variation distance, by index';
COMMENT ON COLUMN analysis.pattern_stability.cosine IS 'mean cosine distance, by index';
COMMENT ON COLUMN analysis.pattern_stability.paired_js_nats IS 'mean Jensen–Shannon divergence with heads paired by optimal assignment, in nats';
COMMENT ON COLUMN analysis.pattern_stability.paired_total_variation IS 'mean total variation distance, by assignment';
COMMENT ON COLUMN analysis.pattern_stability.paired_cosine IS 'mean cosine distance, by assignment';
COMMENT ON COLUMN analysis.pattern_stability.assigned_elsewhere IS 'share of heads that the assignment pairs with another index';
