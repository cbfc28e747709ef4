CREATE VIEW analysis.job AS
SELECT
    job.id,
    job.kind,
    job.state,
    job.phase,
    job.label,
    job.model_source AS model,
    job.dataset_source AS dataset,
    job.parameters,
    job.rows,
    job.shards,
    job.shards_done,
    job.priority,
    api_token.name AS submitted_by,
    job.created_at,
    job.started_at,
    job.finished_at,
    extract(epoch FROM coalesce(job.finished_at, now()) - job.started_at)::double precision AS duration_s,
    job.time_limit_s,
    job.version,
    job.model_identity,
    job.model_id,
    job.dataset_identity,
    job.dataset_id,
    dataset.fingerprint AS dataset_fingerprint,
    job.environment,
    job.checks,
    job.error_code,
    job.error_message,
    job.error_hint,
    job.error_traceback,
    job.crashes,
    job.max_attempts
FROM keyhole.job
LEFT JOIN keyhole.api_token ON api_token.id = job.submitted_by
LEFT JOIN keyhole.dataset ON dataset.id = job.dataset_id;

COMMENT ON VIEW analysis.job IS 'Jobs: what was asked, how far it is, on what it ran, and how it ended.';
COMMENT ON COLUMN analysis.job.id IS 'number of the job; job_id everywhere else';
COMMENT ON COLUMN analysis.job.kind IS 'kind of job, such as gradient_scale';
COMMENT ON COLUMN analysis.job.state IS 'queued, running, cancelling, succeeded, failed or cancelled';
COMMENT ON COLUMN analysis.job.phase IS 'what a running job is doing, such as measuring';
COMMENT ON COLUMN analysis.job.label IS 'name given at submission';
COMMENT ON COLUMN analysis.job.model IS 'source of the model, as submitted';
COMMENT ON COLUMN analysis.job.dataset IS 'source of the data set, as submitted';
COMMENT ON COLUMN analysis.job.parameters IS 'parameters of the kind, with the defaults filled in';
COMMENT ON COLUMN analysis.job.rows IS 'rows stored in per-query tables so far';
COMMENT ON COLUMN analysis.job.shards IS 'parts the job is cut into';
COMMENT ON COLUMN analysis.job.shards_done IS 'parts whose rows are stored';
COMMENT ON COLUMN analysis.job.priority IS 'higher runs first within the queue';
COMMENT ON COLUMN analysis.job.submitted_by IS 'name of the API token that submitted it';
COMMENT ON COLUMN analysis.job.created_at IS 'time of submission';
COMMENT ON COLUMN analysis.job.started_at IS 'time of the first attempt since submission or the last retry';
COMMENT ON COLUMN analysis.job.finished_at IS 'time it reached succeeded, failed or cancelled';
COMMENT ON COLUMN analysis.job.duration_s IS 'seconds from start to finish, or until now';
COMMENT ON COLUMN analysis.job.time_limit_s IS 'seconds after which it fails';
COMMENT ON COLUMN analysis.job.version IS 'version of the computation of its kind';
COMMENT ON COLUMN analysis.job.model_identity IS 'commit or hash that pins the model''s files';
COMMENT ON COLUMN analysis.job.model_id IS 'number of the model in the view model, once loaded';
COMMENT ON COLUMN analysis.job.dataset_identity IS 'commit or hash that pins the data set''s files';
COMMENT ON COLUMN analysis.job.dataset_id IS 'number of the tokenized data set in the view dataset, once read';
COMMENT ON COLUMN analysis.job.dataset_fingerprint IS 'SHA-256 of its tokens and document boundaries';
COMMENT ON COLUMN analysis.job.environment IS 'device, dtype, versions and host it was computed on';
COMMENT ON COLUMN analysis.job.checks IS 'parity of the seam and the probe''s self-checks';
COMMENT ON COLUMN analysis.job.error_code IS 'code of the error that failed it';
COMMENT ON COLUMN analysis.job.error_message IS 'what went wrong';
COMMENT ON COLUMN analysis.job.error_hint IS 'what to do next';
COMMENT ON COLUMN analysis.job.error_traceback IS 'Python traceback of the error';
COMMENT ON COLUMN analysis.job.crashes IS 'attempts in a row that died without finishing a shard';
COMMENT ON COLUMN analysis.job.max_attempts IS 'such attempts after which it fails';
