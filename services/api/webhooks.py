"""Where alerts may be posted, and posting: listed hosts only, https, no redirects, to the address that was checked.

Signed with KEYHOLE_WEBHOOK_SECRET if there is one: ``X-Keyhole-Signature: sha256=HEX`` is the HMAC-SHA256 of
``X-Keyhole-Timestamp``, a full stop, and the body.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import re
import socket
import time
from collections.abc import Set
from importlib.metadata import version
from urllib.parse import SplitResult, urlsplit, urlunsplit

import httpx

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.settings import Settings

TIMEOUT_S = 10.0  # for all of one delivery
_PORTS = {"http": 80, "https": 443}
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class NotDelivered(Exception):
    """What a delivery met, in words for the one who wrote the webhook's address."""


def require_allowed(url: str, settings: Settings) -> None:
    """Raise KeyholeError (invalid_request) for an address that alerts may not be posted to."""
    parts = urlsplit(url)
    listed = _listed(settings)
    place = f"{_bracketed(parts.hostname or '')}:{_port(parts)}"
    if not listed:
        raise _refused(url, "no webhook host is allowed here", "Ask whoever runs Keyhole to set KEYHOLE_WEBHOOK_HOSTS.")
    if place not in listed:
        raise _refused(
            url,
            f"{place} is not among the webhook hosts of this server",
            f"Allowed are {', '.join(sorted(listed))}; KEYHOLE_WEBHOOK_HOSTS lists them as HOST or HOST:PORT.",
        )
    if parts.scheme != "https" and not _is_loopback_name(parts.hostname or ""):
        raise _refused(url, "it is not https", "Only this machine itself may be reached by http.")


async def post(url: str, body: bytes, settings: Settings) -> None:
    """Post; raises NotDelivered unless it was answered with a success."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await _post(url, body, settings)
    except TimeoutError:
        raise NotDelivered(f"no answer within {TIMEOUT_S:g} s") from None
    except httpx.HTTPError as error:
        raise NotDelivered(f"{type(error).__name__}: {error}"[:300]) from error


async def _post(url: str, body: bytes, settings: Settings) -> None:
    try:
        require_allowed(url, settings)  # the list may have changed since the watch was made
    except KeyholeError as error:
        raise NotDelivered(error.message) from error
    parts = urlsplit(url)
    address = await _checked_address(parts, settings)
    # To the very address that was checked: a name may be resolved differently the next time.
    pinned = urlunsplit(parts._replace(netloc=f"{_bracketed(str(address))}:{_port(parts)}", fragment=""))
    headers = {"Host": parts.netloc, "Content-Type": "application/json", "User-Agent": f"keyhole/{version('keyhole')}"}
    extensions = {"sni_hostname": parts.hostname} if parts.scheme == "https" else {}
    async with httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=TIMEOUT_S) as client:
        request = client.build_request(
            "POST", pinned, content=body, headers=headers | signature(body, settings), extensions=extensions
        )
        response = await client.send(request, stream=True)  # whatever else it answers is of no interest
        await response.aclose()
    if response.is_redirect:
        raise NotDelivered(f"answered {response.status_code}; redirects are not followed")
    if not response.is_success:
        raise NotDelivered(f"answered {response.status_code} {response.reason_phrase}".strip())


def signature(body: bytes, settings: Settings, now: int | None = None) -> dict[str, str]:
    """The headers that prove who posted; none without a secret. ``now`` is in seconds of the epoch."""
    if settings.webhook_secret is None or not settings.webhook_secret.get_secret_value():
        return {}
    stamp = str(int(time.time()) if now is None else now)
    secret = settings.webhook_secret.get_secret_value().encode()
    digest = hmac.new(secret, stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    return {"X-Keyhole-Timestamp": stamp, "X-Keyhole-Signature": f"sha256={digest}"}


async def _checked_address(parts: SplitResult, settings: Settings) -> Address:
    """An address of the host that may be reached: a public one, or one that is listed itself."""
    host, port = parts.hostname or "", _port(parts)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NotDelivered(f"{host} cannot be resolved ({error.strerror or error})") from error
    addresses = [ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found]
    listed = _listed(settings)
    for address in addresses:
        if _may_be_reached(address, host, port, listed):
            return address
    raise NotDelivered(
        f"{host} is {addresses[0]}, an address of a private network; it is reached only if KEYHOLE_WEBHOOK_HOSTS lists "
        f"{_bracketed(str(addresses[0]))}:{port} too"
    )


def _may_be_reached(address: Address, host: str, port: int, listed: Set[str]) -> bool:
    plain = (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address
    if f"{_bracketed(str(plain))}:{port}" in listed:
        return True
    if host == "localhost":
        return plain.is_loopback
    return plain.is_global and not plain.is_multicast


def _listed(settings: Settings) -> set[str]:
    """The allowed hosts with their ports; one without a port stands for https."""
    found = set()
    for entry in settings.webhook_hosts.lower().split(","):
        if entry.strip():
            host, port = _parts_of(entry.strip())
            found.add(f"{_bracketed(host)}:{port or _PORTS['https']}")
    return found


def _parts_of(entry: str) -> tuple[str, str]:
    """Host and port of an entry; an IPv6 address may stand without brackets if it has no port."""
    if entry.count(":") > 1 and not entry.startswith("["):
        return entry, ""
    host, _, port = entry.rpartition(":") if re.fullmatch(r".+:[0-9]+", entry) else (entry, "", "")
    return host.strip("[]"), port


def _port(parts: SplitResult) -> int:
    return parts.port or _PORTS[parts.scheme]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_loopback_name(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refused(url: str, why: str, hint: str) -> KeyholeError:
    shown = f"{urlsplit(url).scheme}://{urlsplit(url).netloc}/…"  # its path may be a secret
    return KeyholeError(ErrorCode.INVALID_REQUEST, f"The webhook {shown} is refused: {why}.", hint)
