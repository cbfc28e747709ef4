-- Both views start from the job, so that a condition on job_id and sequence reads one array; the position is
-- filtered while that array is unrolled, before text and document are looked up.
CREATE VIEW analysis.token AS
SELECT
    job.id AS job_id,
    sequence.sequence,
    (unrolled.ordinality - 1)::integer AS position,
    unrolled.token_id,
    vocabulary.text,
    held.document,
    held.name AS document_name
FROM keyhole.job
JOIN keyhole.dataset ON dataset.id = job.dataset_id
JOIN keyhole.sequence ON sequence.dataset_id = dataset.id
CROSS JOIN LATERAL unnest(sequence.token_ids) WITH ORDINALITY AS unrolled (token_id, ordinality)
LEFT JOIN keyhole.vocabulary
    ON vocabulary.tokenizer_id = dataset.tokenizer_id AND vocabulary.token_id = unrolled.token_id
LEFT JOIN keyhole.sequence_document AS held
    ON held.dataset_id = dataset.id AND held.sequence = sequence.sequence
    AND unrolled.ordinality - 1 >= held.start_position AND unrolled.ordinality - 1 < held.stop_position;

COMMENT ON VIEW analysis.token IS 'Tokens a job measured, with text and document; give job_id and sequence.';
COMMENT ON COLUMN analysis.token.job_id IS 'the job';
COMMENT ON COLUMN analysis.token.sequence IS 'sequence of the job''s data set, 0-based';
COMMENT ON COLUMN analysis.token.position IS 'position in the sequence, 0-based; a row''s query is such a position';
COMMENT ON COLUMN analysis.token.token_id IS 'number of the token in the vocabulary';
COMMENT ON COLUMN analysis.token.text IS 'text of the token; NULL if the data set came as bare token ids';
COMMENT ON COLUMN analysis.token.document IS 'number of the document in the data set that the token comes from';
COMMENT ON COLUMN analysis.token.document_name IS 'name of that document, if it has one';

CREATE VIEW analysis.sequence_text AS
SELECT
    job.id AS job_id,
    sequence.sequence,
    (
        SELECT string_agg(vocabulary.text, '' ORDER BY unrolled.ordinality)
        FROM unnest(sequence.token_ids) WITH ORDINALITY AS unrolled (token_id, ordinality)
        JOIN keyhole.vocabulary
            ON vocabulary.tokenizer_id = dataset.tokenizer_id AND vocabulary.token_id = unrolled.token_id
    ) AS text
FROM keyhole.job
JOIN keyhole.dataset ON dataset.id = job.dataset_id
JOIN keyhole.sequence ON sequence.dataset_id = dataset.id;

COMMENT ON VIEW analysis.sequence_text IS 'Text of whole sequences, the texts of the tokens put together.';
COMMENT ON COLUMN analysis.sequence_text.job_id IS 'the job';
COMMENT ON COLUMN analysis.sequence_text.sequence IS 'sequence of the job''s data set, 0-based';
COMMENT ON COLUMN analysis.sequence_text.text IS 'its text; NULL if the data set came as bare token ids';
