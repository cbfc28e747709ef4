-- The steps of the table ratchet multiplied out: unit learning rates, double precision.
CREATE VIEW analysis.ratchet_steps AS
SELECT
    job_id,
    layer,
    head,
    sequence,
    query,
    top_key,
    runner_up,
    top.weight AS top_weight,
    CASE WHEN log_odds_runner_up < 700 THEN top.weight * exp(-log_odds_runner_up::double precision) ELSE 0 END
        AS runner_up_weight,
    size.delta_a * gain_top AS delta_advantage_top,
    size.delta_a * gain_runner_up AS delta_advantage_runner_up,
    size.delta * top.weight * advantage_top AS delta_score_top,
    size.delta * odds_growth_runner_up AS delta_log_odds_runner_up,
    size.delta * odds_growth_rest AS delta_log_odds_rest
FROM keyhole.ratchet
CROSS JOIN LATERAL (
    -- beyond 700 nats exp is out of the range of numbers; a weight there is 1 to three hundred digits
    SELECT CASE WHEN log_odds_rest < 700 THEN 1 / (1 + exp(-log_odds_rest::double precision)) ELSE 1 END AS weight
) AS top
CROSS JOIN LATERAL (
    SELECT
        CASE WHEN log10_delta > -150 THEN 10 ^ log10_delta::double precision ELSE 0 END AS delta,
        CASE WHEN log10_delta > -150 THEN 10 ^ (2 * log10_delta::double precision + log10_x_squared) ELSE 0 END AS delta_a
) AS size;

COMMENT ON VIEW analysis.ratchet_steps IS
    'What one step of unit learning rate does to the top key of each query (equations 29-31); NaN where undefined.';
COMMENT ON COLUMN analysis.ratchet_steps.job_id IS 'the job that measured the row';
COMMENT ON COLUMN analysis.ratchet_steps.layer IS 'layer, 0-based';
COMMENT ON COLUMN analysis.ratchet_steps.head IS 'query head, 0-based';
COMMENT ON COLUMN analysis.ratchet_steps.sequence IS 'sequence of the job''s data set, 0-based';
COMMENT ON COLUMN analysis.ratchet_steps.query IS 'position of the query in its sequence, 0-based';
COMMENT ON COLUMN analysis.ratchet_steps.top_key IS 'position of the key with the largest attention weight';
COMMENT ON COLUMN analysis.ratchet_steps.runner_up IS 'position of the key with the second largest; -1 in a row of one';
COMMENT ON COLUMN analysis.ratchet_steps.top_weight IS 'attention weight of the top key';
COMMENT ON COLUMN analysis.ratchet_steps.runner_up_weight IS 'attention weight of the runner-up';
COMMENT ON COLUMN analysis.ratchet_steps.delta_advantage_top IS 'change of the top key''s advantage by a step on V';
COMMENT ON COLUMN analysis.ratchet_steps.delta_advantage_runner_up IS 'the same of the runner-up';
COMMENT ON COLUMN analysis.ratchet_steps.delta_score_top IS 'change of the top key''s score by a step on the scores';
COMMENT ON COLUMN analysis.ratchet_steps.delta_log_odds_runner_up IS
    'change of log(a_top / a_runner_up) by that step, nats';
COMMENT ON COLUMN analysis.ratchet_steps.delta_log_odds_rest IS
    'change of log(a_top / (1 - a_top)) by it to first order, nats';
