"""Company hurts nobody: what the database refuses, what breaks, and what hangs at the batcher for submits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection

from dispatcher_project.web import request_limits
from dispatcher_project.web import submit_batcher as batcher_module
from gpus.errors import LeasingUnavailable
from jobs.limits import submit_limits
from jobs.models import IdempotencyKey, Job
from jobs.submission import submit as submission
from jobs.submission.request import Submit, SubmitRequest, checked_unless_replay, fingerprint
from jobs.submission.submit import submit_job
from tests.jobs.api.conftest import Account, DoorTime, World
from tests.jobs.api.test_limits import limit

from .site import JOB, Site, job, with_headers

pytestmark = pytest.mark.django_db(transaction=True)
KEYED = with_headers(idempotency_key="a")


def statuses(told: Any) -> list[int]:
    return [one.status for one in told]


def test_a_key_that_somebody_uses_meanwhile_spoils_nobody_s_submit(
    acme: Account, batcher: Site, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(acme, submits_per_second=1.0, submit_burst=4)
    submit_job(
        SubmitRequest(Submit(model="zimg", payload=JOB["payload"]), idempotency_key="a"),
        tenant=acme.tenant,
        ports=world.ports,
    )
    IdempotencyKey.objects.update(fingerprint=fingerprint(JOB))
    look, looks = submission.known_keys, list[int]()

    def look_too_early_once(tenant: int, requests: Any) -> Any:
        looks.append(tenant)
        return look(tenant, requests) if len(looks) > 1 else {}

    monkeypatch.setattr(submission, "known_keys", look_too_early_once)
    told = batcher.ask(acme.key, job(), KEYED, job())
    assert statuses(told) == [202, 202, 202]
    assert dict(told[1].headers)[b"idempotency-replayed"] == b"true"
    assert Job.objects.count() == 3
    assert batcher.viewed == 0
    assert sorted(dict(one.headers)[b"ratelimit"].split(b";")[1] for one in told) == [b"r=1", b"r=2", b"r=3"]
    assert world.leases.tokens[str(acme.tenant.pk)] == 1, "a token was taken twice"


def test_a_defect_of_ours_that_one_request_finds_is_its_alone(
    acme: Account, batcher: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(request: Any, *rest: Any) -> Any:
        if request.body.priority == 9:
            raise RuntimeError("a defect")
        return checked_unless_replay(request, *rest)

    monkeypatch.setattr(submission, "checked_unless_replay", check)
    told = batcher.ask(acme.key, job(), job(priority=9), job())
    assert statuses(told) == [202, 500, 202]
    assert Job.objects.count() == 2


def test_a_database_that_is_away_is_said_to_each_and_nobody_asks_it_again(
    acme: Account, batcher: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> Any:
        raise OperationalError("connection refused")

    monkeypatch.setattr(submission, "store", away)
    told = batcher.ask(acme.key, job(), KEYED)
    assert statuses(told) == [503, 503]
    assert {one.json()["code"] for one in told} == {"database_unavailable"}
    assert all(dict(one.headers)[b"retry-after"] == b"5" for one in told)
    assert batcher.viewed == 0


def test_a_commit_whose_answer_is_lost_is_not_made_again(
    acme: Account, batcher: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = submission.store

    def store_and_lose_the_answer(entries: Any) -> Any:
        store(entries)
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(submission, "store", store_and_lose_the_answer)
    assert statuses(batcher.ask(acme.key, job(), job())) == [503, 503]
    assert Job.objects.count() == 2, "they are durable, and were not stored twice"
    assert batcher.viewed == 0


@pytest.mark.parametrize("piece", ["push_and_wake", "answer_submit"])
def test_what_breaks_after_the_commit_is_not_begun_anew(
    acme: Account, batcher: Site, monkeypatch: pytest.MonkeyPatch, piece: str
) -> None:
    def breaks(*_: Any, **__: Any) -> Any:
        raise ValueError("a defect")

    where: Any = submission if piece == "push_and_wake" else batcher_module
    monkeypatch.setattr(where, piece, breaks)
    assert statuses(batcher.ask(acme.key, job(), job())) == [500, 500]
    assert Job.objects.count() == 2
    assert batcher.viewed == 0


def test_tickets_that_redis_did_not_take_are_pushed_later(
    acme: Account, batcher: Site, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[str] = []
    monkeypatch.setattr(
        submission, "push_again", lambda fleet, pool, tickets, ports: late.extend(t.job_id for t in tickets)
    )

    def away(*_: Any) -> Any:
        raise LeasingUnavailable("away")

    monkeypatch.setattr(world.leases, "push", away)
    told = batcher.ask(acme.key, job(), job(), job())
    assert statuses(told) == [202] * 3
    assert [one.json()["position"] for one in told] == [None] * 3
    assert sorted(late) == sorted(Job.objects.values_list("id", flat=True))


def test_a_clerk_that_fails_answers_each_with_an_error(acme: Account) -> None:
    def fails(group: Any) -> Any:
        raise RuntimeError("a defect")

    site = Site(fails)
    try:
        told = site.ask(acme.key, job(), job())
        assert statuses(told) == [500, 500]
        assert {one.json()["code"] for one in told} == {"internal_error"}
        assert statuses(site.ask(acme.key, job())) == [500], "its batch handler is free again"
    finally:
        site.close()


def test_what_was_given_up_while_the_clerk_was_held_is_not_begun(
    acme: Account, door_time: DoorTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one's time is up once it was begun; that of those behind it passes as ever."""
    may_go, answer = threading.Event(), batcher_module.answer_batch

    def wait(group: Any) -> Any:
        monkeypatch.setattr(request_limits, "time", time)
        assert may_go.wait(60)
        return answer(group)

    monkeypatch.setattr(batcher_module, "HANDLERS", 1)
    monkeypatch.setattr(batcher_module, "EXTRA_HANDLERS", 0)
    site = Site(wait, seconds=0.2)
    try:
        told = site.ask_in_turn(acme.key, [job()], [job(), job()], then=may_go.set)
        assert statuses(told) == [503] * 3
        assert {one.json()["code"] for one in told} == {"no_answer_in_time"}
        assert site.groups == [1]
        assert Job.objects.count() == 1, "only what was begun before its client was told to come again"
    finally:
        may_go.set()
        site.close()


