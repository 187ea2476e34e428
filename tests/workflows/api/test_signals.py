"""Signals: sent once however often a client tries, whole or not at all, and with bounded copies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from gpus.models import AuditEntry
from jobs.models import EndNotice
from jobs.submission.request import KeyedRequest
from tests.support.api_harness import Account, ApiHarness, with_key
from tests.support.workflow_api import advance, post, put
from workflows.models import SentSignal, Wait
from workflows.operations import signals
from workflows.sweeps import old_signals
from workflows.sweeps.old_signals import SweepCount

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("zimg")]
PAID = {"type": "object", "required": ["euro"]}


def waiting(account: Account, api: ApiHarness, *, schema: Any = None, count: int | None = None) -> str:
    """Start a run that waits for the signal `paid`; return its id."""
    signal = {"name": "paid", **({} if schema is None else {"body_schema": schema})}
    put(
        account,
        {"nodes": {"wait": {"signal": signal, **({} if count is None else {"map": {"count": count}})}}},
    )
    run_id = str(post(account, "workflows/film/runs").json()["run_id"])
    advance(api, run_id)
    advance(api, run_id)
    return run_id


def send(account: Account, body: Any = None, *, key: str | None = None, **more: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    return post(account, "signals/paid", {"body": body, **more}, **headers)


@pytest.mark.database
def test_a_repeated_signal_ends_no_wait_that_began_meanwhile(acme: Account, api: ApiHarness) -> None:
    first = waiting(acme, api)
    assert (send(acme, 1, key="k").json(), Wait.objects.get().answered_by) == ({"taken": 1}, "signal")
    second = waiting(acme, api)
    again = send(acme, 1, key="k")
    assert (again.status_code, again.json()) == (200, {"taken": 1})
    assert again.headers["Idempotency-Replayed"] == "true"
    assert Wait.objects.get(answered_at=None).node.run_id == second != first
    assert send(acme, 1).json() == {"taken": 1}, "another request"


@pytest.mark.database
def test_a_signal_that_no_run_waited_for_is_not_taken_later(acme: Account, api: ApiHarness) -> None:
    assert send(acme, key="k").json() == {"taken": 0}
    waiting(acme, api)
    assert send(acme, key="k").json() == {"taken": 0}
    assert send(acme, key="other").json() == {"taken": 1}


def test_a_key_belongs_to_one_request_of_one_tenant(acme: Account, other: Account, api: ApiHarness) -> None:
    run_id = waiting(acme, api)
    send(acme, 1, key="k")
    for refused in (send(acme, 2, key="k"), send(acme, 1, key="k", run_id=run_id)):
        assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_conflict")
    named = post(acme, "signals/other", {"body": 1}, **{"Idempotency-Key": "k"})
    assert named.json()["code"] == "idempotency_conflict"
    waiting(other, api)
    assert send(other, 1, key="k").json() == {"taken": 1}
    assert send(acme, key="not printable\t").status_code == 400


def test_a_refused_signal_can_be_mended_under_its_key(acme: Account, api: ApiHarness) -> None:
    waiting(acme, api, schema=PAID)
    refused = send(acme, {}, key="k")
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/body")
    assert send(acme, {"euro": 1}, key="k").json() == {"taken": 1}


@pytest.mark.database
def test_many_tries_at_once_end_the_waits_once(acme: Account, api: ApiHarness) -> None:
    waiting(acme, api, count=30)

    def attempt(number: int) -> int:
        try:
            return int(send(with_key(acme, acme.key), number // 5, key=f"k{number // 5}").json()["taken"])
        finally:
            connection.close()

    with ThreadPoolExecutor(5) as threads:
        taken = list(threads.map(attempt, range(10)))
    assert sorted([set(taken[:5]), set(taken[5:])], key=max) == [{0}, {30}]
    assert EndNotice.objects.count() == 30
    assert SentSignal.objects.count() == 2


@pytest.mark.database
def test_a_signal_ends_all_its_waits_or_none(
    acme: Account, api: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting(acme, api, count=3)
    monkeypatch.setattr(signals, "_BATCH", 2)
    ended: list[int] = []

    def dies(batch: Any, *args: Any, **given: Any) -> list[str]:
        if ended:
            raise SystemExit
        ended.append(len(batch))
        return write_ends(batch, *args, **given)

    write_ends = signals.write_ends
    with monkeypatch.context() as patch:
        patch.setattr(signals, "write_ends", dies)
        with pytest.raises(SystemExit):
            signals.send_signal(
                acme.tenant.pk, "paid", 1, idempotency_key=KeyedRequest("k", "f"), ports=api.ports
            )
    assert ended == [2]
    assert Wait.objects.filter(answered_at=None).count() == 3
    found = signals.send_signal(
        acme.tenant.pk, "paid", 1, idempotency_key=KeyedRequest("k", "f"), ports=api.ports
    )
    assert found == signals.TakenSignal(3)


def test_the_copies_of_a_body_are_bounded(acme: Account, api: ApiHarness, settings: Any) -> None:
    run_id = waiting(acme, api, count=5)
    waiting(acme, api)
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_signal_bytes=5_000)
    refused = send(acme, "x" * 998, key="k")
    assert (refused.status_code, refused.json()["code"]) == (413, "signal_too_large")
    assert "6 nodes wait for this signal" in refused.json()["detail"]
    assert "5000 bytes in all (DISPATCHER_WORKFLOW_SIGNAL_BYTES)" in refused.json()["detail"]
    assert refused.json()["errors"][0]["pointer"] == "/body"
    assert not Wait.objects.exclude(answered_at=None).exists()
    assert send(acme, "x" * 998, run_id=run_id).json() == {"taken": 5}


def test_the_keys_of_a_tenant_are_bounded_and_deleted_in_time(
    acme: Account, other: Account, api: ApiHarness, settings: Any
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_signal_keys=2)
    assert [send(acme, key=key).status_code for key in ("a", "b", "a")] == [200, 200, 200]
    refused = send(acme, key="c")
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_signals")
    assert (
        "2 signals and answers with an Idempotency-Key (DISPATCHER_WORKFLOW_SIGNAL_KEYS)"
        in refused.json()["detail"]
    )
    assert send(acme).status_code == send(other, key="c").status_code == 200
    assert old_signals.sweep(api.ports) == SweepCount()
    SentSignal.objects.filter(key="a").update(sent_at=timezone.now() - timedelta(days=2))
    assert send(acme, key="c").status_code == 200, "an old key takes no place"
    assert old_signals.sweep(api.ports) == SweepCount(looked=1, repaired=1)
    assert set(SentSignal.objects.values_list("key", flat=True)) == {"b", "c"}


def test_old_keys_are_deleted_in_batches_up_to_an_error_of_the_database(
    acme: Account, api: ApiHarness
) -> None:
    for key in "abc":
        send(acme, key=key)
    SentSignal.objects.update(sent_at=timezone.now() - timedelta(days=2))
    deletes = 0

    def refuse_second(execute: Any, sql: str, *rest: Any) -> Any:
        nonlocal deletes
        deletes += sql.startswith("DELETE")
        if sql.startswith("DELETE") and deletes == 2:
            raise OperationalError("locked")
        return execute(sql, *rest)

    with connection.execute_wrapper(refuse_second):
        assert old_signals.sweep(api.ports, batch=1) == SweepCount(looked=1, repaired=1, failed=1)
    counts = [old_signals.sweep(api.ports, batch=1, max_batches=1) for _ in range(3)]
    assert [count.repaired for count in counts] == [1, 1, 0]


def test_an_operators_signal_is_audited_with_what_it_ended(operator: Account, api: ApiHarness) -> None:
    waiting(operator, api)
    for _ in range(2):
        send(operator, 1, key="k")
    entry = AuditEntry.objects.get(action="send_signal")
    assert (entry.target, entry.detail["waits"]) == ("signal:paid", 1)
