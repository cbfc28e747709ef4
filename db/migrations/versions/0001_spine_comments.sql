-- Comments of the tables in 0001_spine.sql; those of per-query tables and summaries come from their contracts.

COMMENT ON TABLE keyhole.api_token IS 'API tokens; only hashes are stored.';
COMMENT ON COLUMN keyhole.api_token.id IS 'number of the token';
COMMENT ON COLUMN keyhole.api_token.name IS 'who or what it was made for';
COMMENT ON COLUMN keyhole.api_token.scope IS 'read, submit or admin; each includes the one before';
COMMENT ON COLUMN keyhole.api_token.prefix IS 'first characters, to recognise it';
COMMENT ON COLUMN keyhole.api_token.sha256 IS 'SHA-256 of the token';
COMMENT ON COLUMN keyhole.api_token.created_at IS 'time it was made';
COMMENT ON COLUMN keyhole.api_token.expires_at IS 'time from which it is refused; NULL never';
COMMENT ON COLUMN keyhole.api_token.last_used_at IS 'last use, to the minute';
COMMENT ON COLUMN keyhole.api_token.revoked_at IS 'time it was revoked; NULL if it was not';

COMMENT ON TABLE keyhole.model IS 'Models that were loaded at least once.';
COMMENT ON COLUMN keyhole.model.id IS 'number of the model';
COMMENT ON COLUMN keyhole.model.identity IS 'commit or hash that pins its files';
COMMENT ON COLUMN keyhole.model.source IS 'source by which it was first named';
COMMENT ON COLUMN keyhole.model.model_type IS 'architecture family, as in the model''s config';
COMMENT ON COLUMN keyhole.model.architecture IS 'layers, heads, kv_heads, d_head, d_model, vocabulary_size, n_ctx';
COMMENT ON COLUMN keyhole.model.created_at IS 'time it was first loaded';

COMMENT ON TABLE keyhole.tokenizer IS 'Tokenizers whose vocabulary is stored.';
COMMENT ON COLUMN keyhole.tokenizer.id IS 'number of the tokenizer';
COMMENT ON COLUMN keyhole.tokenizer.sha256 IS 'SHA-256 that identifies it';
COMMENT ON COLUMN keyhole.tokenizer.vocabulary_size IS 'number of tokens it knows';

COMMENT ON TABLE keyhole.vocabulary IS 'Text of every token of a tokenizer.';
COMMENT ON COLUMN keyhole.vocabulary.tokenizer_id IS 'the tokenizer';
COMMENT ON COLUMN keyhole.vocabulary.token_id IS 'number of the token';
COMMENT ON COLUMN keyhole.vocabulary.text IS 'its text; NUL is shown by its symbol';

COMMENT ON TABLE keyhole.dataset IS 'Tokenized data sets.';
COMMENT ON COLUMN keyhole.dataset.id IS 'number of the data set';
COMMENT ON COLUMN keyhole.dataset.fingerprint IS 'SHA-256 of its tokens and document boundaries';
COMMENT ON COLUMN keyhole.dataset.identity IS 'commit or hash that pins its files';
COMMENT ON COLUMN keyhole.dataset.source IS 'source by which it was first named';
COMMENT ON COLUMN keyhole.dataset.tokenizer_id IS 'tokenizer of its token ids; NULL if they came bare';
COMMENT ON COLUMN keyhole.dataset.sequences IS 'number of sequences';
COMMENT ON COLUMN keyhole.dataset.length IS 'tokens in each sequence';
COMMENT ON COLUMN keyhole.dataset.created_at IS 'time it was first read';

COMMENT ON TABLE keyhole.sequence IS 'Token ids of the sequences of a data set.';
COMMENT ON COLUMN keyhole.sequence.dataset_id IS 'the data set';
COMMENT ON COLUMN keyhole.sequence.sequence IS 'number of the sequence, 0-based';
COMMENT ON COLUMN keyhole.sequence.token_ids IS 'its tokens; element 1 is position 0';

COMMENT ON TABLE keyhole.sequence_document IS 'Which document each stretch of a sequence comes from.';
COMMENT ON COLUMN keyhole.sequence_document.dataset_id IS 'the data set';
COMMENT ON COLUMN keyhole.sequence_document.sequence IS 'number of the sequence, 0-based';
COMMENT ON COLUMN keyhole.sequence_document.start_position IS 'first position of the stretch, 0-based';
COMMENT ON COLUMN keyhole.sequence_document.stop_position IS 'position behind its last';
COMMENT ON COLUMN keyhole.sequence_document.document IS 'number of the document in the data set';
COMMENT ON COLUMN keyhole.sequence_document.name IS 'name of the document, if it has one';

