CREATE VIEW analysis.checkpoint AS
SELECT
    checkpoint.id,
    checkpoint.run_id,
    run.name AS run,
    run.variant,
    run.seed,
    checkpoint.step,
    checkpoint.reasons,
    checkpoint.validation_loss_nats,
    checkpoint.model_type,
    checkpoint.config,
    checkpoint.identity,
    checkpoint.source,
    checkpoint.resumable,
    files.bytes,
    checkpoint.created_at
FROM keyhole.checkpoint
JOIN keyhole.run ON run.id = checkpoint.run_id
CROSS JOIN LATERAL (
    SELECT coalesce(sum(size), 0)::bigint AS bytes FROM keyhole.checkpoint_file WHERE checkpoint_id = checkpoint.id
) AS files;

COMMENT ON VIEW analysis.checkpoint IS 'Models at steps of runs. As a model source: checkpoint:ID, or run:RUN@STEP.';
COMMENT ON COLUMN analysis.checkpoint.id IS 'number of the checkpoint';
COMMENT ON COLUMN analysis.checkpoint.run_id IS 'the run';
COMMENT ON COLUMN analysis.checkpoint.run IS 'name of the run';
COMMENT ON COLUMN analysis.checkpoint.variant IS 'variant of the run';
COMMENT ON COLUMN analysis.checkpoint.seed IS 'seed of the run';
COMMENT ON COLUMN analysis.checkpoint.step IS 'optimizer steps taken';
COMMENT ON COLUMN analysis.checkpoint.reasons IS 'why it is kept: first, interval, log, asked, best, last, resume, imported';
COMMENT ON COLUMN analysis.checkpoint.validation_loss_nats IS 'mean loss on held-out tokens; NULL if it was not measured at this step';
COMMENT ON COLUMN analysis.checkpoint.model_type IS 'architecture';
COMMENT ON COLUMN analysis.checkpoint.config IS 'config.json';
COMMENT ON COLUMN analysis.checkpoint.identity IS 'digest of the model''s files, or commit of an imported one; model_identity of jobs that measured it';
COMMENT ON COLUMN analysis.checkpoint.source IS 'where the files of an imported one lie; NULL if they are stored here';
COMMENT ON COLUMN analysis.checkpoint.resumable IS 'whether the state of the optimizer is with it';
COMMENT ON COLUMN analysis.checkpoint.bytes IS 'size of its files; equal parts of several checkpoints are stored once';
COMMENT ON COLUMN analysis.checkpoint.created_at IS 'when it was stored';

CREATE VIEW analysis.checkpoint_storage AS
SELECT count(*) FILTER (WHERE used)::bigint AS pieces,
       coalesce(sum(size) FILTER (WHERE used), 0)::bigint AS bytes,
       coalesce(sum(size) FILTER (WHERE used AND outside), 0)::bigint AS bytes_outside,
       coalesce(sum(size) FILTER (WHERE NOT used), 0)::bigint AS bytes_unused
FROM (
    SELECT size, content IS NULL AS outside,
           EXISTS (SELECT FROM keyhole.checkpoint_piece WHERE checkpoint_piece.sha256 = piece.sha256) AS used
    FROM keyhole.piece
) AS piece;

COMMENT ON VIEW analysis.checkpoint_storage IS 'What all checkpoints take together, equal parts counted once.';
COMMENT ON COLUMN analysis.checkpoint_storage.pieces IS 'pieces that checkpoints are made of';
COMMENT ON COLUMN analysis.checkpoint_storage.bytes IS 'their bytes';
COMMENT ON COLUMN analysis.checkpoint_storage.bytes_outside IS 'those that lie in a store outside the database';
COMMENT ON COLUMN analysis.checkpoint_storage.bytes_unused IS 'bytes of pieces whose checkpoints are gone; they are removed an hour later';
