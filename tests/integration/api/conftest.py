"""A served API over a real database: uvicorn in a thread, with a tiny model folder and text file to submit."""

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from db.repositories import api_tokens
from services.api import suite_stages
from services.api.app import create_app
from services.contracts.settings import Settings
from services.contracts.states import Scope


@dataclass(frozen=True)
class ServedApi:
    url: str
    database_url: str
    tokens: dict[Scope, str]
    model: str  # sources that exist
    dataset: str

    def client(self, scope: Scope | None = Scope.ADMIN) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.tokens[scope]}"} if scope else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=20)

    def body(self, **changes: object) -> dict[str, object]:
        """A submission of four sequences in four shards."""
        parameters = {"sequences": 4, "length": 64, "queries": {"start": 8, "step": 8}}
        body = {"kind": "gradient_scale", "model": self.model, "dataset": self.dataset, "parameters": parameters}
        return body | changes


def served(settings: Settings) -> AbstractContextManager[str]:
    """The address of an API over ``settings``."""
    return serving(create_app(settings))


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


def write_model(folder: Path, **config: object) -> Path:
    """A model folder that passes the vetting; nobody loads its weights here."""
    folder.mkdir(parents=True)
    described = {"model_type": "llama", "num_hidden_layers": 1, "max_position_embeddings": 128, "vocab_size": 256}
    (folder / "config.json").write_text(json.dumps(described | config))
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0\0\0")
    return folder


@pytest.fixture(autouse=True)
def fresh_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for stages of another test's database are not this one's: their numbers are the same."""
    monkeypatch.setattr(suite_stages, "_patience", suite_stages._Patience())


@pytest.fixture(scope="module")
def api(module_database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApi]:
    """An API of the module's own, without a broker."""
    home = tmp_path_factory.mktemp("home")
    model = write_model(home / "models" / "tiny")
    text = home / "data" / "text.txt"
    text.parent.mkdir()
    text.write_text("The quick brown fox jumps over the lazy dog. " * 50)
    with module_database.connect() as conn:
        tokens = {scope: api_tokens.create(conn, f"test-{scope}", scope)[1] for scope in Scope}
    settings = Settings(
        home=home, database_url=module_database.owner_url, analyst_url=module_database.analyst_url, broker_url=None
    )
    with served(settings) as url:
        yield ServedApi(url, module_database.owner_url, tokens, f"path:{model}", f"file:{text}")


@pytest.fixture
def admin(api: ServedApi) -> Iterator[httpx.Client]:
    with api.client() as client:
        yield client