COMMENT ON TABLE keyhole.job IS 'Jobs: the truth about what was asked and how far it is; messages are hints.';
COMMENT ON COLUMN keyhole.job.id IS 'number of the job';
COMMENT ON COLUMN keyhole.job.kind IS 'kind of job, such as gradient_scale';
COMMENT ON COLUMN keyhole.job.version IS 'version of the computation of its kind';
COMMENT ON COLUMN keyhole.job.queue IS 'probe or training';
COMMENT ON COLUMN keyhole.job.state IS 'queued, running, cancelling, succeeded, failed or cancelled';
COMMENT ON COLUMN keyhole.job.phase IS 'what a running job is doing';
COMMENT ON COLUMN keyhole.job.priority IS 'higher runs first within the queue';
COMMENT ON COLUMN keyhole.job.label IS 'name given at submission';
COMMENT ON COLUMN keyhole.job.model_source IS 'source of the model, as submitted';
COMMENT ON COLUMN keyhole.job.model_identity IS 'commit or hash that pins the model''s files';
COMMENT ON COLUMN keyhole.job.model_id IS 'the model, once loaded';
COMMENT ON COLUMN keyhole.job.dataset_source IS 'source of the data set, as submitted';
COMMENT ON COLUMN keyhole.job.dataset_identity IS 'commit or hash that pins the data set''s files';
COMMENT ON COLUMN keyhole.job.dataset_id IS 'the tokenized data set, once read';
COMMENT ON COLUMN keyhole.job.parameters IS 'parameters of the kind, with the defaults filled in';
COMMENT ON COLUMN keyhole.job.reuse_key IS 'hash over all that decides the result; equal keys can share a result';
COMMENT ON COLUMN keyhole.job.time_limit_s IS 'seconds of running after which it fails';
COMMENT ON COLUMN keyhole.job.max_attempts IS 'attempts in a row that may die before it fails';
COMMENT ON COLUMN keyhole.job.crashes IS 'attempts in a row that died without finishing a shard';
COMMENT ON COLUMN keyhole.job.shards IS 'parts it is cut into';
COMMENT ON COLUMN keyhole.job.shards_done IS 'parts whose rows are stored';
COMMENT ON COLUMN keyhole.job.rows IS 'rows stored in per-query tables';
COMMENT ON COLUMN keyhole.job.measured_s IS 'seconds from claim to commit, added up over its finished shards';
COMMENT ON COLUMN keyhole.job.environment IS 'device, dtype, versions and host it was computed on';
COMMENT ON COLUMN keyhole.job.checks IS 'parity of the seam and the probe''s self-checks';
COMMENT ON COLUMN keyhole.job.error_code IS 'code of the error that failed it';
COMMENT ON COLUMN keyhole.job.error_message IS 'what went wrong';
COMMENT ON COLUMN keyhole.job.error_hint IS 'what to do next';
COMMENT ON COLUMN keyhole.job.error_traceback IS 'Python traceback of the error';
COMMENT ON COLUMN keyhole.job.submitted_by IS 'API token that submitted it';
COMMENT ON COLUMN keyhole.job.created_at IS 'time of submission';
COMMENT ON COLUMN keyhole.job.changed_at IS 'time of the last change';
COMMENT ON COLUMN keyhole.job.started_at IS 'time of the first attempt since submission or the last retry';
COMMENT ON COLUMN keyhole.job.finished_at IS 'time it reached a final state';
COMMENT ON COLUMN keyhole.job.hinted_at IS 'time workers were last told of it';

COMMENT ON TABLE keyhole.job_request IS 'Idempotency keys of submissions.';
COMMENT ON COLUMN keyhole.job_request.token_id IS 'token that sent the request';
COMMENT ON COLUMN keyhole.job_request.key IS 'its Idempotency-Key';
COMMENT ON COLUMN keyhole.job_request.body_sha256 IS 'SHA-256 of the request''s body';
COMMENT ON COLUMN keyhole.job_request.job_id IS 'job that the request made';
COMMENT ON COLUMN keyhole.job_request.created_at IS 'time of the request';

