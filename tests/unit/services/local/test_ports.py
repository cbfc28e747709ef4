"""Ports: the usual one, another where nobody insists, an error where somebody does."""

import socket

import pytest

from services.contracts.errors import KeyholeError
from services.local import ports


def test_a_taken_port_is_replaced_unless_the_user_set_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not ports.is_free("127.0.0.1", port)
        assert ports.choose("127.0.0.1", port, explicit=False, setting="KEYHOLE_API_PORT") != port
        with pytest.raises(KeyholeError, match=f"Port {port} .*KEYHOLE_API_PORT"):
            ports.choose("127.0.0.1", port, explicit=True, setting="KEYHOLE_API_PORT")
    assert ports.choose("127.0.0.1", port, explicit=True, setting="KEYHOLE_API_PORT") == port
