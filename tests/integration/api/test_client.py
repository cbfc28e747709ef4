"""services.client against a served API, with a stand-in for the worker."""

import json
import threading
import time

import numpy as np
import pyarrow.parquet as pq
import pytest

from services.client import JobCancelled, JobFailed, Keyhole, KeyholeError, Unreachable
from services.contracts.errors import ErrorCode
from services.contracts.states import Scope
from tests.integration.api import stand_in_worker


@pytest.fixture
def keyhole(api):
    with Keyhole(api.url, api.tokens[Scope.ADMIN]) as client:
        yield client


def submit(api, keyhole, **options):
    options = {"sequences": 3, "length": 64, "force": True} | options
    return keyhole.submit("gradient_scale", model=api.model, dataset=api.dataset, **options)


def test_a_job_is_submitted_waited_for_and_read_as_a_table(api, keyhole):
    job = submit(api, keyhole, queries={"start": 4, "step": 4})
    worker = threading.Thread(target=stand_in_worker.carry_out, args=(api.database_url, job.id))
    worker.start()
    frame = job.wait().frame("gradient_scale")
    worker.join()
    assert job.state == "succeeded"
    expected = [stand_in_worker.rows_of(sequence) for sequence in range(3)]
    ordered = frame.sort_values(["sequence", "layer", "head", "query"], ignore_index=True)
    for name in expected[0]:
        assert np.array_equal(ordered[name], np.concatenate([rows[name] for rows in expected])), name


def test_a_table_is_cut_to_columns_layer_and_head(api, keyhole):
    job = submit(api, keyhole)
    stand_in_worker.carry_out(api.database_url, job.id)
    table = job.frame(columns=["query", "log10_d_a"], layer=1, head=2, arrow=True)
    assert table.column_names == ["query", "log10_d_a"]
    assert table.num_rows == 3 * stand_in_worker.QUERIES
    assert set(table["log10_d_a"].to_pylist()) == {np.float32(1.2)}


def test_an_unknown_table_or_column_is_refused_with_the_known_ones(api, keyhole):
    job = submit(api, keyhole)
    stand_in_worker.carry_out(api.database_url, job.id)
    with pytest.raises(KeyholeError, match="gradient_scale"):
        job.frame("gradients")
    with pytest.raises(KeyholeError, match="log10_d_a"):
        job.frame(columns=["log10_d_b"])
    with pytest.raises(KeyholeError, match="no column layer"):
        job.frame("token", layer=0)
    assert list(job.frame("token").columns)[1:] == [
        "sequence", "position", "token_id", "text", "document", "document_name"
    ]  # fmt: skip


def test_the_events_come_in_order_and_end_with_the_job(api, keyhole):
    job = submit(api, keyhole)
    worker = threading.Thread(target=stand_in_worker.carry_out, args=(api.database_url, job.id))
    worker.start()
    events = list(job.events())
    worker.join()
    assert [event.id for event in events] == sorted({event.id for event in events})
    types = [event.type for event in events]
    assert (types[0], types.count("progress"), "succeeded" in types) == ("queued", 3, True)


def test_following_resumes_after_an_event_without_gaps_or_repeats(api, keyhole):
    job = submit(api, keyhole)
    stand_in_worker.carry_out(api.database_url, job.id)
    whole = [event.id for event in job.history()]
    for cut in (0, 2, len(whole)):
        after = whole[cut - 1] if cut else 0
        assert [event.id for event in job.events(after)] == whole[cut:]


def test_following_survives_a_stream_that_is_cut(api, keyhole, monkeypatch):
    from services.client import events as client_events

    monkeypatch.setattr(client_events, "_READ_TIMEOUT_S", 0.05)  # every stream is cut before its next sign of life
    job = submit(api, keyhole)
    worker = threading.Thread(
        target=stand_in_worker.carry_out, args=(api.database_url, job.id, lambda index: time.sleep(0.4))
    )
    worker.start()
    job.wait()
    worker.join()
    assert job.detail.progress.shards_done == 3


