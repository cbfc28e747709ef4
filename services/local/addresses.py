"""Where API and dashboard of the embedded stack answer."""

from services.contracts.settings import Settings
from services.local import ports
from services.local.stack_file import StackFile

LOOPBACK = "127.0.0.1"


def choose_addresses(settings: Settings, previous: StackFile | None) -> tuple[str, str]:
    """URLs of API and dashboard. Ports stay those of before where they can, so that links and open pages go on.

    Raises KeyholeError when a port that the user set is taken by another program.
    """
    api_port = _port(settings, "api", previous.api_url if previous else None, settings.host, previous)
    dashboard_port = _port(settings, "dashboard", previous.dashboard_url if previous else None, LOOPBACK, previous)
    everywhere = ("0.0.0.0", "::", "localhost")  # noqa: S104  # compared, not bound
    host = LOOPBACK if settings.host in everywhere else settings.host
    return f"http://{f'[{host}]' if ':' in host else host}:{api_port}", f"http://{LOOPBACK}:{dashboard_port}"


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def _port(settings: Settings, name: str, previous_url: str | None, host: str, previous: StackFile | None) -> int:
    usual: int = getattr(settings, f"{name}_port")
    explicit = f"{name}_port" in settings.model_fields_set
    if previous and previous_url:
        former, record = port_of(previous_url), previous.processes.get(name)
        if record and record.child().alive:
            return former
        if not explicit and ports.is_free(host, former):
            return former
    return ports.choose(host, usual, explicit=explicit, setting=f"KEYHOLE_{name.upper()}_PORT")
