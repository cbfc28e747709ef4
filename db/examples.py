"""Examples of SQL for analysts, which db/documentation.py puts into docs/sql.md; a test runs each of them.

Numbers of jobs and suites are 1, and 2 for a second job, which the test replaces by those of jobs that fit.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """``group`` is the kind of the jobs it reads, or a heading where it reads any."""

    group: str
    title: str
    query: str


JOBS = "Jobs and their metrics"
SUITES = "Suites and models"
RUNS = "Training runs and checkpoints"
WATCHES = "Watches and alerts"

EXAMPLES = (
    Example(
        JOBS,
        "Jobs that succeeded, latest first",
        """\
SELECT id, kind, model, dataset, rows, duration_s FROM job
WHERE state = 'succeeded' ORDER BY id DESC LIMIT 20""",
    ),
    Example(
        JOBS,
        "What went wrong lately",
        """\
SELECT id, error_code, error_message, error_hint FROM job
WHERE state = 'failed' ORDER BY finished_at DESC LIMIT 10""",
    ),
    Example(
        JOBS,
        "All metrics of a job, with what they mean",
        """\
SELECT metric, job_summary.mean, job_summary.median, job_summary.n_undefined, metric.meaning
FROM job_summary JOIN job ON job.id = job_id JOIN metric USING (kind, metric)
WHERE job_id = 1 ORDER BY metric""",
    ),
    Example(
        JOBS,
        "A histogram, one row per bin",
        """\
SELECT histogram_low + (bin - 1) * histogram_width AS low, count
FROM job_summary, unnest(histogram) WITH ORDINALITY AS unrolled (count, bin)
WHERE job_id = 1 AND metric = 'log10_d_a' AND count > 0 ORDER BY low""",
    ),
    Example(
        JOBS,
        "The text around a query: the position and the ten before it",
        """\
SELECT string_agg(text, '' ORDER BY position) FROM token
WHERE job_id = 1 AND sequence = 0 AND position BETWEEN 2 AND 12""",
    ),
    Example(
        RUNS,
        "Runs by their best validation loss",
        """\
SELECT id, name, variant, seed, learning_rate, weight_decay, best_validation_loss_nats, best_validation_step FROM run
WHERE origin = 'trained' ORDER BY best_validation_loss_nats NULLS LAST LIMIT 20""",
    ),
    Example(
        RUNS,
        "Validation loss of each variant by step: mean and spread over seeds",
        """\
SELECT run.variant, step, count(*) AS runs, avg(value) AS mean_nats, stddev_samp(value) AS sd_nats
FROM training_metric JOIN run ON run.id = run_id
WHERE metric = 'validation_loss_nats' GROUP BY run.variant, step ORDER BY run.variant, step""",
    ),
    Example(
        RUNS,
        "Where attention collapses: the layers of a run with the lowest entropy at its last step",
        """\
SELECT layer, value AS entropy_nats FROM training_metric
WHERE run_id = 1 AND metric = 'entropy_nats' AND layer IS NOT NULL AND head IS NULL
  AND step = (SELECT max(step) FROM training_metric WHERE run_id = 1 AND metric = 'entropy_nats')
ORDER BY value""",
    ),
    Example(
        RUNS,
        "Spectral norms of the query weights of a run by step",
        """\
SELECT step, layer, weight_sigma, update_sigma FROM training_matrix
WHERE run_id = 1 AND matrix = 'q' ORDER BY layer, step""",
    ),
    Example(
        RUNS,
        "How the norm of an update grows with width, over the latest suite that trained several widths",
        """\
SELECT optimizer, matrix, step, widths, update_exponent, update_exponent_se, weight_exponent, weight_exponent_se
FROM width_growth WHERE suite_id = (SELECT max(suite_id) FROM width_growth)
ORDER BY optimizer, matrix, step""",
    ),
    Example(
        RUNS,
        "Checkpoints of a run, and the jobs that measured them",
        """\
SELECT checkpoint.id, step, reasons, checkpoint.validation_loss_nats, array_agg(job_model.job_id) AS jobs
FROM checkpoint LEFT JOIN job_model ON job_model.model_identity = checkpoint.identity
WHERE run_id = 1 GROUP BY checkpoint.id, step, reasons, checkpoint.validation_loss_nats ORDER BY step""",
    ),
    Example(
        RUNS,
        "Settings of a sweep by mean final loss over their seeds, and the spread between seeds",
        """\
SELECT variant, setting, count(*) AS seeds, avg(final_validation_loss_nats) AS mean_nats,
       stddev_samp(final_validation_loss_nats) AS sd_nats