def test_slow_groups_do_not_hold_up_what_comes_after_them(acme: Account, door_time: DoorTime) -> None:
    """Both batch handlers are held: a helper begins. Whose batch handler is held has no time left."""
    may_go, answer, held = threading.Event(), batcher_module.answer_batch, []

    def hold_the_first(group: Any) -> Any:
        if len(held) < batcher_module.HANDLERS:
            held.append(group)
            door_time.move(0.5)
            assert may_go.wait(60)
        return answer(group)

    site = Site(hold_the_first, seconds=0.5)
    try:
        told = site.ask_in_turn(
            acme.key, *[[job()]] * batcher_module.HANDLERS, [job(), job()], then=may_go.set
        )
        assert statuses(told) == [*[503] * batcher_module.HANDLERS, 202, 202]
        assert site.groups == [*[1] * batcher_module.HANDLERS, 2]
    finally:
        may_go.set()
        site.close()


# -- turns (docs/adr/0014) -------------------------------------------------------------------------


@pytest.fixture
def somebody_s_turn() -> Iterator[Callable[[str], Callable[[], None]]]:
    """Takes the turn of a limit in another transaction, until it is let go."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite writes one transaction at a time")
    with psycopg.connect(**connection.get_connection_params() | {"cursor_factory": None}) as holder:

        def take(name: str) -> Callable[[], None]:
            holder.execute("SELECT pg_advisory_xact_lock(%s)", [submit_limits._Limit(name, 0, 0, {}).lock])
            return holder.rollback

        yield take


def test_who_waits_for_a_turn_does_not_hold_up_the_others(
    acme: Account, other: Account, somebody_s_turn: Callable[[str], Callable[[], None]]
) -> None:
    limit(acme, max_queued=5)
    let_go = somebody_s_turn(f"tenant {acme.tenant.pk}")
    waited: list[int] = []

    def let_go_once_the_others_are_in() -> None:
        until = time.monotonic() + 20
        while Job.objects.filter(tenant=other.tenant).count() < 2 and time.monotonic() < until:
            time.sleep(0.01)
        waited.append(Job.objects.count())
        connection.close()
        let_go()

    watch = threading.Thread(target=let_go_once_the_others_are_in)
    site = Site()
    try:
        watch.start()
        told = site.ask_as((acme.key, job()), (other.key, job()), (other.key, job()))
        assert statuses(told) == [202, 202, 202]
        assert site.viewed == 3
        assert waited == [2]
    finally:
        watch.join()
        site.close()


def test_groups_that_name_the_same_limits_in_another_order_don_t_wait_for_each_other(
    acme: Account, other: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite writes one transaction at a time")
    monkeypatch.setattr(batcher_module, "MOST", 2)
    # waits in a circle are broken by the database, all others only take as long as they take
    monkeypatch.setattr(submission, "LOCK_WAIT_SECONDS", 50.0)
    for one in (acme, other):
        limit(one, max_queued=1000)
    site = Site()
    try:
        for _ in range(5):
            pairs = [(acme.key, job()), (other.key, job())]
            told = site.ask_as(*(pairs + pairs[::-1]) * 8)
            assert statuses(told) == [202] * 32
        assert site.viewed == 0
    finally:
        site.close()
