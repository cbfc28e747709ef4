CREATE VIEW analysis.job_model AS
SELECT id AS job_id, 0 AS number, model_source AS model, model_identity, model_id FROM keyhole.job
UNION ALL
SELECT job_id, number + 1, source, identity, model_id FROM keyhole.job_model;

COMMENT ON VIEW analysis.job_model IS 'Every model that a job reads: its first, and those that its parameters name.';
COMMENT ON COLUMN analysis.job_model.job_id IS 'the job';
COMMENT ON COLUMN analysis.job_model.number IS '0 for the job''s first model, then in the order of its parameters';
COMMENT ON COLUMN analysis.job_model.model IS 'source of the model; a hub model by its commit';
COMMENT ON COLUMN analysis.job_model.model_identity IS 'digest of its files, or its commit';
COMMENT ON COLUMN analysis.job_model.model_id IS 'the model in the view model, once a worker has loaded it';
