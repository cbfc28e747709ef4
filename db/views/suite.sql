CREATE VIEW analysis.suite AS
SELECT suite.id, suite.name, api_token.name AS submitted_by, suite.created_at
FROM keyhole.suite
LEFT JOIN keyhole.api_token ON api_token.id = suite.submitted_by;

COMMENT ON VIEW analysis.suite IS 'Suites: probes submitted together, on one model or a series of models.';
COMMENT ON COLUMN analysis.suite.id IS 'number of the suite; suite_id everywhere else';
COMMENT ON COLUMN analysis.suite.name IS 'name given at submission, else that of the preset or the kinds';
COMMENT ON COLUMN analysis.suite.submitted_by IS 'name of the API token that submitted it';
COMMENT ON COLUMN analysis.suite.created_at IS 'time of submission';

CREATE VIEW analysis.suite_job AS
SELECT suite_id, position, job_id, reused FROM keyhole.suite_job;

COMMENT ON VIEW analysis.suite_job IS 'The jobs of each suite.';
COMMENT ON COLUMN analysis.suite_job.suite_id IS 'the suite';
COMMENT ON COLUMN analysis.suite_job.position IS 'place in the suite, 0-based: by probe, then by model';
COMMENT ON COLUMN analysis.suite_job.job_id IS 'the job';
COMMENT ON COLUMN analysis.suite_job.reused IS 'whether the job stood already when the suite was submitted';
