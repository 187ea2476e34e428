"""Contract with kombu 5.7: the private members that our transport uses, and that its fixes are still
needed."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import kombu
import pytest
from celery import Celery
from kombu import Connection, Consumer, Producer, Queue
from kombu.asynchronous import Hub
from kombu.transport import TRANSPORT_ALIASES, _transport_cache
from kombu.transport import redis as kombu_redis
from kombu.utils.uuid import uuid
from redis.exceptions import OutOfMemoryError

from dispatcher_project.celery_transport import broker
from dispatcher_project.celery_transport.pinned import process_host
from dispatcher_project.settings.celery import broker_url
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from jobs.wakes import queue_of
from tests.support.servers.sentinels import MASTER, watched

KOMBU_S_OWN = "kombu.transport.redis:Transport"
OURS = broker.TRANSPORTS["redis"]


@pytest.fixture(autouse=True)
def registered() -> None:
    broker.register_transports()


@pytest.fixture
def connect(valkey: EmbeddedValkey, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    opened: list[Connection] = []

    def connect(transport: str = OURS) -> Connection:
        monkeypatch.setitem(TRANSPORT_ALIASES, "redis", transport)
        _transport_cache.pop("redis", None)
        connection = Connection(broker_url(valkey.url))
        connection.connect()
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        connection.release()
    _transport_cache.pop("redis", None)


def test_kombu_has_the_private_members_we_replace() -> None:
    assert kombu.__version__.startswith("5.7.")
    assert list(inspect.signature(kombu_redis.Channel._connparams).parameters) == ["self", "asynchronous"]
    assert kombu_redis.QoS.restore_at_shutdown is True
    assert kombu_redis.Channel.QoS is kombu_redis.QoS
    assert list(inspect.signature(kombu_redis.Channel._create_client).parameters) == ["self", "asynchronous"]
    assert list(inspect.signature(kombu_redis.Channel._put).parameters) == [
        "self",
        "queue",
        "message",
        "kwargs",
    ]


@pytest.mark.parametrize(
    ("url", "transport"),
    [
        ("redis://somewhere:6379/0", broker.RedisTransport),
        ("rediss://somewhere:6379/0", broker.RedisTransport),
        ("redis+socket:///tmp/some.sock?virtual_host=0", broker.RedisTransport),
        ("sentinel://somewhere:26379", broker.SentinelTransport),
    ],
)
def test_every_redis_url_gets_our_transport(url: str, transport: type) -> None:
    assert Connection(url).get_transport_cls() is transport


def test_rabbitmq_keeps_kombu_s_transport() -> None:
    assert Connection("amqp://somewhere//").get_transport_cls().__module__ == "kombu.transport.pyamqp"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_channel_keeps_its_parameters_after_its_transport_closed(connect: Any, asynchronous: bool) -> None:
    channel = connect().channel()
    before = channel._connparams(asynchronous=asynchronous)
    channel.connection.client = None
    assert channel._connparams(asynchronous=asynchronous)["path"] == before["path"]
    channel.connection = None
    assert channel._connparams(asynchronous=asynchronous)["path"] == before["path"]


def test_kombus_own_channel_still_raises(connect: Any) -> None:
    channel = connect(KOMBU_S_OWN).channel()
    channel.connection.client = None
    with pytest.raises(AttributeError, match="hostname"):
        channel._connparams()


def test_a_channel_keeps_one_client_for_its_commands(connect: Any) -> None:
    channel = connect().channel()
    with channel.conn_or_acquire() as first, channel.conn_or_acquire() as second:
        assert first is second
    channel._disconnect_pools()
    with channel.conn_or_acquire() as later:
        assert later is not first
        assert later.ping()
    assert channel._create_client(asynchronous=True) is not channel.client


def test_kombus_own_channel_still_makes_a_client_for_each_command(connect: Any) -> None:
    channel = connect(KOMBU_S_OWN).channel()
    with channel.conn_or_acquire() as first, channel.conn_or_acquire() as second:
        assert first is not second


def _waiting_after_a_consumer_closed_without_ack(connect: Any, transport: str) -> int:
    queue = Queue(f"q{uuid()}")
    Producer(connect(transport)).publish("x", routing_key=queue.name, declare=[queue])
    consuming = connect(transport)
    with Consumer(consuming, [queue], callbacks=[lambda body, message: None]):
        consuming.drain_events(timeout=30)
        consuming.default_channel.qos.restore_unacked_once()
    return int(connect(transport).channel()._size(queue.name))


def test_an_unacknowledged_message_is_not_requeued_when_a_connection_breaks(connect: Any) -> None:
    assert _waiting_after_a_consumer_closed_without_ack(connect, OURS) == 0


def test_kombus_own_channel_still_requeues_it(connect: Any) -> None:
    assert _waiting_after_a_consumer_closed_without_ack(connect, KOMBU_S_OWN) == 1


def test_a_queue_without_a_reader_keeps_its_newest_hints(
    connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "MAX_WAITING_HINTS", 20)
    queue = Queue(f"q{uuid()}")
    producer = Producer(connect())
    for number in range(200):
        producer.publish(number, routing_key=queue.name, declare=[queue])
    assert producer.channel._size(queue.name) == 20
    assert producer.channel.basic_get(queue.name).decode() == 180


def test_rabbitmq_queues_are_declared_with_the_same_bound() -> None:
    app = Celery("test", amqp=broker.Amqp, set_as_current=False)
    assert app.amqp.queues["gpu.zimg"].max_length == broker.MAX_WAITING_HINTS
    assert app.amqp.queues.select_add("gpu.flux", exchange="gpu.flux").max_length == broker.MAX_WAITING_HINTS


def test_a_command_is_sent_once_redis_py_retries_nothing(connect: Any) -> None:
    channel = connect().channel()
    assert channel.client.connection_pool.get_connection().retry.get_retries() == 0


def test_an_unreachable_broker_is_retried_every_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(Connection, "ensure_connection", lambda self, *args, **options: asked.update(options))
    broker.Amqp.Connection("redis://somewhere").ensure_connection(max_retries=None)
    assert asked["interval_max"] == 2


def test_the_queue_of_a_pinned_workers_process_expires(connect: Any) -> None:
    app = Celery("test", amqp=broker.Amqp, set_as_current=False)
    assert app.amqp.queues["gpu.zimg"].expires is None
    queue = app.amqp.queues[queue_of("zimg", process_host("box-gpu0"))]
    assert queue.expires == broker.PROCESS_QUEUE_EXPIRES_SECONDS
    producer = Producer(connect())
    producer.publish("x", routing_key=queue.name, declare=[queue], exchange=queue.exchange)
    client = producer.channel.client
    assert 0 < client.pttl(queue.name) <= 1000 * broker.PROCESS_QUEUE_EXPIRES_SECONDS


def test_a_consumer_leaves_a_hanging_master_after_a_promotion(tmp_path: Path) -> None:
    """kombu notices it connection by connection, after six seconds at the earliest."""
    got: list[Any] = []
    options = {"master_name": MASTER, "socket_timeout": 60.0}
    queue = Queue("q", no_declare=True)

    def put(connection: Connection, what: str) -> None:
        Producer(connection).publish(what, routing_key="q")

    with watched(tmp_path) as servers:
        url = f"sentinel://127.0.0.1:{servers.sentinel_port}"
        hub = Hub()
        with Connection(url, transport_options=options) as consuming:
            consumer = Consumer(
                consuming, [queue], callbacks=[lambda body, message: (got.append(body), message.ack())]
            )
            consumer.consume()
            consuming.transport.register_with_event_loop(consuming.transport, hub)
            loop = hub.create_loop()

            def turn_until(what: str, seconds: float) -> None:
                until = time.monotonic() + seconds
                while what not in got:
                    assert time.monotonic() < until, f"{what} did not come within {seconds} s"
                    next(loop)

            put(consuming, "before")
            turn_until("before", 10.0)
            servers.pause(servers.master)
            servers.wait_for_promotion()
            with Connection(url, transport_options=options) as another:
                put(another, "after")
            turn_until("after", broker.MASTER_SECONDS + 2.5)
        hub.close()


@pytest.fixture
def full(tmp_path: Path) -> Iterator[str]:
    """URL of a server at its maxmemory."""
    options = ("--maxmemory", "100kb")
    with EmbeddedValkey(tmp_path, append_only=False, extra=options) as server:
        yield broker_url(server.url)


def test_hints_pass_through_a_full_redis(full: str) -> None:
    """Also the start of a worker there, and its consuming and acknowledging."""
    got: list[Any] = []
    with Connection(full) as connection:
        queue = Queue("q", kombu.Exchange("q"), routing_key="q", channel=connection)
        reply = Queue("reply", kombu.Exchange("r"), routing_key="r", expires=60.0, channel=connection)
        for one in (queue, reply):
            one.declare()
        Producer(connection).publish("hint", exchange=queue.exchange, routing_key="q")
        taken = [(body, message.ack()) for body, message in _drain(connection, queue, got)]
        assert taken == [("hint", None)]
        assert connection.default_channel.client.hlen("unacked") == 0


def _drain(connection: Connection, queue: Queue, got: list[Any]) -> list[Any]:
    with Consumer(connection, [queue], callbacks=[lambda body, message: got.append((body, message))]):
        connection.drain_events(timeout=5)
    return got


def test_kombus_own_channel_refuses_hints_on_a_full_redis(full: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker._FixedChannel, "_get_client", kombu_redis.Channel._get_client)
    with Connection(full) as connection, pytest.raises(OutOfMemoryError):
        Producer(connection).publish("hint", routing_key="q")


def test_a_blocking_read_is_ended_for_a_new_queue(connect: Any) -> None:
    """Otherwise its first message is read only after the wait for the others."""
    connection, got = connect(), []
    channel = connection.default_channel
    channel.brpop_timeout = 60.0
    consumer = connection.Consumer([Queue("known")], callbacks=[lambda body, message: got.append(body)])
    consumer.consume()
    with suppress(TimeoutError):
        connection.drain_events(timeout=0.2)
    assert channel._in_poll, "it waits"
    consumer.add_queue(Queue("new"))
    consumer.consume()
    channel.end_wait()
    with Connection(connection.as_uri(include_password=True)) as other:
        other.SimpleQueue("new").put("first")
    until = time.monotonic() + 30
    while not got and time.monotonic() < until:
        with suppress(TimeoutError):
            connection.drain_events(timeout=1.0)
    assert got == ["first"]
    channel.end_wait()  # nothing waits: nothing happens
