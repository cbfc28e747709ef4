CREATE VIEW analysis.watch AS
SELECT
    watch.id,
    watch.name,
    watch.target,
    watch.active,
    watch.ended,
    watch.problem,
    ARRAY (SELECT jsonb_array_elements_text(watch.body -> 'kinds')) AS probes,
    watch.body ->> 'dataset' AS dataset,
    watch.body -> 'rules' AS rules,
    (watch.body ->> 'poll_s')::double precision AS poll_s,
    watch.body ? 'webhook' AS has_webhook,
    api_token.name AS submitted_by,
    watch.created_at,
    watch.looked_at
FROM keyhole.watch
LEFT JOIN keyhole.api_token ON api_token.id = watch.submitted_by;

COMMENT ON VIEW analysis.watch IS 'Watches: probes submitted by themselves for every new checkpoint of a target, and rules on what comes back.';
COMMENT ON COLUMN analysis.watch.id IS 'number of the watch; watch_id everywhere else';
COMMENT ON COLUMN analysis.watch.name IS 'its name';
COMMENT ON COLUMN analysis.watch.target IS 'run:ID, suite:ID, sweep:ID, path:DIR/* or hf:ORG/NAME@PATTERN';
COMMENT ON COLUMN analysis.watch.active IS 'whether it still looks';
COMMENT ON COLUMN analysis.watch.ended IS 'why it no longer looks; NULL while it does';
COMMENT ON COLUMN analysis.watch.problem IS 'what kept it from looking the last time; NULL if nothing did';
COMMENT ON COLUMN analysis.watch.probes IS 'kinds of its probes';
COMMENT ON COLUMN analysis.watch.dataset IS 'what they measure on';
COMMENT ON COLUMN analysis.watch.rules IS 'its rules, a JSON array; alert.rule counts in it from 0';
COMMENT ON COLUMN analysis.watch.poll_s IS 'how often a folder or repository is looked at, in seconds';
COMMENT ON COLUMN analysis.watch.has_webhook IS 'whether its alerts are posted to a webhook';
COMMENT ON COLUMN analysis.watch.submitted_by IS 'name of the API token that submitted it';
COMMENT ON COLUMN analysis.watch.created_at IS 'time of submission';
COMMENT ON COLUMN analysis.watch.looked_at IS 'when it last looked; of runs within some seconds';

CREATE VIEW analysis.watch_run AS
SELECT watch_id, run_id FROM keyhole.watch_run;

COMMENT ON VIEW analysis.watch_run IS 'Runs that watches look at.';
COMMENT ON COLUMN analysis.watch_run.watch_id IS 'the watch';
COMMENT ON COLUMN analysis.watch_run.run_id IS 'the run';

CREATE VIEW analysis.watch_model AS
SELECT watch_id, source, run_id, step, suite_id, judged, problem, seen_at FROM keyhole.watch_model;

COMMENT ON VIEW analysis.watch_model IS 'Checkpoints that watches have seen, with the suites of their probes.';
COMMENT ON COLUMN analysis.watch_model.watch_id IS 'the watch';
COMMENT ON COLUMN analysis.watch_model.source IS 'source of the checkpoint';
COMMENT ON COLUMN analysis.watch_model.run_id IS 'its run, if the target is one';
COMMENT ON COLUMN analysis.watch_model.step IS 'its step, if known';
COMMENT ON COLUMN analysis.watch_model.suite_id IS 'the probes submitted for it; NULL if it was there before the watch, or could not be measured';
COMMENT ON COLUMN analysis.watch_model.judged IS 'whether nothing more is waited for';
COMMENT ON COLUMN analysis.watch_model.problem IS 'which of its jobs brought nothing, and why; NULL if all did';
COMMENT ON COLUMN analysis.watch_model.seen_at IS 'when it was first seen';

CREATE VIEW analysis.watch_crossing AS
SELECT watch_id, rule, run_id, matrix, layer, head, step, value, since FROM keyhole.watch_crossing;