FROM sweep_member WHERE sweep_id = 1 AND final_validation_loss_nats IS NOT NULL
GROUP BY variant, setting ORDER BY mean_nats""",
    ),
    Example(
        SUITES,
        "The jobs of a suite, and how far they are",
        """\
SELECT position, job_id, kind, model, state, shards_done, shards, reused
FROM suite_job JOIN job ON job.id = job_id WHERE suite_id = 1 ORDER BY position""",
    ),
    Example(
        SUITES,
        "One metric over the series of checkpoints that a suite measured, in the order submitted",
        """\
SELECT position, job.model, job_summary.median, job_summary.q05, job_summary.q95
FROM suite_job JOIN job ON job.id = job_id JOIN job_summary USING (job_id)
WHERE suite_id = 1 AND metric = 'log10_d_a' ORDER BY position""",
    ),
    Example(
        SUITES,
        "All jobs that read a model, as their own or as a teacher or checkpoint",
        """\
SELECT job_id, kind, number, job_model.model FROM job_model JOIN job ON job.id = job_id
WHERE job_model.model LIKE 'builtin:smollm2%' ORDER BY job_id, number""",
    ),
    Example(
        "gradient_scale",
        "Median D_a and D_c of each layer, side by side",
        """\
SELECT layer, round((10 ^ a.median)::numeric, 1) AS d_a, round((10 ^ c.median)::numeric, 1) AS d_c
FROM layer_summary AS a JOIN layer_summary AS c USING (job_id, layer)
WHERE job_id = 1 AND a.metric = 'log10_d_a' AND c.metric = 'log10_d_c' AND a.median < 300 AND c.median < 300
ORDER BY layer""",
    ),
    Example(
        "gradient_scale",
        "Share of queries whose attention is spread wider than their advantage",
        """\
SELECT job_id, model, mean AS share FROM job_summary JOIN job ON job.id = job_id
WHERE metric = 'd_a_exceeds_d_c' ORDER BY job_id""",
    ),
    Example(
        "gradient_scale",
        "The ten heads with the most concentrated attention",
        """\
SELECT layer, head, median, q05, q95 FROM head_summary
WHERE job_id = 1 AND metric = 'log10_d_a' ORDER BY median DESC, layer, head LIMIT 10""",
    ),
    Example(
        "gradient_scale",
        "The same head in two jobs",
        """\
SELECT layer, head, a.median AS first, b.median AS second, b.median - a.median AS difference
FROM head_summary AS a JOIN head_summary AS b USING (layer, head, metric)
WHERE a.job_id = 1 AND b.job_id = 2 AND metric = 'log10_d_a'
ORDER BY abs(b.median - a.median) DESC NULLS LAST LIMIT 10""",
    ),
    Example(
        "gradient_scale",
        "The rows of one head in one sequence",
        """\
SELECT query, log10_d_a, log10_d_c FROM gradient_scale
WHERE job_id = 1 AND layer = 0 AND head = 1 AND sequence = 0 ORDER BY query""",
    ),
    Example(
        "gradient_scale",
        "The queries with the largest D_c, with their token and its document",
        """\
SELECT g.layer, g.head, g.sequence, g.query, g.log10_d_c, token.text, token.document_name
FROM (SELECT * FROM gradient_scale WHERE job_id = 1 AND log10_d_c < 'Infinity'
      ORDER BY log10_d_c DESC, layer, head, sequence, query LIMIT 10) AS g
JOIN token ON token.job_id = 1 AND token.sequence = g.sequence AND token.position = g.query
ORDER BY g.log10_d_c DESC""",
    ),
    Example(
        "gradient_scale",
        "Correlation of the two within each layer",
        """\
SELECT layer, corr(log10_d_a, log10_d_c), count(*) FROM gradient_scale
WHERE job_id = 1 AND log10_d_a < 'Infinity' AND log10_d_c < 'Infinity' GROUP BY layer ORDER BY layer""",
    ),
    Example(
        "attention_profile",
        "Table 5 with thresholds of one's own, from the profiles of heads",
        """\
SELECT job_id, count(*) AS heads, avg(entropy_nats) AS entropy_nats, avg(top_weight) AS top_weight,
       count(*) FILTER (WHERE local_mass > 0.6) AS heads_local,
       count(*) FILTER (WHERE induction_score > 0.4) AS induction_heads
FROM attention_profile_heads GROUP BY job_id ORDER BY job_id""",
    ),
    Example(
        "attention_profile",
        "The strongest induction heads, and where they look in text",
        """\
