"""The delivery worker with real sockets: a receiver that hangs delays its own queue, and no other."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any

import pytest
from django.conf import LazySettings

from gpus.leasing.clock import AgreedClocks, ClockWatch, SharedClock
from gpus.protocol import Clock, SystemClock
from jobs.callbacks import guard
from jobs.callbacks.delivery_worker import LOOK_SECONDS, DeliveryWorker
from jobs.models import Callback, CallbackTry, ReceiverCircuit
from tests.jobs.callbacks.tarpit import Tarpit
from tests.support.fakes import make_ports
from tests.support.outboxes import outbox, tenant_named
from tests.support.receivers import Receiver

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("loopback_allowed")]

PATIENCE = 20.0
SOON = 2.0
"""The promise; what a loaded machine adds is waited for, and fails the test only beyond it."""


class Skewed(SystemClock):
    """A wall clock that is so many seconds ahead."""

    def __init__(self, seconds: float) -> None:
        self._ahead = timedelta(seconds=seconds)

    def now(self) -> datetime:
        return super().now() + self._ahead


def until(sign: Callable[[], Any], seconds: float = PATIENCE) -> float:
    """Seconds until the sign was seen."""
    began = time.monotonic()
    while not sign():
        assert time.monotonic() - began < seconds, "it did not happen"
        time.sleep(0.01)
    return time.monotonic() - began


@pytest.fixture
def start() -> Iterator[Callable[..., DeliveryWorker]]:
    workers: list[DeliveryWorker] = []

    def make(clock: Clock | None = None, clocks: ClockWatch | None = None) -> DeliveryWorker:
        ports = make_ports(clock=clock or SystemClock())
        worker = DeliveryWorker(replace(ports, clock_watch=clocks or AgreedClocks()))
        workers.append(worker)
        worker.start()
        return worker

    yield make
    for worker in workers:
        worker.stop(0.0)


@pytest.fixture
def tarpit() -> Iterator[Callable[[int], Tarpit]]:
    made: list[Tarpit] = []

    def make(ports: int) -> Tarpit:
        made.append(Tarpit(ports))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def set_limits(settings: LazySettings) -> Callable[..., None]:
    def set_them(**limits: Any) -> None:
        settings.DISPATCHER = replace(settings.DISPATCHER, **limits)

    return set_them


def test_300_hanging_receivers_do_not_hold_back_a_healthy_one_of_the_same_tenant(
    start: Callable[..., DeliveryWorker], tarpit: Callable[[int], Tarpit], receiver: Receiver
) -> None:
    tenant, pit, worker = tenant_named("one"), tarpit(300), start()
    for callback_id in outbox(tenant, pit.urls):
        worker.nudge(callback_id)
    until(lambda: pit.accepted >= 150)
    [healthy] = outbox(tenant, [receiver.url])
    worker.nudge(healthy)
    assert until(lambda: receiver.got) < SOON
    until(lambda: Callback.objects.get(id=healthy).state == Callback.State.DELIVERED)
    threads = [one.name for one in threading.enumerate() if one.name.startswith("callback")]
    assert len(threads) <= 2, "a receiver that hangs holds a socket and no thread"


def test_one_hanging_receiver_gets_few_sockets_and_others_are_served(
    start: Callable[..., DeliveryWorker],
    tarpit: Callable[[int], Tarpit],
    receiver: Receiver,
    set_limits: Callable[..., None],
) -> None:
    set_limits(callbacks_in_flight=24, callbacks_in_flight_per_receiver=4)
    hung, pit = tenant_named("hung"), tarpit(1)
    outbox(hung, pit.urls * 300)
    outbox(hung, [receiver.url])
    start()  # without a hint: it reads due messages by itself
    assert until(lambda: receiver.got) < 2 * SOON
    until(lambda: pit.accepted >= 4)
    assert pit.accepted == 4


def test_a_tenant_whose_receivers_all_hang_leaves_room_for_the_next_tenant(
    start: Callable[..., DeliveryWorker],
    tarpit: Callable[[int], Tarpit],
    receiver: Receiver,
    set_limits: Callable[..., None],
) -> None:
    """Also where there are more of them than sockets."""
    set_limits(callbacks_in_flight=60)
    pit, worker = tarpit(120), start()
    outbox(tenant_named("hung"), pit.urls[:60])
    outbox(tenant_named("hung too"), pit.urls[60:])
    until(lambda: pit.accepted >= 40)
    [healthy] = outbox(tenant_named("healthy"), [receiver.url])
    worker.nudge(healthy)
    assert until(lambda: receiver.got) < SOON
    assert pit.accepted < 60


def test_50_new_hanging_receivers_a_second_delay_no_healthy_one(
    start: Callable[..., DeliveryWorker],
    tarpit: Callable[[int], Tarpit],
    receiver: Receiver,
    set_limits: Callable[..., None],
) -> None:
    """Times a tenth as long: a time-out of 1.5 s, fifty a second; after 3 s 24 sockets would be long full."""
    set_limits(callbacks_in_flight=24, callback_timeout_seconds=1.5, callback_circuit_rest_seconds=1.0)
    hung, healthy, pit = tenant_named("hung"), tenant_named("healthy"), tarpit(1)
    worker = start()
    slowest = 0.0
    for turn in range(6):
        for callback_id in outbox(hung, pit.urls * 25):
            worker.nudge(callback_id)
        for tenant in (hung, healthy):
            [own] = outbox(tenant, [f"{receiver.url}?{turn}-{tenant.name}"])
            worker.nudge(own)
        slowest = max(slowest, until(lambda: len(receiver.got) == 2 * turn + 2))  # noqa: B023
        until(lambda: pit.accepted >= min(turn + 1, 8))  # noqa: B023
        time.sleep(0.3)
    assert slowest < SOON
    [circuit] = ReceiverCircuit.objects.all()
    assert (circuit.tenant, circuit.failures >= 3) == (hung, True)


def test_an_open_circuit_takes_one_try_at_a_time_and_an_answer_closes_it(
    start: Callable[..., DeliveryWorker], set_limits: Callable[..., None]
) -> None:
    set_limits(
        callback_timeout_seconds=1.1, callback_circuit_failures=1, callback_circuit_rest_seconds=0.5,
        callbacks_in_flight_per_receiver=2,
    )  # fmt: skip
    tenant = tenant_named("one")
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        outbox(tenant, [url] * 10)
        start()
        until(lambda: ReceiverCircuit.objects.filter(resting_until__isnull=False))
        until(lambda: not Callback.objects.filter(sending_until__isnull=False))
        tried = CallbackTry.objects.count()
        until(lambda: CallbackTry.objects.count() > tried)
        assert CallbackTry.objects.count() == tried + 1
        assert Callback.objects.filter(sending_until__isnull=False).count() == 1
        threading.Thread(target=answer_all, args=(listener,), daemon=True).start()
        until(lambda: not ReceiverCircuit.objects.exists())
        until(lambda: Callback.objects.filter(state=Callback.State.DELIVERED).count() >= 6)
        listener.close()


def answer_all(listener: socket.socket) -> None:
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        with sock:
            try:
                sock.recv(65536)
                sock.sendall(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n")
            except OSError:
                continue


def test_a_message_that_was_due_behind_an_open_circuit_for_the_whole_schedule_is_given_up(
    start: Callable[..., DeliveryWorker], tarpit: Callable[[int], Tarpit], set_limits: Callable[..., None]
) -> None:
    set_limits(callback_timeout_seconds=1.1, callback_circuit_failures=1, callbacks_in_flight_per_receiver=1)
    tenant, pit = tenant_named("one"), tarpit(1)
    long_ago = datetime.now(UTC) - timedelta(days=5)
    old = outbox(tenant, pit.urls * 3, at=long_ago)
    outbox(tenant, pit.urls)
    ReceiverCircuit.objects.create(
        tenant=tenant,
        receiver=Callback.objects.filter(id=old[0]).values_list("receiver", flat=True)[0],
        failing_since=long_ago,
        failed_at=long_ago,
    )
    start()
    until(lambda: Callback.objects.filter(state=Callback.State.GAVE_UP).count() == 2)
    assert set(Callback.objects.filter(state=Callback.State.GAVE_UP).values_list("id", flat=True)) < set(old)
    assert CallbackTry.objects.filter(error__startswith="not sent").count() == 2


def test_a_message_that_is_late_because_no_worker_ran_is_tried_before_it_is_given_up(
    start: Callable[..., DeliveryWorker], tarpit: Callable[[int], Tarpit], set_limits: Callable[..., None]
) -> None:
    set_limits(callback_timeout_seconds=1.1, callback_circuit_failures=1, callbacks_in_flight_per_receiver=1)
    tenant, pit = tenant_named("one"), tarpit(1)
    outbox(tenant, pit.urls * 3, at=datetime.now(UTC) - timedelta(days=5))
    start()
    until(lambda: ReceiverCircuit.objects.filter(resting_until__isnull=False).exists())
    assert not Callback.objects.filter(state=Callback.State.GAVE_UP).exists()


def test_a_resolver_that_hangs_for_one_tenant_answers_the_others(
    start: Callable[..., DeliveryWorker],
    receiver: Receiver,
    set_limits: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_limits(callback_lookups=4, callback_lookup_seconds=1.0)
    go_on, threads = threading.Event(), set[int]()

    def resolve(host: str, port: int) -> list[guard.Address]:
        if "slow" in host:
            threads.add(threading.get_ident())
            go_on.wait(30)
        return [ip_address("127.0.0.1")]

    monkeypatch.setattr(guard, "resolve", resolve)
    worker = start()
    for callback_id in outbox(tenant_named("slow"), [f"http://slow{n}.example.com/" for n in range(40)]):
        worker.nudge(callback_id)
    until(lambda: len(threads) >= 2)
    [healthy] = outbox(tenant_named("fast"), [f"http://fast.example.com:{receiver.port}/"])
    worker.nudge(healthy)
    assert until(lambda: receiver.got) < SOON
    until(lambda: CallbackTry.objects.filter(error__contains="was not resolved in 1 s").count() == 40)
    assert len(threads) <= 2, "half of the look-ups is left for others"
    go_on.set()


def test_a_worker_whose_own_clock_is_behind_sends_by_the_shared_one(
    start: Callable[..., DeliveryWorker], receiver: Receiver
) -> None:
    """The clock that is handed to it counts, and never this host's."""
    ahead = Skewed(3600.0)
    [callback_id] = outbox(tenant_named("one"), [receiver.url], at=ahead.now())
    start(ahead).nudge(callback_id)
    until(lambda: receiver.got)
    sent_at = receiver.got[0].headers["webhook-timestamp"]
    assert abs(int(sent_at) - ahead.now().timestamp()) < PATIENCE


