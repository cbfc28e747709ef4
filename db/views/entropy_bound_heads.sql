-- One row per head: means over its sequences, from the summaries.
CREATE VIEW analysis.entropy_bound_heads AS
SELECT
    summary.job_id,
    summary.layer,
    summary.head,
    max(mean) FILTER (WHERE metric = 'entropy_mean') AS entropy_nats,
    max(minimum) FILTER (WHERE metric = 'entropy_min') AS entropy_min_nats,
    max(mean) FILTER (WHERE metric = 'log10_bound') AS log10_bound,
    max(mean) FILTER (WHERE metric = 'log10_product_bound') AS log10_product_bound,
    max(mean) FILTER (WHERE metric = 'gap_mean') AS gap_nats,
    max(minimum) FILTER (WHERE metric = 'gap_min') AS gap_min_nats,
    max(mean) FILTER (WHERE metric = 'tightness') AS tightness,
    10 ^ max(mean) FILTER (WHERE metric = 'log10_sigma') AS sigma,
    10 ^ max(mean) FILTER (WHERE metric = 'log10_sigma_product') AS sigma_product,
    10 ^ max(mean) FILTER (WHERE metric = 'log10_weight_norm') AS weight_norm,
    10 ^ max(mean) FILTER (WHERE metric = 'log10_input_norm') AS input_norm,
    max(mean) FILTER (WHERE metric = 'obstacles')::smallint AS obstacles,
    max(mean) FILTER (WHERE metric = 'top_1') AS top_1,
    max(mean) FILTER (WHERE metric = 'top_8') AS top_8,
    max(mean) FILTER (WHERE metric = 'top_5_percent') AS top_5_percent,
    10 ^ max(mean) FILTER (WHERE metric = 'log10_stable_rank') AS stable_rank,
    10 ^ max(mean) FILTER (WHERE metric = 'log10_effective_rank') AS effective_rank,
    max(mean) FILTER (WHERE metric = 'rank_rows')::smallint AS rank_rows
FROM keyhole.summary
JOIN keyhole.job ON job.id = summary.job_id AND job.kind = 'entropy_bound'
WHERE summary.layer IS NOT NULL AND summary.head IS NOT NULL
GROUP BY summary.job_id, summary.layer, summary.head;

COMMENT ON VIEW analysis.entropy_bound_heads IS 'Heads of entropy_bound jobs: entropy, its bounds, and how sparse and of what rank patterns are, over all sequences.';
COMMENT ON COLUMN analysis.entropy_bound_heads.job_id IS 'the job';
COMMENT ON COLUMN analysis.entropy_bound_heads.layer IS 'layer, 0-based';
COMMENT ON COLUMN analysis.entropy_bound_heads.head IS 'query head, 0-based';
COMMENT ON COLUMN analysis.entropy_bound_heads.entropy_nats IS 'mean entropy of a row''s weights over its keys, in nats';
COMMENT ON COLUMN analysis.entropy_bound_heads.entropy_min_nats IS 'least entropy of any row';
COMMENT ON COLUMN analysis.entropy_bound_heads.log10_bound IS 'log10 of the least entropy in nats that the rows'' own scores allow, mean over the sequences where it is not 0';
COMMENT ON COLUMN analysis.entropy_bound_heads.log10_product_bound IS 'the same for the scores that weights and inputs allow; null where they bound nothing';
COMMENT ON COLUMN analysis.entropy_bound_heads.gap_nats IS 'mean of entropy less its bound, in nats';
COMMENT ON COLUMN analysis.entropy_bound_heads.gap_min_nats IS 'least entropy less its bound of any row';
COMMENT ON COLUMN analysis.entropy_bound_heads.tightness IS 'least norm of centred scores that the entropy needs, over the norm there is; 1 at the bound';
COMMENT ON COLUMN analysis.entropy_bound_heads.sigma IS 'norm of a row''s centred scores: mean over queries, geometric mean over sequences';
COMMENT ON COLUMN analysis.entropy_bound_heads.sigma_product IS 'upper bound of it from weights and inputs, geometric mean over sequences; null where they bound nothing';
COMMENT ON COLUMN analysis.entropy_bound_heads.weight_norm IS '‖W_K W_Qᵀ‖₂';
COMMENT ON COLUMN analysis.entropy_bound_heads.input_norm IS '‖X Xᵀ‖₂ of the layer''s inputs, geometric mean over sequences';
COMMENT ON COLUMN analysis.entropy_bound_heads.obstacles IS 'why weights and inputs bound nothing, added up: 1 rotary embedding, 2 norm of queries and keys, 4 clipping, 8 no matrix; 0 if they bound';
COMMENT ON COLUMN analysis.entropy_bound_heads.top_1 IS 'mean weight of a row''s largest entry';
COMMENT ON COLUMN analysis.entropy_bound_heads.top_8 IS 'mean weight of a row''s eight largest entries';
COMMENT ON COLUMN analysis.entropy_bound_heads.top_5_percent IS 'mean weight of the largest twentieth of a row''s keys';
COMMENT ON COLUMN analysis.entropy_bound_heads.stable_rank IS '‖A‖_F² / ‖A‖₂² of the pattern, geometric mean over sequences';
COMMENT ON COLUMN analysis.entropy_bound_heads.effective_rank IS 'exp of the entropy of the normalized squared singular values of the pattern, geometric mean over sequences';
COMMENT ON COLUMN analysis.entropy_bound_heads.rank_rows IS 'rows of the pattern behind both ranks: the most they can be';