COMMENT ON TABLE keyhole.attempt IS 'Attempts: one child process of one worker on one job.';
COMMENT ON COLUMN keyhole.attempt.id IS 'number of the attempt';
COMMENT ON COLUMN keyhole.attempt.token IS 'secret by which the attempt renews its lease';
COMMENT ON COLUMN keyhole.attempt.job_id IS 'the job';
COMMENT ON COLUMN keyhole.attempt.number IS 'first, second, … attempt on the job';
COMMENT ON COLUMN keyhole.attempt.worker IS 'name of the worker';
COMMENT ON COLUMN keyhole.attempt.device IS 'device of the child process';
COMMENT ON COLUMN keyhole.attempt.started_at IS 'time it was opened';
COMMENT ON COLUMN keyhole.attempt.heartbeat_at IS 'last renewal';
COMMENT ON COLUMN keyhole.attempt.lease_until IS 'time from which it counts as lost';
COMMENT ON COLUMN keyhole.attempt.ended_at IS 'time it ended; NULL while it lives';
COMMENT ON COLUMN keyhole.attempt.outcome IS 'completed, failed, crashed, lost, cancelled, timed_out or released';
COMMENT ON COLUMN keyhole.attempt.detail IS 'why it ended so';

COMMENT ON TABLE keyhole.shard IS 'Shards: slices of a job''s sequences, claimed and finished one by one.';
COMMENT ON COLUMN keyhole.shard.job_id IS 'the job';
COMMENT ON COLUMN keyhole.shard.index IS 'number of the shard, 0-based';
COMMENT ON COLUMN keyhole.shard.state IS 'queued, running or done';
COMMENT ON COLUMN keyhole.shard.first_sequence IS 'first sequence of the slice';
COMMENT ON COLUMN keyhole.shard.sequences IS 'number of sequences';
COMMENT ON COLUMN keyhole.shard.attempt_id IS 'attempt that claimed it';
COMMENT ON COLUMN keyhole.shard.claim_token IS 'token of the claim, which fences its result; kept when done';
COMMENT ON COLUMN keyhole.shard.rows IS 'rows it stored';
COMMENT ON COLUMN keyhole.shard.checks IS 'the probe''s self-checks on it';
COMMENT ON COLUMN keyhole.shard.started_at IS 'time it was claimed';
COMMENT ON COLUMN keyhole.shard.finished_at IS 'time its rows were committed';

COMMENT ON TABLE keyhole.job_event IS 'History of jobs; the event stream reads it.';
COMMENT ON COLUMN keyhole.job_event.id IS 'number of the event; orders the events of a job';
COMMENT ON COLUMN keyhole.job_event.job_id IS 'the job';
COMMENT ON COLUMN keyhole.job_event.at IS 'time of the event';
COMMENT ON COLUMN keyhole.job_event.type IS 'what happened, such as a state or progress';
COMMENT ON COLUMN keyhole.job_event.data IS 'its particulars';

COMMENT ON TABLE keyhole.worker IS 'Workers that are up, or were and have not said goodbye.';
COMMENT ON COLUMN keyhole.worker.name IS 'name of the worker';
COMMENT ON COLUMN keyhole.worker.host IS 'host it runs on';
COMMENT ON COLUMN keyhole.worker.queues IS 'queues it serves';
COMMENT ON COLUMN keyhole.worker.devices IS 'devices it gives to children';
COMMENT ON COLUMN keyhole.worker.version IS 'its Keyhole version';
COMMENT ON COLUMN keyhole.worker.started_at IS 'time it started';
COMMENT ON COLUMN keyhole.worker.seen_at IS 'last sign of life';
COMMENT ON COLUMN keyhole.worker.polled_at IS 'last time it asked for work';
COMMENT ON COLUMN keyhole.worker.gpu_memory_bytes IS 'GPU memory in use; NULL without a GPU';

COMMENT ON TABLE keyhole.counter IS 'Counters that only grow, shown as metrics.';
COMMENT ON COLUMN keyhole.counter.name IS 'what is counted';
COMMENT ON COLUMN keyhole.counter.value IS 'how often it happened';

COMMENT ON VIEW keyhole.open_work IS 'Jobs that another attempt would serve.';
COMMENT ON COLUMN keyhole.open_work.id IS 'the job';
COMMENT ON COLUMN keyhole.open_work.queue IS 'its queue';
COMMENT ON COLUMN keyhole.open_work.priority IS 'its priority';
COMMENT ON COLUMN keyhole.open_work.attempts IS 'live attempts on it';
