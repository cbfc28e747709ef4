CREATE VIEW analysis.training_metric AS
SELECT run_id, step, metric, layer, head, value FROM keyhole.training_metric;

COMMENT ON VIEW analysis.training_metric IS 'Numbers of a run by step, in long form; names are in docs/training/training.md.';
COMMENT ON COLUMN analysis.training_metric.run_id IS 'the run';
COMMENT ON COLUMN analysis.training_metric.step IS 'optimizer steps taken when it was measured';
COMMENT ON COLUMN analysis.training_metric.metric IS 'name of the number, with its unit';
COMMENT ON COLUMN analysis.training_metric.layer IS 'layer, 0-based; NULL where the number is the model''s';
COMMENT ON COLUMN analysis.training_metric.head IS 'query head, 0-based; NULL where the number is the layer''s or the model''s';
COMMENT ON COLUMN analysis.training_metric.value IS 'the number';

CREATE VIEW analysis.training_matrix AS
SELECT run_id, step, layer, matrix, height, width, weight_sigma, update_sigma FROM keyhole.training_matrix;

COMMENT ON VIEW analysis.training_matrix IS 'Spectral norms of a run''s weight matrices and of their updates, by step.';
COMMENT ON COLUMN analysis.training_matrix.run_id IS 'the run';
COMMENT ON COLUMN analysis.training_matrix.step IS 'optimizer steps taken when it was measured';
COMMENT ON COLUMN analysis.training_matrix.layer IS 'layer, 0-based; NULL for matrices outside of layers';
COMMENT ON COLUMN analysis.training_matrix.matrix IS 'name of the matrix within its layer';
COMMENT ON COLUMN analysis.training_matrix.height IS 'outputs of the matrix';
COMMENT ON COLUMN analysis.training_matrix.width IS 'inputs of the matrix';
COMMENT ON COLUMN analysis.training_matrix.weight_sigma IS 'largest singular value of the weight';
COMMENT ON COLUMN analysis.training_matrix.update_sigma IS 'largest singular value of the change by the last step, learning rate included; NULL at step 0';
