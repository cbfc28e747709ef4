CREATE VIEW analysis.dataset AS
SELECT dataset.id, dataset.source, dataset.identity, dataset.fingerprint, dataset.sequences, dataset.length,
       tokenizer.sha256 AS tokenizer_sha256, tokenizer.vocabulary_size, dataset.created_at
FROM keyhole.dataset LEFT JOIN keyhole.tokenizer ON tokenizer.id = dataset.tokenizer_id;

COMMENT ON VIEW analysis.dataset IS 'Tokenized data sets: the sequences that jobs measured.';
COMMENT ON COLUMN analysis.dataset.id IS 'number of the data set; job.dataset_id';
COMMENT ON COLUMN analysis.dataset.source IS 'source by which it was first named';
COMMENT ON COLUMN analysis.dataset.identity IS 'commit or hash that pins its files';
COMMENT ON COLUMN analysis.dataset.fingerprint IS 'SHA-256 of the tokens and document boundaries';
COMMENT ON COLUMN analysis.dataset.sequences IS 'number of sequences';
COMMENT ON COLUMN analysis.dataset.length IS 'tokens in each sequence';
COMMENT ON COLUMN analysis.dataset.tokenizer_sha256 IS 'SHA-256 of the tokenizer; NULL if the text of tokens is unknown';
COMMENT ON COLUMN analysis.dataset.vocabulary_size IS 'number of tokens the tokenizer knows';
COMMENT ON COLUMN analysis.dataset.created_at IS 'time it was first read';
