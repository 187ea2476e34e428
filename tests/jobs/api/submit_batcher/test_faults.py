"""Faults in the submit batcher (refusals of the database, errors, hangs) affect only their own request."""

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
from foundation.database.row_limits import lock_key
from gpus.errors import LeasingUnavailable
from jobs.models import IdempotencyKey, Job
from jobs.submission import submit as submission
from jobs.submission.request import Submit, SubmitRequest, checked_unless_replay, fingerprint
from jobs.submission.submit import submit_job
from tests.jobs.api.submit_batcher.site import JOB, Site, job, with_headers
from tests.support.api_harness import Account, ApiHarness, GatewayClock
from tests.support.limits import limit

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database]
KEYED = with_headers(idempotency_key="a")


def statuses(responses: Any) -> list[int]:
    return [one.status for one in responses]


def test_a_key_used_meanwhile_does_not_fail_other_submits(
    acme: Account, batcher: Site, api: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(acme, submits_per_second=1.0, submit_burst=4)
    submit_job(
        SubmitRequest(Submit(model="zimg", payload=JOB["payload"]), idempotency_key="a"),
        tenant=acme.tenant,
        ports=api.ports,
    )
    IdempotencyKey.objects.update(fingerprint=fingerprint(JOB))
    look, looks = submission.known_keys, list[int]()

    def look_too_early_once(tenant: int, requests: Any) -> Any:
        looks.append(tenant)
        return look(tenant, requests) if len(looks) > 1 else {}

    monkeypatch.setattr(submission, "known_keys", look_too_early_once)
    responses = batcher.ask(acme.key, job(), KEYED, job())
    assert statuses(responses) == [202, 202, 202]
    assert dict(responses[1].headers)[b"idempotency-replayed"] == b"true"
    assert Job.objects.count() == 3
    assert batcher.viewed == 0
    assert sorted(dict(one.headers)[b"ratelimit"].split(b";")[1] for one in responses) == [
        b"r=1",
        b"r=2",
        b"r=3",
    ]
    assert api.leases.tokens[str(acme.tenant.pk)] == 1, "a token was taken twice"


def test_an_internal_error_affects_only_its_own_request(
    acme: Account, batcher: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(request: Any, *rest: Any, **named: Any) -> Any:
        if request.body.priority == 9:
            raise RuntimeError("a defect")
        return checked_unless_replay(request, *rest, **named)

    monkeypatch.setattr(submission, "checked_unless_replay", check)
    responses = batcher.ask(acme.key, job(), job(priority=9), job())
    assert statuses(responses) == [202, 500, 202]
    assert Job.objects.count() == 2


def test_an_unavailable_database_is_reported_to_each_without_a_retry(
    acme: Account, batcher: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> Any:
        raise OperationalError("connection refused")

    monkeypatch.setattr(submission, "store", away)
    responses = batcher.ask(acme.key, job(), KEYED)
    assert statuses(responses) == [503, 503]
    assert {one.json()["code"] for one in responses} == {"database_unavailable"}
    assert all(dict(one.headers)[b"retry-after"] == b"5" for one in responses)
    assert batcher.viewed == 0


def test_a_commit_with_a_lost_response_is_not_repeated(
    acme: Account, batcher: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = submission.store

    def store_and_lose_the_answer(entries: Any) -> Any:
        store(entries)
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(submission, "store", store_and_lose_the_answer)
    assert statuses(batcher.ask(acme.key, job(), job())) == [503, 503]
    assert Job.objects.count() == 2, "the jobs are durable and were not stored twice"
    assert batcher.viewed == 0


@pytest.mark.parametrize("piece", ["push_and_wake", "answer_submit"])
def test_an_error_after_the_commit_does_not_repeat_the_group(
    acme: Account, batcher: Site, monkeypatch: pytest.MonkeyPatch, piece: str
) -> None:
    def breaks(*_: Any, **__: Any) -> Any:
        raise ValueError("a defect")

    where: Any = submission if piece == "push_and_wake" else batcher_module
    monkeypatch.setattr(where, piece, breaks)
    assert statuses(batcher.ask(acme.key, job(), job())) == [500, 500]
    assert Job.objects.count() == 2
    assert batcher.viewed == 0


def test_tickets_refused_by_redis_are_pushed_later(
    acme: Account, batcher: Site, api: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[str] = []
    monkeypatch.setattr(
        submission, "push_again", lambda fleet, pool, tickets, ports: late.extend(t.job_id for t in tickets)
    )

    def away(*_: Any) -> Any:
        raise LeasingUnavailable("away")

    monkeypatch.setattr(api.leases, "push", away)
    responses = batcher.ask(acme.key, job(), job(), job())
    assert statuses(responses) == [202] * 3
    assert [one.json()["position"] for one in responses] == [None] * 3
    assert sorted(late) == sorted(Job.objects.values_list("id", flat=True))


def test_a_failing_batch_handler_responds_to_each_with_an_error(acme: Account) -> None:
    def fails(group: Any) -> Any:
        raise RuntimeError("a defect")

    site = Site(fails)
    try:
        responses = site.ask(acme.key, job(), job())
        assert statuses(responses) == [500, 500]
        assert {one.json()["code"] for one in responses} == {"internal_error"}
        assert statuses(site.ask(acme.key, job())) == [500], "the batch handler is free again"
    finally:
        site.close()


def test_a_request_abandoned_while_the_batch_handler_was_blocked_is_not_started(
    acme: Account, gateway_clock: GatewayClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request's deadline passes after it was started; those behind it have their own deadlines."""
    may_go, answer = threading.Event(), batcher_module.SubmitHandler()

    def wait(group: Any) -> Any:
        monkeypatch.setattr(request_limits, "time", time)
        assert may_go.wait(60)
        return answer(group)

    site = Site(wait, seconds=0.2, handlers=1, extra_handlers=0)
    try:
        responses = site.ask_in_turn(acme.key, [job()], [job(), job()], then=may_go.set)
        assert statuses(responses) == [503] * 3
        assert {one.json()["code"] for one in responses} == {"no_answer_in_time"}
        assert site.groups == [1]
        assert Job.objects.count() == 1, "only work started before the client got its 503"
    finally:
        may_go.set()
        site.close()


def test_slow_groups_do_not_delay_later_ones(acme: Account, gateway_clock: GatewayClock) -> None:
    """Both batch handlers are blocked, so a helper starts; requests of the blocked ones have no time left."""
    may_go, answer, held = threading.Event(), batcher_module.SubmitHandler(), []

    def hold_the_first(group: Any) -> Any:
        if len(held) < batcher_module.HANDLERS:
            held.append(group)
            gateway_clock.move(0.5)
            assert may_go.wait(60)
        return answer(group)

    site = Site(hold_the_first, seconds=0.5)
    try:
        responses = site.ask_in_turn(
            acme.key, *[[job()]] * batcher_module.HANDLERS, [job(), job()], then=may_go.set
        )
        assert statuses(responses) == [*[503] * batcher_module.HANDLERS, 202, 202]
        assert site.groups == [*[1] * batcher_module.HANDLERS, 2]
    finally:
        may_go.set()
        site.close()


# -- locks of limits (docs/adr/0014) -------------------------------------------------------------------------


@pytest.fixture
def hold_limit_lock() -> Iterator[Callable[[str], Callable[[], None]]]:
    """Hold the lock of a limit in another transaction until released."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite writes one transaction at a time")
    with psycopg.connect(**connection.get_connection_params() | {"cursor_factory": None}) as holder:

        def take(name: str) -> Callable[[], None]:
            holder.execute("SELECT pg_advisory_xact_lock(%s)", [lock_key(name)])
            return holder.rollback

        yield take


def test_a_group_that_waits_for_a_lock_does_not_delay_the_others(
    acme: Account, other: Account, hold_limit_lock: Callable[[str], Callable[[], None]]
) -> None:
    limit(acme, max_queued=5)
    release_lock = hold_limit_lock(f"tenant {acme.tenant.pk}")
    waited: list[int] = []

    def release_after_the_other_group() -> None:
        until = time.monotonic() + 20
        while Job.objects.filter(tenant=other.tenant).count() < 2 and time.monotonic() < until:
            time.sleep(0.01)
        waited.append(Job.objects.count())
        connection.close()
        release_lock()

    watch = threading.Thread(target=release_after_the_other_group)
    site = Site()
    try:
        watch.start()
        responses = site.ask_as((acme.key, job()), (other.key, job()), (other.key, job()))
        assert statuses(responses) == [202, 202, 202]
        assert site.viewed == 3
        assert waited == [2]
    finally:
        watch.join()
        site.close()


def test_groups_with_limits_in_another_order_do_not_deadlock(
    acme: Account, other: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite writes one transaction at a time")
    # the database breaks deadlocks; other waits only take their time
    monkeypatch.setattr(submission, "LOCK_WAIT_SECONDS", 50.0)
    for one in (acme, other):
        limit(one, max_queued=1000)
    site = Site(max_group=2)
    try:
        for _ in range(5):
            pairs = [(acme.key, job()), (other.key, job())]
            responses = site.ask_as(*(pairs + pairs[::-1]) * 8)
            assert statuses(responses) == [202] * 32
        assert site.viewed == 0
    finally:
        site.close()
