"""Relative paths of sources."""

from pathlib import Path

import pytest

from services.client.local_paths import absolute_source


def test_what_exists_here_is_meant_by_its_full_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.jsonl").write_text("{}")
    assert absolute_source("file:notes.jsonl?field=body") == f"file:{tmp_path.resolve()}/notes.jsonl?field=body"
    assert absolute_source("path:.") == f"path:{tmp_path.resolve()}"


@pytest.mark.parametrize(
    "source",
    [
        "file:missing.txt",
        "file:/etc/hosts",
        "hf:org/name",
        "builtin:python-docs",
        "tokens:",
        "nonsense",
        "file:~nobody-of-that-name/text.txt",
        "file:" + "x" * 5000,
        "file:a\0b",
    ],
)
def test_other_sources_are_left_alone(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_source(source) == source
