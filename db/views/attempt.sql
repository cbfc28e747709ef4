CREATE VIEW analysis.attempt AS
SELECT job_id, number, worker, device, started_at, heartbeat_at, ended_at, outcome, detail
FROM keyhole.attempt;

COMMENT ON VIEW analysis.attempt IS 'Attempts: one child process of one worker on one job.';
COMMENT ON COLUMN analysis.attempt.job_id IS 'the job it worked on';
COMMENT ON COLUMN analysis.attempt.number IS 'first, second, … attempt on the job';
COMMENT ON COLUMN analysis.attempt.worker IS 'name of the worker';
COMMENT ON COLUMN analysis.attempt.device IS 'device of the child process';
COMMENT ON COLUMN analysis.attempt.started_at IS 'time it was opened';
COMMENT ON COLUMN analysis.attempt.heartbeat_at IS 'last sign of life';
COMMENT ON COLUMN analysis.attempt.ended_at IS 'time it ended; NULL while it lives';
COMMENT ON COLUMN analysis.attempt.outcome IS 'completed, failed, crashed, lost, cancelled, timed_out or released';
COMMENT ON COLUMN analysis.attempt.detail IS 'why it ended so';
