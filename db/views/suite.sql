CREATE VIEW analysis.suite AS
SELECT suite.id, suite.name, api_token.name AS submitted_by, suite.created_at
FROM keyhole.suite
LEFT JOIN keyhole.api_token ON api_token.id = suite.submitted_by;

COMMENT ON VIEW analysis.suite IS 'Suites: jobs submitted together, in one stage or several.';
COMMENT ON COLUMN analysis.suite.id IS 'number of the suite; suite_id everywhere else';
COMMENT ON COLUMN analysis.suite.name IS 'name given at submission, else that of the preset or the kinds';
COMMENT ON COLUMN analysis.suite.submitted_by IS 'name of the API token that submitted it';
COMMENT ON COLUMN analysis.suite.created_at IS 'time of submission';

CREATE VIEW analysis.suite_job AS
SELECT suite_id, position, job_id, reused, stage FROM keyhole.suite_job;

COMMENT ON VIEW analysis.suite_job IS 'The jobs of each suite.';
COMMENT ON COLUMN analysis.suite_job.suite_id IS 'the suite';
COMMENT ON COLUMN analysis.suite_job.position IS 'place in the suite, 0-based: by stage, then by probe, then by model';
COMMENT ON COLUMN analysis.suite_job.job_id IS 'the job';
COMMENT ON COLUMN analysis.suite_job.reused IS 'whether the job stood already when it became part of the suite';
COMMENT ON COLUMN analysis.suite_job.stage IS 'stage in which it was submitted, 0-based';

CREATE VIEW analysis.suite_stage AS
SELECT suite_id, number, state, detail, body -> 'models' AS models,
       ARRAY (SELECT DISTINCT probe ->> 'kind' FROM jsonb_array_elements(body -> 'probes') AS probe) AS kinds,
       submitted_at
FROM keyhole.suite_stage;

COMMENT ON VIEW analysis.suite_stage IS 'Stages of suites after the first, which is submitted at once.';
COMMENT ON COLUMN analysis.suite_stage.suite_id IS 'the suite';
COMMENT ON COLUMN analysis.suite_stage.number IS 'place after the first stage, which is 0';
COMMENT ON COLUMN analysis.suite_stage.state IS 'waiting, submitted or skipped';
COMMENT ON COLUMN analysis.suite_stage.detail IS 'why it was skipped, or what keeps it waiting though its turn has come';
COMMENT ON COLUMN analysis.suite_stage.models IS 'sources of its models, as submitted; runs are those of the suite';
COMMENT ON COLUMN analysis.suite_stage.kinds IS 'kinds of its jobs';
COMMENT ON COLUMN analysis.suite_stage.submitted_at IS 'when its jobs were submitted';
