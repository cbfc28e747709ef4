"""Where alerts may be posted: listed hosts with their ports, https, no private address that is not listed itself."""

import asyncio
import hmac
import socket

import pytest
from pydantic import SecretStr

from services.api import webhooks
from services.contracts.errors import KeyholeError
from services.contracts.settings import Settings


def settings_of(hosts: str, secret: str | None = None) -> Settings:
    return Settings(webhook_hosts=hosts, webhook_secret=SecretStr(secret) if secret else None)


@pytest.mark.parametrize(
    ("hosts", "url"),
    [
        ("hooks.example.com", "https://hooks.example.com/T0/secret"),
        ("hooks.example.com", "https://HOOKS.example.com:443/"),
        ("a.example.com, hooks.example.com:8443", "https://hooks.example.com:8443/x"),
        ("localhost:9000", "http://localhost:9000/x"),
        ("127.0.0.1:9000", "http://127.0.0.1:9000/x"),
        ("[::1]:9000", "http://[::1]:9000/x"),
        ("::1", "https://[::1]/x"),
    ],
)
def test_a_listed_host_is_allowed(hosts, url):
    webhooks.require_allowed(url, settings_of(hosts))


@pytest.mark.parametrize(
    ("hosts", "url", "told"),
    [
        ("", "https://hooks.example.com/", "no webhook host is allowed here"),
        ("hooks.example.com", "https://example.com/", "not among the webhook hosts"),
        ("hooks.example.com", "https://hooks.example.com.evil.org/", "not among"),
        ("hooks.example.com", "https://x.hooks.example.com/", "not among"),
        ("hooks.example.com", "https://hooks.example.com:8443/", "not among"),
        ("hooks.example.com:8443", "https://hooks.example.com/", "not among"),
        ("hooks.example.com", "http://hooks.example.com/", "not among"),  # port 80 is not listed
        ("hooks.example.com:80", "http://hooks.example.com/", "not https"),
        ("10.0.0.5:80", "http://10.0.0.5/", "not https"),
    ],
)
def test_any_other_is_refused_with_the_reason_and_without_the_secret_in_its_path(hosts, url, told):
    with pytest.raises(KeyholeError, match=told) as error:
        webhooks.require_allowed(url + "SECRET", settings_of(hosts))
    assert "SECRET" not in str(error.value)
    assert "KEYHOLE_WEBHOOK_HOSTS" in error.value.hint or "https" in error.value.message


def test_a_name_that_leads_into_a_private_network_is_not_followed(monkeypatch):
    """Resolution is replaced: no name of the tests' network resolves to such addresses everywhere."""

    def resolve(address: str):
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(2, 1, 6, "", (address, 443))])

    for address in ("10.0.0.5", "169.254.169.254", "127.0.0.1", "0.0.0.0", "192.168.1.1", "::1", "::ffff:10.0.0.5"):
        resolve(address)
        with pytest.raises(webhooks.NotDelivered, match="private network"):
            asyncio.run(webhooks.post("https://hooks.example.com/", b"{}", settings_of("hooks.example.com")))


def test_a_private_address_that_is_listed_itself_may_be_reached():
    import ipaddress

    listed = webhooks._listed(settings_of("hooks.corp,10.0.0.5"))
    assert webhooks._may_be_reached(ipaddress.ip_address("10.0.0.5"), "hooks.corp", 443, listed)
    assert not webhooks._may_be_reached(ipaddress.ip_address("10.0.0.6"), "hooks.corp", 443, listed)
    assert not webhooks._may_be_reached(ipaddress.ip_address("10.0.0.5"), "hooks.corp", 8443, listed)


def test_the_signature_is_that_of_time_and_body():
    headers = webhooks.signature(b'{"a":1}', settings_of("", "s3cret"), now=1_700_000_000)
    expected = hmac.digest(b"s3cret", b'1700000000.{"a":1}', "sha256").hex()
    assert headers == {"X-Keyhole-Timestamp": "1700000000", "X-Keyhole-Signature": f"sha256={expected}"}
    assert webhooks.signature(b"{}", settings_of("")) == {}