SELECT layer, head, induction_score, duplicate_score, previous_score, sink_mass, local_mass
FROM attention_profile_heads WHERE job_id = 1 ORDER BY induction_score DESC, layer, head LIMIT 10""",
    ),
    Example(
        "buried_keys",
        "The strongest buried keys: coalitions on keys that no agreeing head ranks among its first hundred",
        """\
SELECT k.layer, k.sequence, k.query, k.key, token.text, k.direction, k.heads, k.score, k.attention_rank_smallest
FROM (SELECT * FROM buried_key WHERE job_id = 1 AND attention_rank_smallest > 100
      ORDER BY score DESC, layer, sequence, query, place LIMIT 10) AS k
LEFT JOIN token ON token.job_id = 1 AND token.sequence = k.sequence AND token.position = k.key
ORDER BY k.score DESC""",
    ),
    Example(
        "buried_keys",
        "By layer: share of queries where no key qualifies, and how many heads agree on a key at most, on average",
        """\
SELECT layer, avg((qualifying = 0)::integer) AS abstains, avg(most_heads) AS most_heads
FROM buried_query WHERE job_id = 1 GROUP BY layer ORDER BY layer""",
    ),
    Example(
        "jacobian_spectrum",
        "Heads by median effective rank of dy/dq, lowest first",
        """\
SELECT layer, head, rank.median AS effective_rank, rank.q95, weight.median AS top_attention
FROM head_summary AS rank JOIN head_summary AS weight USING (job_id, layer, head)
WHERE job_id = 1 AND rank.metric = 'effective_rank' AND weight.metric = 'top_attention'
ORDER BY rank.median, layer, head LIMIT 20""",
    ),
    Example(
        "jacobian_spectrum",
        "Spectrum of one head: singular values relative to the largest, over its sequences",
        """\
SELECT mode, avg(median) AS median, min(q05) AS q05, max(q95) AS q95 FROM jacobian_mode
WHERE job_id = 1 AND layer = 0 AND head = 1 AND queries > 0 GROUP BY mode ORDER BY mode""",
    ),
    Example(
        "shared_routing",
        "Extra loss of each layer: mean, 95 % quantile, and share of tokens that lose more than a nat",
        """\
SELECT layer, loss.mean AS extra_loss_nats, loss.q95, worse.mean AS share
FROM layer_summary AS loss JOIN layer_summary AS worse USING (job_id, layer)
WHERE job_id = 1 AND loss.metric = 'extra_loss_nats' AND worse.metric = 'loss_rises_by_a_nat' ORDER BY layer""",
    ),
    Example(
        "shared_routing",
        "The tokens that lose most, with the token that was to be predicted",
        """\
SELECT worst.layer, worst.sequence, worst.query, asked.text AS token, next.text AS next_token,
       worst.loss_nats, worst.extra_loss_nats
FROM (SELECT * FROM shared_routing WHERE job_id = 1 AND extra_loss_nats < 'Infinity'
      ORDER BY extra_loss_nats DESC, layer, sequence, query LIMIT 10) AS worst
JOIN token AS asked ON asked.job_id = 1 AND asked.sequence = worst.sequence AND asked.position = worst.query
JOIN token AS next ON next.job_id = 1 AND next.sequence = worst.sequence AND next.position = worst.query + 1
ORDER BY worst.extra_loss_nats DESC""",
    ),
    Example(
        "ratchet",
        "Share of queries by layer whose top key extends its lead in advantage, and with it its odds to the runner-up",
        """\
SELECT layer, lead.mean AS lead_grows, ratchet.mean AS ratchets
FROM layer_summary AS lead JOIN layer_summary AS ratchet USING (job_id, layer)
WHERE job_id = 1 AND lead.metric = 'lead_grows' AND ratchet.metric = 'ratchets' ORDER BY layer""",
    ),
    Example(
        "ratchet",
        "Sources by attention weight: how many there are, and which shares gain advantage and score",
        """\
SELECT band, sum(sources) AS sources, sum(gain_positive) / sum(sources) AS gain_advantage,
       sum(step_positive) / sum(sources) AS gain_score
FROM ratchet_band WHERE job_id = 1 AND sources > 0 GROUP BY band ORDER BY band""",
    ),
    Example(
        "pattern_stability",
        "Distance between the last checkpoints of every two runs, over the layers",
        """\
