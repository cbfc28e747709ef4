"""Passwords: generated once, readable by their owner only."""

import stat
from pathlib import Path

from services.local.passwords import password, write_private


def test_a_password_is_made_once_and_has_256_random_bits(tmp_path: Path) -> None:
    first = password(tmp_path / "secrets" / "one")
    assert password(tmp_path / "secrets" / "one") == first
    assert password(tmp_path / "secrets" / "two") != first
    assert len(first) == 43  # 256 bits at 6 bits a character
    assert password(tmp_path / "token", "kh_").startswith("kh_")


def test_only_the_owner_can_read_and_a_replaced_file_stays_closed(tmp_path: Path) -> None:
    path = tmp_path / "secrets" / "one"
    password(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    write_private(path, "other")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "other"
    assert list(path.parent.iterdir()) == [path]