COMMENT ON VIEW analysis.watch_crossing IS 'Where rules are met now: an alert follows there only after the number has recovered.';
COMMENT ON COLUMN analysis.watch_crossing.watch_id IS 'the watch';
COMMENT ON COLUMN analysis.watch_crossing.rule IS 'place of the rule in the watch, 0-based';
COMMENT ON COLUMN analysis.watch_crossing.run_id IS 'the run, if the target is one';
COMMENT ON COLUMN analysis.watch_crossing.matrix IS 'the matrix, of rules on spectral norms';
COMMENT ON COLUMN analysis.watch_crossing.layer IS 'layer, 0-based; NULL for the model';
COMMENT ON COLUMN analysis.watch_crossing.head IS 'head, 0-based; NULL for the layer or model';
COMMENT ON COLUMN analysis.watch_crossing.step IS 'step at which the rule was first met';
COMMENT ON COLUMN analysis.watch_crossing.value IS 'the number at that step';
COMMENT ON COLUMN analysis.watch_crossing.since IS 'when that was seen';

CREATE VIEW analysis.alert AS
SELECT
    alert.id,
    alert.watch_id,
    watch.name AS watch,
    alert.rule,
    alert.run_id,
    alert.job_id,
    alert.source,
    alert.step,
    alert.metric,
    alert.matrix,
    alert.layer,
    alert.head,
    alert.value,
    alert.threshold,
    alert.others,
    alert.message,
    alert.created_at,
    alert.deliveries,
    alert.delivered_at,
    alert.delivery_problem,
    alert.acknowledged_at,
    api_token.name AS acknowledged_by
FROM keyhole.alert
JOIN keyhole.watch ON watch.id = alert.watch_id
LEFT JOIN keyhole.api_token ON api_token.id = alert.acknowledged_by;

COMMENT ON VIEW analysis.alert IS 'Alerts: rules of watches that were met.';
COMMENT ON COLUMN analysis.alert.id IS 'number of the alert';
COMMENT ON COLUMN analysis.alert.watch_id IS 'the watch';
COMMENT ON COLUMN analysis.alert.watch IS 'its name';
COMMENT ON COLUMN analysis.alert.rule IS 'place of the rule in watch.rules, 0-based';
COMMENT ON COLUMN analysis.alert.run_id IS 'the run, if the target is one';
COMMENT ON COLUMN analysis.alert.job_id IS 'the job whose result met the rule; NULL for numbers of the training';
COMMENT ON COLUMN analysis.alert.source IS 'the checkpoint; NULL for numbers of the training';
COMMENT ON COLUMN analysis.alert.step IS 'step of the run, or the one that the checkpoint''s name tells';
COMMENT ON COLUMN analysis.alert.metric IS 'the number that met the rule';
COMMENT ON COLUMN analysis.alert.matrix IS 'the matrix, of spectral norms';
COMMENT ON COLUMN analysis.alert.layer IS 'layer, 0-based; NULL for the model';
COMMENT ON COLUMN analysis.alert.head IS 'head, 0-based; NULL for the layer or model';
COMMENT ON COLUMN analysis.alert.value IS 'its value';
COMMENT ON COLUMN analysis.alert.threshold IS 'the value from which the rule is met';
COMMENT ON COLUMN analysis.alert.others IS 'further places where the rule was met at that look, which got no alert of their own';
COMMENT ON COLUMN analysis.alert.message IS 'in words';
COMMENT ON COLUMN analysis.alert.created_at IS 'when it was raised';
COMMENT ON COLUMN analysis.alert.deliveries IS 'how often its delivery to a webhook was tried';
COMMENT ON COLUMN analysis.alert.delivered_at IS 'when the webhook took it; NULL if it did not, or there is none';
COMMENT ON COLUMN analysis.alert.delivery_problem IS 'what the last delivery met';
COMMENT ON COLUMN analysis.alert.acknowledged_at IS 'when someone said that it was seen';
COMMENT ON COLUMN analysis.alert.acknowledged_by IS 'name of the API token with which that was said';
