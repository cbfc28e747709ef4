CREATE VIEW analysis.model AS
SELECT id, source, identity, model_type, architecture, created_at FROM keyhole.model;

COMMENT ON VIEW analysis.model IS 'Models that were loaded at least once.';
COMMENT ON COLUMN analysis.model.id IS 'number of the model; job.model_id';
COMMENT ON COLUMN analysis.model.source IS 'source by which it was first named';
COMMENT ON COLUMN analysis.model.identity IS 'commit or hash that pins its files';
COMMENT ON COLUMN analysis.model.model_type IS 'architecture family, as in the model''s config';
COMMENT ON COLUMN analysis.model.architecture IS 'layers, heads, kv_heads, d_head, d_model, vocabulary_size, n_ctx';
COMMENT ON COLUMN analysis.model.created_at IS 'time it was first loaded';
