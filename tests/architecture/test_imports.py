"""What people talk to starts without the libraries that belong to the workers."""

import json
import subprocess
import sys

import pytest

PRINT_MODULES = "import json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"


def modules_after(statement: str) -> set[str]:
    """Top-level modules of a fresh interpreter after ``statement``."""
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}\n{PRINT_MODULES}"], capture_output=True, text=True, check=True, timeout=120
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "statement",
    [
        "from services.api.app import create_app\n"
        "from services.contracts.settings import Settings\n"
        "create_app(Settings()).openapi()",
        "from services.client import Keyhole\nimport services.client.export",
        "import services.cli.app, services.cli.commands, importlib\n"
        "[importlib.import_module(target.partition(':')[0])\n"
        " for panel in services.cli.commands.PANELS.values() for target in panel.values()]",
    ],
    ids=["api", "client", "cli"],
)
def test_services_do_without_torch_and_transformers(statement):
    assert not {"torch", "transformers", "workers", "dashboard", "streamlit"} & modules_after(statement)


def test_the_command_for_jobs_starts_without_databases_and_data_frames():
    modules = modules_after("import services.cli.app, services.cli.jobs, services.cli.waiting, services.client")
    assert not {"pandas", "pyarrow", "numpy", "sqlalchemy", "alembic", "psycopg", "celery", "fastapi"} & modules
