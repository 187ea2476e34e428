"""The order of due messages, and what a pick reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.callbacks.pick import Limits, Picker, PickLimits, Shares, delivery_report
from jobs.models import Callback, ReceiverCircuit, Tenant
from tests.support.outboxes import outbox, tenant_named
from tests.support.receivers import NOW, Sent

pytestmark = pytest.mark.django_db

LIMITS = Limits(total=40, per_tenant=40, per_receiver=8, bytes=10**9, circuit_failures=3)
LATER = NOW + timedelta(seconds=1)


def picked(ids: list[str]) -> Counter[tuple[str, str]]:
    rows = Callback.objects.filter(id__in=ids).values_list("tenant__name", "receiver")
    return Counter((tenant, receiver.partition(":")[0]) for tenant, receiver in rows)


@pytest.mark.database
def test_tenants_take_turns_and_the_receiver_with_the_fewest_in_flight_is_first() -> None:
    many, few = tenant_named("many"), tenant_named("few")
    outbox(many, ["http://a.example.com/"] * 100 + ["http://b.example.com/"], at=NOW)
    outbox(few, ["http://c.example.com/"] * 2, at=NOW + timedelta(milliseconds=1))
    ids, is_more = Picker().pick(Shares(LIMITS), LATER)
    found = picked(ids)
    assert found.pop(("many", "a.example.com")) in (7, 8)
    assert found == {("many", "b.example.com"): 1, ("few", "c.example.com"): 2}
    assert is_more
    shares = Shares(LIMITS)
    for _ in range(8):
        shares.start((many.pk, "a.example.com:80"), 0)
    ids, is_more = Picker().pick(shares, LATER)
    assert picked(ids) == {("many", "b.example.com"): 1, ("few", "c.example.com"): 2}
    assert is_more, "the others go on as soon as one of them has ended"


@pytest.mark.database
def test_a_receiver_with_fewer_in_flight_goes_before_one_that_is_due_longer() -> None:
    tenant, shares = tenant_named("one"), Shares(LIMITS)
    outbox(tenant, ["http://a.example.com/"], at=NOW - timedelta(seconds=60))
    [second] = outbox(tenant, ["http://b.example.com/"], at=NOW)
    shares.start((tenant.pk, "a.example.com:80"), 0)
    assert Picker(PickLimits(messages=1)).pick(shares, LATER) == ([second], True)


def test_the_longest_due_of_a_queue_goes_first(send: Callable[..., Sent]) -> None:
    ids = outbox(tenant_named("one"), ["http://a.example.com/"] * 20, at=NOW)
    for at, pk in enumerate(ids):
        Callback.objects.filter(id=pk).update(next_at=NOW - timedelta(seconds=at))
    assert set(Picker().pick(Shares(LIMITS), NOW)[0]) == set(ids[-8:])


@pytest.mark.database
def test_every_queue_has_its_turn_however_many_there_are() -> None:
    for name in ("one", "two"):
        outbox(tenant_named(name), [f"http://h{at:02}.example.com/" for at in range(25)], at=NOW)
    seen, chooser = set[str](), Picker(PickLimits(queues=10, tenants=1))
    for _ in range(20):
        seen |= set(chooser.pick(Shares(LIMITS), LATER)[0])
    assert len(seen) == 50


def test_due_messages_do_not_wait_for_turns_of_tenants_without_any() -> None:
    for number in range(2 * PickLimits().tenants):
        outbox(tenant_named(f"later-{number}"), ["http://a.example.com/"], at=NOW + timedelta(hours=5))
    [due] = outbox(tenant_named("last"), ["http://b.example.com/"], at=NOW)
    assert Picker().pick(Shares(LIMITS), LATER) == ([due], False)


def test_every_tenant_gets_a_turn_beside_those_with_the_longest_due_messages() -> None:
    """The due messages of the first tenants may all rest behind an open circuit."""
    for number in range(2 * PickLimits().tenants):
        outbox(tenant_named(f"due-{number}"), ["http://a.example.com/"] * 3, at=NOW - timedelta(hours=1))
    [due] = outbox(tenant_named("last"), ["http://b.example.com/"], at=NOW)
    ReceiverCircuit.objects.bulk_create(
        ReceiverCircuit(
            tenant=tenant,
            receiver="a.example.com:80",
            failures=3,
            failing_since=NOW,
            failed_at=NOW,
            resting_until=NOW + timedelta(hours=1),
        )
        for tenant in Tenant.objects.exclude(name="last")
    )
    chooser = Picker()
    assert [due] in [chooser.pick(Shares(LIMITS), LATER)[0] for _ in range(5)]


def test_a_pick_reads_a_row_per_queue_and_not_the_backlog() -> None:
    outbox(tenant_named("one"), ["http://a.example.com/"] * 300, at=NOW)
    with CaptureQueriesContext(connection) as asked:
        Picker().pick(Shares(LIMITS), LATER)
    assert len(asked) <= 6, [one["sql"] for one in asked.captured_queries]
    with CaptureQueriesContext(connection) as asked:
        Picker().pick(Shares(LIMITS), NOW - timedelta(seconds=1))
    assert len(asked) == 1, "no message is due"


@pytest.mark.database
def test_the_report_counts_due_messages_and_those_behind_an_open_circuit_apart() -> None:
    tenant = tenant_named("one")
    outbox(tenant, ["http://a.example.com/"] * 3 + ["http://b.example.com/"] * 2, at=NOW)
    ReceiverCircuit.objects.create(
        tenant=tenant, receiver="a.example.com:80", failures=3, failing_since=NOW, failed_at=NOW
    )
    Callback.objects.filter(id=outbox(tenant, ["http://c.example.com/"], at=NOW)[0]).update(
        next_at=NOW + timedelta(seconds=60), sending_until=NOW + timedelta(seconds=60)
    )
    report = delivery_report(NOW + timedelta(seconds=30))
    assert (report.in_flight, report.due, report.held, report.open_circuits) == (1, 2, 3, 1)
    assert report.oldest_due_seconds == 30
    Callback.objects.filter(receiver="b.example.com:80").update(receiver=None, tenant=None)
    assert delivery_report(NOW + timedelta(seconds=30)).oldest_due_seconds == 30, "older rows too"
    Callback.objects.filter(receiver=None).delete()
    assert delivery_report(NOW + timedelta(seconds=30)).oldest_due_seconds == 0
