"""The embedded broker on its Unix socket."""

import stat

from kombu import Connection

from services.local.valkey import EmbeddedValkey


def test_celery_and_redis_reach_the_broker_by_the_same_socket(broker: EmbeddedValkey) -> None:
    with Connection(broker.url) as connection:
        queue = connection.SimpleQueue("trial")
        queue.put({"job": 42})
        with broker.client() as client:
            assert client.llen("trial") == 1
        message = queue.get(timeout=5)
        assert message.payload == {"job": 42}
        message.ack()
        queue.close()


def test_broker_listens_on_no_port_and_only_its_owner_reaches_the_socket(broker: EmbeddedValkey) -> None:
    with broker.client() as client:
        assert client.config_get("port")["port"] == "0"
    assert stat.S_IMODE(broker.socket.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(broker.socket.stat().st_mode) == 0o700