WITH last AS (SELECT DISTINCT ON (run) * FROM pattern_checkpoint WHERE job_id = 1 ORDER BY run, step DESC)
SELECT a.run, a.step, b.run AS other_run, b.step AS other_step, avg(js_nats) AS js_nats,
       avg(paired_js_nats) AS paired_js_nats, avg(assigned_elsewhere) AS assigned_elsewhere
FROM pattern_stability JOIN last AS a ON a.number = first JOIN last AS b ON b.number = second
WHERE pattern_stability.job_id = 1 GROUP BY a.run, a.step, b.run, b.step ORDER BY a.run, b.run""",
    ),
    Example(
        "pattern_stability",
        "How far each checkpoint is from the last of its run, by layer",
        """\
SELECT a.run, a.step, layer, js_nats
FROM pattern_stability JOIN pattern_checkpoint AS a USING (job_id) JOIN pattern_checkpoint AS b USING (job_id, run)
WHERE job_id = 1 AND a.step < b.step AND least(a.number, b.number) = first AND greatest(a.number, b.number) = second
  AND b.step = (SELECT max(step) FROM pattern_checkpoint AS c WHERE c.job_id = 1 AND c.run = b.run)
ORDER BY a.run, a.step, layer""",
    ),
    Example(
        "entropy_bound",
        "Heads whose entropy is nearest its bound",
        """\
SELECT layer, head, tightness, entropy_nats, gap_nats, sigma FROM entropy_bound_heads
WHERE job_id = 1 AND tightness IS NOT NULL ORDER BY tightness DESC, layer, head LIMIT 20""",
    ),
    Example(
        "entropy_bound",
        "Heads that are sparse and of low rank: most weight on eight keys, and ranks under a tenth of what they can be",
        """\
SELECT layer, head, top_8, stable_rank, effective_rank, rank_rows FROM entropy_bound_heads
WHERE job_id = 1 AND top_8 > 0.5 AND effective_rank < 0.1 * rank_rows
ORDER BY effective_rank, layer, head LIMIT 20""",
    ),
    Example(
        "calibration",
        "r by layer, and the share of queries where it is above 1.5",
        """\
SELECT layer, r.median, r.q05, r.q95, above.mean AS share_above
FROM layer_summary AS r JOIN layer_summary AS above USING (job_id, layer)
WHERE job_id = 1 AND r.metric = 'r' AND above.metric = 'r_above_1_5' ORDER BY layer""",
    ),
    Example(
        "calibration",
        "Attention-transfer sweeps on calibrated rows: the observed token's loss moves, the expected one hardly does",
        """\
SELECT layer, head, sequence, query, r, hard_change_nats, soft_change_nats FROM transfer_sweep_change
WHERE job_id = 1 AND r < 0.1 ORDER BY hard_change_nats DESC, layer, head, sequence, query LIMIT 10""",
    ),
    Example(
        WATCHES,
        "Alerts that nobody has acknowledged, newest first",
        """\
SELECT id, watch, run_id, step, layer, head, metric, value, threshold, message FROM alert
WHERE acknowledged_at IS NULL ORDER BY id DESC LIMIT 50""",
    ),
    Example(
        WATCHES,
        "The heads that a rule raised first, and the validation loss of the run before and after",
        """\
SELECT alert.run_id, layer, head, alert.step, alert.value AS entropy_nats,
       (SELECT value FROM training_metric AS loss WHERE loss.run_id = alert.run_id AND loss.step <= alert.step
          AND metric = 'validation_loss_nats' ORDER BY loss.step DESC LIMIT 1) AS loss_before_nats,
       (SELECT value FROM training_metric AS loss WHERE loss.run_id = alert.run_id AND loss.step > alert.step
          AND metric = 'validation_loss_nats' ORDER BY loss.step LIMIT 1) AS loss_after_nats
FROM alert WHERE alert.metric = 'entropy_nats' ORDER BY alert.step, alert.value LIMIT 20""",
    ),
    Example(
        WATCHES,
        "Checkpoints of a watch with the metric that its probes measured there",
        """\
SELECT step, watch_model.source, job_summary.mean AS entropy_nats, judged, watch_model.problem
FROM watch_model LEFT JOIN suite_job USING (suite_id) LEFT JOIN job_summary USING (job_id)
WHERE watch_id = 1 AND (metric = 'entropy_nats' OR metric IS NULL) ORDER BY step""",
    ),
    Example(
        WATCHES,
        "Where rules are met now",
        """\
SELECT watch.name, watch.rules -> watch_crossing.rule AS rule, run_id, layer, head, step, value, since
FROM watch_crossing JOIN watch ON watch.id = watch_id ORDER BY since DESC""",
    ),
)
