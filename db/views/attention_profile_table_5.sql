-- From the table of summaries and not from the view of heads, so that these files can be run in any order.
CREATE VIEW analysis.attention_profile_table_5 AS
SELECT
    job.id AS job_id,
    count(*) FILTER (WHERE metric = 'entropy_nats') AS heads,
    avg(mean) FILTER (WHERE metric = 'entropy_nats') AS mean_entropy_nats,
    avg(mean) FILTER (WHERE metric = 'top_weight') AS mean_top_weight,
    avg(mean) FILTER (WHERE metric = 'local_mass') AS mean_local_mass,
    count(*) FILTER (WHERE metric = 'local_mass' AND mean > threshold.local) AS heads_local,
    count(*) FILTER (WHERE metric = 'entropy_nats' AND mean > threshold.entropy_nats) AS heads_spread_out,
    threshold.local AS local_threshold,
    threshold.entropy_nats AS entropy_threshold_nats
FROM keyhole.job
CROSS JOIN LATERAL (SELECT
    (job.parameters ->> 'local_threshold')::double precision AS local,
    (job.parameters ->> 'entropy_threshold_nats')::double precision AS entropy_nats) AS threshold
JOIN keyhole.summary ON summary.job_id = job.id AND summary.head IS NOT NULL
WHERE job.kind = 'attention_profile'
GROUP BY job.id, threshold.local, threshold.entropy_nats;

COMMENT ON VIEW analysis.attention_profile_table_5 IS 'Table 5 of "Stuck in a Loop" for each attention_profile job: means over heads, and heads beyond the thresholds of the job.';
COMMENT ON COLUMN analysis.attention_profile_table_5.job_id IS 'the job';
COMMENT ON COLUMN analysis.attention_profile_table_5.heads IS 'number of heads of all layers';
COMMENT ON COLUMN analysis.attention_profile_table_5.mean_entropy_nats IS 'mean attention entropy, in nats';
COMMENT ON COLUMN analysis.attention_profile_table_5.mean_top_weight IS 'mean top-key attention';
COMMENT ON COLUMN analysis.attention_profile_table_5.mean_local_mass IS 'mean attention within eight tokens';
COMMENT ON COLUMN analysis.attention_profile_table_5.heads_local IS 'heads whose mean local mass is above local_threshold';
COMMENT ON COLUMN analysis.attention_profile_table_5.heads_spread_out IS 'heads whose mean entropy is above entropy_threshold_nats';
COMMENT ON COLUMN analysis.attention_profile_table_5.local_threshold IS 'threshold of local mass that the job was given';
COMMENT ON COLUMN analysis.attention_profile_table_5.entropy_threshold_nats IS 'threshold of entropy that the job was given, in nats';
