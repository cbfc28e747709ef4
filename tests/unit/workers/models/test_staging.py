"""What is loaded lies in the cache while it is loaded, and what a killed process left is removed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.contracts.settings import Settings
from services.sources.model_folder import VettedFolder, vet_folder
from tests.unit.services.sources.model_files import write_model
from workers.models.staging import staged

STAGE = """
import sys
from pathlib import Path
from services.contracts.settings import Settings
from services.sources.model_folder import vet_folder
from workers.models.staging import staged

home = Path(sys.argv[1])
with staged(vet_folder(home / "m"), Settings(home=home)) as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


@pytest.fixture
def vetted(tmp_path: Path) -> VettedFolder:
    return vet_folder(write_model(tmp_path / "m"))


def _other_process(home: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", STAGE, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_folder_holds_the_vetted_files_and_goes_at_the_end(settings: Settings, vetted: VettedFolder) -> None:
    (vetted.folder / "modeling_evil.py").write_text("")
    with staged(vetted, settings) as folder:
        assert folder.is_relative_to(settings.cache)
        assert {path.name for path in folder.iterdir()} == set(vetted.files)
    assert not folder.exists()


def test_a_folder_in_use_stays_and_that_of_a_killed_process_goes(settings: Settings, vetted: VettedFolder) -> None:
    process, theirs = _other_process(settings.home)
    try:
        assert theirs.name.startswith(f"{process.pid}-")
        with staged(vetted, settings):
            assert (theirs / "config.json").exists()
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert theirs.exists()
    with staged(vetted, settings):
        assert not theirs.exists()
