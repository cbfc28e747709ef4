-- One row per head; a metric that has no summary (a job of an older version) is NULL.
CREATE VIEW analysis.attention_profile_heads AS
SELECT
    summary.job_id,
    summary.layer,
    summary.head,
    max(mean) FILTER (WHERE metric = 'entropy_nats') AS entropy_nats,
    max(mean) FILTER (WHERE metric = 'top_weight') AS top_weight,
    max(mean) FILTER (WHERE metric = 'self_weight') AS self_weight,
    max(mean) FILTER (WHERE metric = 'previous_weight') AS previous_weight,
    max(mean) FILTER (WHERE metric = 'local_mass') AS local_mass,
    max(mean) FILTER (WHERE metric = 'sink_mass') AS sink_mass,
    max(mean) FILTER (WHERE metric = 'no_key_mass') AS no_key_mass,
    max(mean) FILTER (WHERE metric = 'induction_score') AS induction_score,
    max(mean) FILTER (WHERE metric = 'duplicate_score') AS duplicate_score,
    max(mean) FILTER (WHERE metric = 'previous_score') AS previous_score
FROM keyhole.summary
JOIN keyhole.job ON job.id = summary.job_id AND job.kind = 'attention_profile'
WHERE summary.layer IS NOT NULL AND summary.head IS NOT NULL
GROUP BY summary.job_id, summary.layer, summary.head;

COMMENT ON VIEW analysis.attention_profile_heads IS 'Heads of attention_profile jobs: mean of each metric over the head''s queries, and its scores as a head type.';
COMMENT ON COLUMN analysis.attention_profile_heads.job_id IS 'the job';
COMMENT ON COLUMN analysis.attention_profile_heads.layer IS 'layer, 0-based';
COMMENT ON COLUMN analysis.attention_profile_heads.head IS 'query head, 0-based';
COMMENT ON COLUMN analysis.attention_profile_heads.entropy_nats IS 'mean entropy of a query''s attention, in nats';
COMMENT ON COLUMN analysis.attention_profile_heads.top_weight IS 'mean largest weight';
COMMENT ON COLUMN analysis.attention_profile_heads.self_weight IS 'mean weight on the query''s own position';
COMMENT ON COLUMN analysis.attention_profile_heads.previous_weight IS 'mean weight on the previous token of the data; high for previous-token heads';
COMMENT ON COLUMN analysis.attention_profile_heads.local_mass IS 'mean weight on the eight nearest keys';
COMMENT ON COLUMN analysis.attention_profile_heads.sink_mass IS 'mean weight on key 0';
COMMENT ON COLUMN analysis.attention_profile_heads.no_key_mass IS 'mean weight on a learned sink';
COMMENT ON COLUMN analysis.attention_profile_heads.induction_score IS 'mean weight, on repeated random tokens, on the token after the first occurrence; high for induction heads';
COMMENT ON COLUMN analysis.attention_profile_heads.duplicate_score IS 'the same on the first occurrence; high for duplicate-token heads';
COMMENT ON COLUMN analysis.attention_profile_heads.previous_score IS 'mean weight on the previous token in the same random sequences';
