"""Settings from the environment, all with defaults that work on one machine. Documented in docs/operations.md."""

import os
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, SecretStr
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict


class LifeCycleSettings(BaseModel):
    """Times of the job life cycle, in seconds of the database's clock."""

    lease_s: float = 60.0  # an attempt that is not renewed for so long is lost
    heartbeat_s: float = 2.0  # how often an attempt is renewed and looks for a cancel
    start_timeout_s: float = 120.0  # a child that has not shown life by then is killed
    stop_grace_s: float = 5.0  # between SIGTERM and SIGKILL of a child
    reconcile_s: float = 5.0  # how often the reconciler looks
    follow_s: float = 2.0  # how often the API looks after stages of suites, sweeps and watches
    hint_s: float = 15.0  # a job that waits longer than this is announced to the workers again
    database_grace_s: float = 20.0  # nobody is declared lost this soon after a restart of the database
    max_attempts: int = 3  # attempts that may crash or be lost before the job fails


class Settings(BaseSettings):
    """``KEYHOLE_…`` variables; life-cycle times as ``KEYHOLE_LIFE__LEASE_S`` and so on."""

    model_config = SettingsConfigDict(env_prefix="KEYHOLE_", env_nested_delimiter="__", extra="ignore")

    home: Annotated[Path, Field(default_factory=lambda: default_home())]
    database_url: SecretStr | None = None  # owner role; none means the embedded stack
    analyst_url: SecretStr | None = None  # read-only role
    broker_url: SecretStr | None = None
    api_url: str | None = None
    token: SecretStr | None = None  # the API token the CLI and the client send
    host: str = "127.0.0.1"
    api_port: int = 8471
    dashboard_port: int = 8472
    model_roots: Annotated[tuple[Path, ...], NoDecode] = ()  # colon-separated folders that path: may name
    data_roots: Annotated[tuple[Path, ...], NoDecode] = ()  # colon-separated folders that file: and tokens: may name
    checkpoint_store: str | None = None  # address of fsspec for the bytes of checkpoints; none is the database
    checkpoint_cache_bytes: int = 20_000_000_000  # on each worker, for checkpoints out of the database
    devices: str = "auto"  # auto, cpu, or comma-separated GPU indices
    queues: str = "probe,training"
    webhook_hosts: str = ""  # comma-separated HOST or HOST:PORT that alerts of watches may be posted to
    webhook_secret: SecretStr | None = None  # signs what is posted
    sql_timeout_s: float = 30.0
    sql_row_limit: int = 1_000_000
    life: LifeCycleSettings = LifeCycleSettings()

    def __init__(self, **values: object) -> None:
        for name in ("model_roots", "data_roots"):
            text = os.environ.get(f"KEYHOLE_{name.upper()}")
            if text is not None and name not in values:
                values[name] = tuple(Path(part) for part in text.split(os.pathsep) if part)
        super().__init__(**values)  # type: ignore[arg-type]  # pydantic-settings takes any field by name

    @property
    def cache(self) -> Path:
        """Files that can be made again: converted models, tokenized data sets."""
        return self.home / "cache"


def default_home() -> Path:
    """``~/.keyhole``; for root ``/var/lib/keyhole``: Postgres runs as a user who cannot enter root's home."""
    return Path("/var/lib/keyhole") if os.geteuid() == 0 else Path.home() / ".keyhole"


@lru_cache
def settings() -> Settings:
    return Settings()
