-- Checkpoints: files made of content-addressed pieces. A row of checkpoint stands only for what is whole.

CREATE TABLE keyhole.piece (
    sha256    bytea PRIMARY KEY CHECK (length(sha256) = 32),
    size      integer NOT NULL,
    content   bytea,
    store     text,
    seen_at   timestamptz DEFAULT clock_timestamp(),
    CHECK (content IS NULL OR seen_at IS NOT NULL),
    CHECK ((content IS NULL) = (store IS NOT NULL))
);
ALTER TABLE keyhole.piece ALTER COLUMN content SET STORAGE EXTERNAL;
COMMENT ON TABLE keyhole.piece IS 'Bytes by their SHA-256, at most some MiB each: equal tensors are stored once.';
COMMENT ON COLUMN keyhole.piece.sha256 IS 'SHA-256 of the bytes';
COMMENT ON COLUMN keyhole.piece.size IS 'number of bytes';
COMMENT ON COLUMN keyhole.piece.content IS 'the bytes; null if they lie in a store outside the database';
COMMENT ON COLUMN keyhole.piece.store IS 'address of the store outside, as KEYHOLE_CHECKPOINT_STORE gave it';
COMMENT ON COLUMN keyhole.piece.seen_at IS 'when a writer last asked for it; what nobody refers to is removed an hour later. Null while it is being written to a store outside, or removed from it';

CREATE TABLE keyhole.checkpoint (
    id                    integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id                integer NOT NULL REFERENCES keyhole.run ON DELETE CASCADE,
    step                  integer NOT NULL,
    reasons               text[] NOT NULL,
    identity              text NOT NULL,
    source                text,
    model_type            text NOT NULL,
    config                jsonb NOT NULL,
    validation_loss_nats  double precision,
    resumable             boolean NOT NULL DEFAULT false,
    created_at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (run_id, step)
);
COMMENT ON TABLE keyhole.checkpoint IS 'A model at one step of a run, whole. Its source is checkpoint:ID.';
COMMENT ON COLUMN keyhole.checkpoint.id IS 'number of the checkpoint';
COMMENT ON COLUMN keyhole.checkpoint.run_id IS 'the run';
COMMENT ON COLUMN keyhole.checkpoint.step IS 'optimizer steps taken';
COMMENT ON COLUMN keyhole.checkpoint.reasons IS 'why it is kept: first, interval, log, asked, best, last, resume, imported';
COMMENT ON COLUMN keyhole.checkpoint.identity IS 'digest of the model''s files, or commit of an imported one';
COMMENT ON COLUMN keyhole.checkpoint.source IS 'where the files of an imported one lie; null if they are stored here';
COMMENT ON COLUMN keyhole.checkpoint.model_type IS 'architecture';
COMMENT ON COLUMN keyhole.checkpoint.config IS 'config.json';
COMMENT ON COLUMN keyhole.checkpoint.validation_loss_nats IS 'mean loss on the held-out tokens; null if it was not measured at this step';
COMMENT ON COLUMN keyhole.checkpoint.resumable IS 'whether the state of the optimizer is with it';
COMMENT ON COLUMN keyhole.checkpoint.created_at IS 'when it was stored';

CREATE TABLE keyhole.checkpoint_file (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    checkpoint_id  integer NOT NULL REFERENCES keyhole.checkpoint ON DELETE CASCADE,
    name           text NOT NULL,
    size           bigint NOT NULL,
    sha256         bytea NOT NULL,
    UNIQUE (checkpoint_id, name)
);
COMMENT ON TABLE keyhole.checkpoint_file IS 'Files of a checkpoint: config.json, model.safetensors, tokenizer.json, resume.safetensors.';
COMMENT ON COLUMN keyhole.checkpoint_file.id IS 'number of the file';
COMMENT ON COLUMN keyhole.checkpoint_file.checkpoint_id IS 'the checkpoint';
COMMENT ON COLUMN keyhole.checkpoint_file.name IS 'name of the file';
COMMENT ON COLUMN keyhole.checkpoint_file.size IS 'number of bytes';
COMMENT ON COLUMN keyhole.checkpoint_file.sha256 IS 'SHA-256 of the whole file';

CREATE TABLE keyhole.checkpoint_piece (
    file_id  bigint NOT NULL REFERENCES keyhole.checkpoint_file ON DELETE CASCADE,
    number   integer NOT NULL,
    sha256   bytea NOT NULL REFERENCES keyhole.piece,
    PRIMARY KEY (file_id, number)
);
CREATE INDEX checkpoint_piece_piece ON keyhole.checkpoint_piece (sha256);
COMMENT ON TABLE keyhole.checkpoint_piece IS 'Pieces of a checkpoint''s file, in their order.';
COMMENT ON COLUMN keyhole.checkpoint_piece.file_id IS 'the file';
COMMENT ON COLUMN keyhole.checkpoint_piece.number IS 'place in the file, 0-based';
COMMENT ON COLUMN keyhole.checkpoint_piece.sha256 IS 'the piece';