def test_two_workers_send_each_message_once(start: Callable[..., DeliveryWorker], receiver: Receiver) -> None:
    workers = [start(), start()]
    ids = outbox(tenant_named("one"), [receiver.url] * 12)
    for worker in workers:
        for callback_id in ids:
            worker.nudge(callback_id)
    until(lambda: Callback.objects.filter(state=Callback.State.DELIVERED).count() == 12)
    assert len(receiver.got) == 12
    until(lambda: not any(worker.busy() for worker in workers))


def test_a_message_whose_worker_was_killed_is_sent_again_when_its_lease_expires(
    start: Callable[..., DeliveryWorker], tarpit: Callable[[int], Tarpit], receiver: Receiver
) -> None:
    pit = tarpit(1)
    [callback_id] = outbox(tenant_named("one"), pit.urls)
    first = start()
    first.nudge(callback_id)
    until(lambda: pit.accepted)
    first.stop(0.0)  # it writes no row any more, as after a SIGKILL
    row = Callback.objects.get(id=callback_id)
    assert row.sending_until == row.next_at is not None
    Callback.objects.update(url=receiver.url)
    second = start(Skewed(30.0))
    second.nudge(callback_id)
    until(lambda: not second._nudged)
    second.stop(5.0)
    assert not receiver.got, "the lease is still the first one's"
    start(Skewed(61.0))
    until(lambda: Callback.objects.get(id=callback_id).state == Callback.State.DELIVERED)
    assert [got.headers["webhook-id"] for got in receiver.got] == [callback_id]