def test_a_failed_job_raises_its_error_and_traceback(api, keyhole):
    job = submit(api, keyhole)
    stand_in_worker.fail(api.database_url, job.id)
    with pytest.raises(JobFailed) as caught:
        job.wait()
    assert caught.value.code is ErrorCode.OUT_OF_MEMORY
    assert "MemoryError" in (caught.value.traceback or "")
    assert "Lower length" in caught.value.hint


def test_a_cancelled_job_raises(api, keyhole):
    job = submit(api, keyhole).cancel()
    with pytest.raises(JobCancelled):
        job.wait()


def test_listing_goes_through_all_pages(api, keyhole, monkeypatch):
    made = {submit(api, keyhole, label="many").id for _ in range(5)}
    assert {job.id for job in keyhole.jobs(label="many")} == made
    assert [job.id for job in keyhole.jobs(label="many", limit=2)] == sorted(made, reverse=True)[:2]


def test_summaries_equal_those_of_the_rows(api, keyhole):
    job = submit(api, keyhole)
    stand_in_worker.carry_out(api.database_url, job.id)
    heads = job.summary("log10_d_a", level="head")
    assert len(heads) == stand_in_worker.LAYERS * stand_in_worker.HEADS
    assert np.allclose(heads["median"], heads["layer"] + heads["head"] / 10)
    [whole] = job.summary_rows("log10_d_c", "job")
    assert (whole.n, whole.n_infinite) == (72, 18)


def test_an_export_holds_every_row_and_hashes_that_fit(api, keyhole, tmp_path):
    import hashlib

    job = submit(api, keyhole)
    stand_in_worker.carry_out(api.database_url, job.id)
    manifest = json.loads(job.export(tmp_path / "out").read_text())
    by_table = {file["table"]: file for file in manifest["files"]}
    assert by_table["gradient_scale"]["rows"] == 72
    for file in manifest["files"]:
        path = tmp_path / "out" / file["file"]
        assert pq.read_metadata(path).num_rows == file["rows"]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == file["sha256"]
    assert set(by_table) == {"gradient_scale", "token", "summary"}
    table = pq.read_table(tmp_path / "out" / "gradient_scale.parquet")
    assert table["job_id"].unique().to_pylist() == [job.id]
    assert manifest["job"]["model_identity"] == job.detail.model_identity


def test_an_unfinished_job_is_not_exported(api, keyhole, tmp_path):
    with pytest.raises(KeyholeError, match="only a job that succeeded"):
        submit(api, keyhole).export(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_sql_answers_as_pandas_and_arrow_and_warns_when_cut(keyhole):
    frame = keyhole.sql("SELECT n, n / 2.0 AS half, 'Infinity'::float8 AS inf FROM generate_series(1, 5) AS n")
    assert frame["n"].tolist() == [1, 2, 3, 4, 5]
    assert np.isinf(frame["inf"]).all()
    with pytest.warns(UserWarning, match="after 2 rows"):
        assert keyhole.sql("SELECT generate_series(1, 5)", limit=2, arrow=True).num_rows == 2


def test_a_refused_statement_says_what_postgresql_said(keyhole):
    with pytest.raises(KeyholeError, match="nowhere") as caught:
        keyhole.sql("SELECT * FROM nowhere")
    assert caught.value.code is ErrorCode.SQL_REFUSED


def test_kinds_name_parameters_with_defaults(keyhole):
    [kind] = [kind for kind in keyhole.kinds() if kind.name == "gradient_scale"]
    assert kind.defaults["queries"] == {"start": 32, "stop": None, "step": 4}


def test_a_made_token_works_until_it_is_revoked(api, keyhole):
    made = keyhole.create_token("for a notebook", Scope.READ, expires_in_days=1)
    with Keyhole(api.url, made.token) as reader:
        assert reader.kinds()
        with pytest.raises(KeyholeError) as caught:
            reader.submit("gradient_scale", model=api.model, dataset=api.dataset)
        assert caught.value.code is ErrorCode.FORBIDDEN
        keyhole.revoke_token(made.id)
        with pytest.raises(KeyholeError) as caught:
            reader.kinds()
        assert caught.value.code is ErrorCode.UNAUTHORIZED


def test_nobody_at_the_address_is_told_as_unreachable():
    with Keyhole("http://127.0.0.1:9", "kh_x") as client, pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
        client.kinds()
