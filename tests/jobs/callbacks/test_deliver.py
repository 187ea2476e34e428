"""Deliveries to a real receiver: the request, what each answer does to the message, and that it is sent
once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from standardwebhooks import Webhook

from gpus.models import AuditEntry
from gpus.registry.queries import RegistryCache
from jobs.callbacks import deliver as delivering
from jobs.callbacks.deliver import DELAYS_SECONDS, Taken, replay, settle, take
from jobs.callbacks.sending import Outcome
from jobs.models import Callback, CallbackTry
from tests.support import receivers
from tests.support.receivers import NOW, Receiver, Sent, deliver, say
from tests.support.round_trips import round_trips

Send = Callable[..., Sent]
PENDING = Callback.State.PENDING
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("loopback_allowed")]


def test_the_result_arrives_signed_under_the_messages_id(receiver: Receiver, send: Send) -> None:
    now = datetime.now(UTC)
    sent = send(receiver.url + "?order=7", now=now)
    assert deliver(sent.callback.id, now=now) == "delivered"
    [got] = receiver.got
    body = Webhook(sent.secret).verify(got.body, got.headers)
    assert body["result"] == {"url": "s3://image.png"}
    headers = {name.lower(): value for name, value in got.headers.items()}
    assert headers["webhook-id"] == sent.callback.id
    assert headers["content-type"] == "application/json"
    assert headers["host"] == f"127.0.0.1:{receiver.port}"
    assert got.path == "/hook?order=7"
    row = sent.fresh()
    assert (row.state, row.tries, row.next_at) == (Callback.State.DELIVERED, 1, None)
    assert row.delivered_at is not None
    assert [(line.number, line.status_code, line.error) for line in row.log.all()] == [(1, 204, "")]


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 404, 500, 503])
def test_any_answer_but_2xx_is_tried_again(receiver: Receiver, send: Send, status: int) -> None:
    receiver.answer = say(status, {"Location": "/elsewhere"})
    sent = send(receiver.url)
    assert deliver(sent.callback.id, now=NOW) == "failed"
    row = sent.fresh()
    assert row.state == PENDING
    assert row.next_at is not None
    assert timedelta(seconds=4) < row.next_at - NOW < timedelta(seconds=25)
    assert [(line.status_code, line.error) for line in row.log.all()] == [(status, f"HTTP {status}")]
    assert [got.path for got in receiver.got] == ["/hook"]  # redirects are not followed


def test_a_repeat_carries_the_same_id_and_body(receiver: Receiver, send: Send) -> None:
    receiver.answer = say(500)
    sent = send(receiver.url)
    deliver(sent.callback.id, now=NOW)
    receiver.answer = say(200)
    assert deliver(sent.callback.id, now=NOW + timedelta(minutes=1)) == "delivered"
    first, second = receiver.got
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.headers["webhook-timestamp"] != second.headers["webhook-timestamp"]
    assert first.body == second.body
    assert [(line.number, line.status_code) for line in sent.callback.log.all()] == [(1, 500), (2, 200)]


@pytest.mark.database
def test_410_stops_for_good(receiver: Receiver, send: Send) -> None:
    receiver.answer = say(410)
    sent = send(receiver.url)
    assert deliver(sent.callback.id, now=NOW) == "gone"
    assert (sent.fresh().state, sent.fresh().next_at) == (Callback.State.GONE, None)
    assert deliver(sent.callback.id, now=NOW + timedelta(days=9)) == "not_due"
    assert len(receiver.got) == 1


def test_after_the_schedule_it_gives_up(receiver: Receiver, send: Send) -> None:
    receiver.answer = say(500)
    sent = send(receiver.url)
    outcomes, now = [], NOW
    for _ in DELAYS_SECONDS:
        outcomes.append(deliver(sent.callback.id, now=now))
        now = sent.fresh().next_at or now
    assert outcomes == ["failed"] * 9 + ["gave_up"]
    assert timedelta(hours=68) < now - NOW < timedelta(hours=84)
    assert (sent.fresh().state, sent.fresh().next_at) == (Callback.State.GAVE_UP, None)
    assert [line.number for line in sent.callback.log.all()] == list(range(1, 11))


def test_a_receiver_that_asks_for_a_pause_gets_it(receiver: Receiver, send: Send) -> None:
    receiver.answer = say(429, {"Retry-After": "3600"})
    sent = send(receiver.url)
    deliver(sent.callback.id, now=NOW)
    again_at = sent.fresh().next_at
    assert again_at is not None
    assert again_at >= NOW + timedelta(hours=1)


def test_a_receiver_that_is_away_is_tried_again(receiver: Receiver, send: Send) -> None:
    sent = send("http://127.0.0.1:9/hook")
    assert deliver(sent.callback.id, now=NOW) == "failed"
    [line] = sent.callback.log.all()
    assert line.status_code is None
    assert "ConnectionRefusedError" in line.error


@pytest.mark.database
def test_two_deliverers_at_once_send_once(receiver: Receiver, send: Send) -> None:
    sent = send(receiver.url)
    barrier, outcomes = threading.Barrier(6), []

    def one() -> None:
        barrier.wait()
        outcomes.append(deliver(sent.callback.id, now=NOW))
        connection.close()

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["delivered"] + ["not_due"] * 5
    assert len(receiver.got) == 1


def test_no_other_worker_sends_while_a_slow_receiver_is_answering(receiver: Receiver, send: Send) -> None:
    sent = send(receiver.url)
    meanwhile = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        meanwhile.append(deliver(sent.callback.id, now=NOW + timedelta(seconds=16)))
        connection.close()
        say(200)(handler)

    receiver.answer = answer
    assert deliver(sent.callback.id, now=NOW) == "delivered"
    assert meanwhile == ["not_due"]


def test_a_crash_after_sending_repeats_and_never_loses(
    receiver: Receiver, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = send(receiver.url)
    with monkeypatch.context() as crash:
        crash.setattr(receivers, "settle", lambda *args, **kwargs: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            deliver(sent.callback.id, now=NOW)
    assert [line.error for line in sent.callback.log.all()] == ["sent; its end was not recorded"]
    later = NOW + timedelta(minutes=2)
    assert deliver(sent.callback.id, now=later) == "delivered"
    assert len({got.headers["webhook-id"] for got in receiver.got}) == 1
    assert len(receiver.got) == 2


def test_no_transaction_is_open_while_sending(receiver: Receiver, send: Send) -> None:
    sent = send(receiver.url)
    seen: list[Callback] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        seen.append(Callback.objects.get(id=sent.callback.id))
        Callback.objects.filter(id=sent.callback.id).update(url=receiver.url)  # would wait for a lock
        connection.close()
        say(200)(handler)

    receiver.answer = answer
    assert deliver(sent.callback.id, now=NOW) == "delivered"
    assert seen[0].tries == 1


@pytest.mark.database
def test_a_message_with_an_unreadable_secret_waits_and_uses_up_no_try(receiver: Receiver, send: Send) -> None:
    receiver.answer = say(500)
    sent, other = send(receiver.url), send(receiver.url)
    assert deliver(sent.callback.id, now=NOW) == "failed"
    tenant = sent.callback.job.tenant
    readable = tenant.webhook_secret_encrypted
    tenant.webhook_secret_encrypted = "stored under another key"
    tenant.save()
    receiver.got.clear()
    now = NOW
    for _ in range(20):  # more than the schedule has tries
        now += timedelta(seconds=delivering.SECRET_SECONDS)
        assert deliver(sent.callback.id, now=now) == "not_due"
    assert receiver.got == []
    waiting = sent.fresh()
    assert (waiting.state, waiting.tries) == (Callback.State.PENDING, 1)
    assert waiting.next_at == now + timedelta(seconds=delivering.SECRET_SECONDS)
    assert list(waiting.log.values_list("number", "error", "at")) == [
        (1, "HTTP 500", NOW),
        (2, delivering.SECRET_UNREADABLE, now),
    ]
    assert deliver(other.callback.id, now=now) == "failed"  # another tenant's message is sent meanwhile
    tenant.webhook_secret_encrypted = readable
    tenant.save()
    receiver.answer = say(204)
    assert deliver(sent.callback.id, now=waiting.next_at) == "delivered"
    assert (sent.fresh().tries, waiting.log.count()) == (2, 3)


def test_a_message_that_is_not_due_is_not_sent(send: Send) -> None:
    waiting = send("http://127.0.0.1:1/", now=NOW).callback
    Callback.objects.filter(id=waiting.id).update(next_at=NOW + timedelta(seconds=5))
    assert deliver(waiting.id, now=NOW) == "not_due"
    assert deliver("msg_unknown", now=NOW) == "not_due"


@pytest.mark.database
def test_a_replay_sends_again_under_the_same_id_with_a_fresh_schedule(receiver: Receiver, send: Send) -> None:
    receiver.answer = say(410)
    sent = send(receiver.url)
    deliver(sent.callback.id, now=NOW)
    later = NOW + timedelta(days=3)
    assert replay(sent.callback.id, now=later, by="user:boss") is True
    assert (sent.fresh().state, sent.fresh().tries) == (PENDING, 0)
    receiver.answer = say(200)
    assert deliver(sent.callback.id, now=later) == "delivered"
    assert len({got.headers["webhook-id"] for got in receiver.got}) == 1
    assert [line.number for line in sent.callback.log.all()] == [1, 2]
    assert replay("msg_unknown", now=later, by="user:boss") is False
    [entry] = AuditEntry.objects.all()
    assert (entry.actor, entry.action) == ("user:boss", "replay_callback")
    assert entry.target == f"callback:{sent.callback.id}"


@pytest.mark.database
def test_a_replay_during_a_try_is_not_undone_by_its_end(receiver: Receiver, send: Send) -> None:
    sent = send(receiver.url)
    later = NOW + timedelta(minutes=5)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        replay(sent.callback.id, now=later, by="user:boss")
        connection.close()
        say(500)(handler)

    receiver.answer = answer
    deliver(sent.callback.id, now=NOW)
    assert (sent.fresh().state, sent.fresh().tries, sent.fresh().next_at) == (PENDING, 0, later)


def test_body_that_the_receiver_reads_is_the_stored_text(receiver: Receiver, send: Send) -> None:
    sent = send(receiver.url)
    deliver(sent.callback.id, now=NOW)
    assert receiver.got[0].body.decode() == sent.callback.body
    assert json.loads(sent.callback.body)["status"] == "completed"


@pytest.mark.database
def test_a_try_asks_the_database_for_few_statements(receiver: Receiver, send: Send) -> None:
    """A client waits for them: BEGIN, three to take the message, COMMIT; BEGIN, two to settle it, COMMIT."""
    sent = send(receiver.url)
    registry = RegistryCache()
    deliver(sent.callback.id, now=NOW, registry=registry)
    other = send(receiver.url)
    with CaptureQueriesContext(connection) as asked:
        assert deliver(other.callback.id, now=NOW, registry=registry) == "delivered"
    assert len(asked) == 9, [one["sql"] for one in asked.captured_queries]


@pytest.mark.database
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite's writers take turns with everything")
def test_taking_a_message_locks_no_row_but_its_own(receiver: Receiver, send: Send) -> None:
    """Its tenant's submits, and the end of its job's attempt, must not wait for it."""
    sent = send(receiver.url)
    with transaction.atomic():
        assert delivering._read_due([sent.callback.id], next_at=NOW)
        done = []

        def other_client() -> None:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM jobs_job FOR UPDATE NOWAIT")
                cursor.execute("SELECT 1 FROM jobs_tenant FOR UPDATE NOWAIT")
                done.append(cursor.fetchall())
            connection.close()

        thread = threading.Thread(target=other_client)
        thread.start()
        thread.join()
    assert done == [[(1,)]]


@pytest.mark.database
def test_taking_and_settling_take_two_round_trips_to_postgresql(send: Send) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has none")
    callback = send("http://127.0.0.1:1/hook").callback
    taken: list[Taken] = []
    assert round_trips(lambda: taken.extend(take([callback.id], NOW, lambda *_: True)[0])) == 2
    assert round_trips(partial(settle, [(taken[0], Outcome(None, "no answer", 5))], NOW)) == 2
    assert CallbackTry.objects.get(callback=callback).error == "no answer"
