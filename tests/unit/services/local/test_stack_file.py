"""stack.json: private, whole, and refused with a next step when it is not ours."""

import stat
from pathlib import Path

import pytest

from services.contracts.errors import KeyholeError
from services.local import stack_file
from services.local.stack_file import ProcessRecord, StackFile

STACK = StackFile(
    api_url="http://127.0.0.1:1",
    dashboard_url="http://127.0.0.1:2",
    database_url="postgresql://keyhole:secret@/keyhole",
    analyst_url="postgresql://analyst:secret@/keyhole",
    broker_url="redis+socket:///valkey.sock",
    token="kh_secret",
    processes={"api": ProcessRecord(pid=1, started_at=2.5)},
)


def test_what_is_written_is_read_back_and_only_the_owner_reads_it(tmp_path: Path) -> None:
    assert stack_file.read(tmp_path) is None
    stack_file.write(tmp_path, STACK)
    assert stack_file.read(tmp_path) == STACK
    assert stat.S_IMODE((tmp_path / stack_file.NAME).stat().st_mode) == 0o600
    stack_file.remove(tmp_path)
    assert stack_file.read(tmp_path) is None


def test_a_file_of_another_shape_is_refused_without_repeating_its_secrets(tmp_path: Path) -> None:
    (tmp_path / stack_file.NAME).write_text('{"token": "kh_secret"}')
    with pytest.raises(KeyholeError, match="remove the file") as caught:
        stack_file.read(tmp_path)
    assert "kh_secret" not in str(caught.value)
