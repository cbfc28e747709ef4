CREATE VIEW analysis.job_event AS
SELECT id, job_id, at, type, data FROM keyhole.job_event;

COMMENT ON VIEW analysis.job_event IS 'History of the jobs, one row per change.';
COMMENT ON COLUMN analysis.job_event.id IS 'orders all events';
COMMENT ON COLUMN analysis.job_event.job_id IS 'the job';
COMMENT ON COLUMN analysis.job_event.at IS 'time of the change';
COMMENT ON COLUMN analysis.job_event.type IS 'queued, attempt, phase, progress, or the state that was reached';
COMMENT ON COLUMN analysis.job_event.data IS 'details of the change';
