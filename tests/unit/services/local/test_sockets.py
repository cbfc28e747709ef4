"""Folders for Unix sockets: private, and short enough for the operating system."""

import os
import socket
import stat
from pathlib import Path

import pytest

from services.contracts.errors import KeyholeError
from services.local.sockets import PATH_LIMIT, socket_folder


def _longest(parent: Path, name: str, total: int) -> Path:
    """A folder so long that ``folder/name`` has ``total`` bytes."""
    return parent / ("x" * (total - len(os.fsencode(parent / name)) - 1))


def test_the_limit_is_the_operating_systems(tmp_path: Path) -> None:
    if len(os.fsencode(tmp_path)) > PATH_LIMIT - 10:
        pytest.skip(f"{tmp_path} leaves no room")
    for total, fits in ((PATH_LIMIT, True), (PATH_LIMIT + 1, False)):
        folder = _longest(tmp_path, "s", total)
        folder.mkdir()
        with socket.socket(socket.AF_UNIX) as trial:
            if fits:
                trial.bind(str(folder / "s"))
            else:
                with pytest.raises(OSError, match="too long"):
                    trial.bind(str(folder / "s"))


def test_a_path_within_the_limit_is_used_as_it_is(tmp_path: Path) -> None:
    assert socket_folder(tmp_path / "run", "s", os.geteuid()) == tmp_path / "run"
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


def test_a_longer_path_falls_back_to_a_short_private_folder_always_the_same(tmp_path: Path) -> None:
    preferred = _longest(tmp_path, "s.sock", PATH_LIMIT + 1)
    short = socket_folder(preferred, "s.sock", os.geteuid())
    try:
        assert len(os.fsencode(short / "s.sock")) <= PATH_LIMIT
        assert stat.S_IMODE(short.stat().st_mode) == 0o700
        assert short.stat().st_uid == os.geteuid()
        assert socket_folder(preferred, "s.sock", os.geteuid()) == short
        assert socket_folder(preferred.with_name("y" * 100), "s.sock", os.geteuid()) != short
    finally:
        short.rmdir()
        socket_folder(preferred.with_name("y" * 100), "s.sock", os.geteuid()).rmdir()


def test_a_link_in_the_short_folders_place_is_refused(tmp_path: Path) -> None:
    preferred = _longest(tmp_path, "s.sock", PATH_LIMIT + 1)
    short = socket_folder(preferred, "s.sock", os.geteuid())
    short.rmdir()
    short.symlink_to(tmp_path)
    try:
        with pytest.raises(KeyholeError, match="is a link"):
            socket_folder(preferred, "s.sock", os.geteuid())
    finally:
        short.unlink()