def test_rows_of_an_older_version_are_sent_too(
    start: Callable[..., DeliveryWorker], receiver: Receiver
) -> None:
    ids = outbox(tenant_named("one"), [receiver.url] * 3)
    Callback.objects.update(tenant=None, receiver=None)
    worker = start()
    worker.nudge(ids[0])
    until(lambda: Callback.objects.filter(state=Callback.State.DELIVERED).count() == 3)
    assert len(receiver.got) == 3
    until(lambda: not worker.busy())


def test_bodies_in_memory_are_bounded(
    start: Callable[..., DeliveryWorker],
    tarpit: Callable[[int], Tarpit],
    receiver: Receiver,
    set_limits: Callable[..., None],
) -> None:
    set_limits(callback_bytes_in_flight=1_000_000)
    pit = tarpit(8)
    ids = outbox(tenant_named("large"), pit.urls)
    Callback.objects.filter(id__in=ids).update(body="x" * 200_000)
    worker = start()
    until(lambda: pit.accepted >= 2)
    [healthy] = outbox(tenant_named("healthy"), [receiver.url])
    worker.nudge(healthy)
    assert until(lambda: receiver.got) < SOON
    assert pit.accepted == 2, "a tenant holds no more than are left for others"


def test_a_new_worker_compares_the_clocks_before_it_takes_a_message(
    start: Callable[..., DeliveryWorker], receiver: Receiver
) -> None:
    """By its own clock, an hour ahead, it would take a message that another process may be sending."""
    tenant = tenant_named("one")
    [later] = outbox(tenant, [receiver.url], at=datetime.now(UTC) + timedelta(minutes=30))
    [due] = outbox(tenant, [receiver.url])
    clock = SharedClock(Skewed(3600.0), time.time, time.time)
    start(clock, clock)
    until(lambda: Callback.objects.get(id=due).state == Callback.State.DELIVERED)
    assert Callback.objects.get(id=later).tries == 0


def test_a_new_worker_takes_no_message_while_it_learns_the_time(
    start: Callable[..., DeliveryWorker], receiver: Receiver
) -> None:
    [callback_id] = outbox(tenant_named("one"), [receiver.url])
    asked: list[bool] = []

    class Clocks(AgreedClocks):
        def is_learning(self) -> bool:
            asked.append(len(asked) < 4)
            return asked[-1]

    start(None, Clocks()).nudge(callback_id)
    assert until(lambda: len(asked) >= 4) > LOOK_SECONDS, "it waits between two looks"
    if asked[-1]:
        assert Callback.objects.get(id=callback_id).tries == 0
    until(lambda: Callback.objects.get(id=callback_id).state == Callback.State.DELIVERED)
