"""The next ticket: bands, fair order of tenants, head starts; and how tickets wait."""

from __future__ import annotations

from collections import Counter

import pytest

from gpus.protocol import PushOutcome
from tests.gpus.leasing.lease_harness import MODEL, POOL, LeaseHarness


def test_a_tenants_tickets_go_in_order_of_place(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("late", place=20)
    harness.push("early", place=10)
    assert harness.run_all() == ["early", "late"]


def test_a_head_start_of_a_minute_per_priority_level_inside_the_band(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("five", priority=5, place=0)
    harness.push("four", priority=4, place=59)
    harness.push("too-late", priority=4, place=61)
    harness.push("six", priority=6, place=0)
    assert harness.run_all() == ["four", "five", "too-late", "six"]


def test_bands_go_before_places(harness: LeaseHarness) -> None:
    harness.server()
    for job, priority in {"bulk": 7, "normal": 6, "urgent": 3}.items():
        harness.push(job, priority=priority, place=0)
    assert harness.run_all() == ["urgent", "normal", "bulk"]


def test_a_lower_band_gets_every_sixteenth_dispatch_of_the_pool(harness: LeaseHarness) -> None:
    harness.server()
    harness.push(*(f"u{i:02}" for i in range(40)), priority=1)
    harness.push("b1", "b2", "b3", priority=9)
    order = harness.run_all()
    assert [place for place, job in enumerate(order) if job.startswith("b")] == [15, 31, 42]


def test_a_band_that_ran_empty_starts_waiting_again(harness: LeaseHarness) -> None:
    harness.server()
    harness.push(*(f"u{i:02}" for i in range(30)), priority=1)
    harness.push("gone", priority=9)
    lease = harness.must_claim()
    for _ in range(9):
        lease = harness.next(lease)
    harness.leases.remove(POOL, harness.tickets["gone"])
    harness.push("bulk", priority=9)
    order = [lease.job_id]
    for _ in range(16):
        lease = harness.next(lease)
        order.append(lease.job_id)
    assert order.index("bulk") == 16


def test_tenants_alternate_despite_one_large_backlog(harness: LeaseHarness) -> None:
    harness.server()
    harness.push(*(f"big{i}" for i in range(10)), tenant="big")
    harness.push("small1", "small2", tenant="small")
    assert {job for job in harness.run_all()[:4] if job.startswith("small")} == {"small1", "small2"}


def test_turns_are_counted_in_gpu_seconds_not_in_jobs(harness: LeaseHarness) -> None:
    harness.server()
    harness.push(*(f"long{i}" for i in range(30)), tenant="long")
    harness.push(*(f"short{i}" for i in range(30)), tenant="short")
    served: Counter[str] = Counter()
    lease = harness.must_claim()
    for _ in range(33):
        served[lease.tenant] += 1
        lease = harness.next(lease, 10.0 if lease.tenant == "long" else 1.0)
    assert served["short"] == pytest.approx(10 * served["long"], abs=8)


def test_a_tenant_of_twice_the_weight_gets_twice_the_gpu_seconds(harness: LeaseHarness) -> None:
    harness.server()
    harness.tenant("heavy", weight=2.0)
    harness.push(*(f"h{i}" for i in range(20)), tenant="heavy")
    harness.push(*(f"l{i}" for i in range(20)), tenant="light")
    first = harness.run_all()[:15]
    assert sum(job.startswith("h") for job in first) == 10


def test_an_idle_tenant_saves_up_no_turns(harness: LeaseHarness) -> None:
    harness.server()
    harness.push(*(f"busy{i}" for i in range(20)), tenant="busy")
    lease = harness.must_claim()
    for _ in range(9):
        lease = harness.next(lease)
    harness.push(*(f"new{i}" for i in range(20)), tenant="new")
    order = []
    for _ in range(10):
        lease = harness.next(lease)
        order.append(lease.tenant)
    assert Counter(order) == {"new": 5, "busy": 5}


def test_an_idle_tenant_keeps_its_finish_tag(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("a1", tenant="a")
    harness.push("b1", tenant="b")
    first, second = harness.must_claim(), harness.must_claim()
    harness.release(first, gpu_seconds=100)
    harness.release(second, gpu_seconds=1)
    harness.leases.confirm_ends([first.ref, second.ref])
    harness.push("a2", tenant="a")
    harness.push("b2", "b3", tenant="b")
    assert harness.run_all() == ["b2", "b3", "a2"]


def test_a_refused_job_costs_nothing(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("a1", "a2", tenant="a")
    harness.push("b1", "b2", tenant="b")
    lease = harness.must_claim()
    assert lease.job_id == "a1"
    assert harness.next(lease, 0.0).job_id == "a2"


def test_a_lease_without_a_known_cost_is_charged_for_the_time_held(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("a1", "a2", tenant="a")
    harness.push(*(f"b{i}" for i in range(5)), tenant="b")
    lease = harness.must_claim()
    harness.wait(3.5)
    order = [lease.job_id]
    for _ in range(5):
        lease = harness.next(lease, None if lease.job_id == "a1" else 1.0)
        order.append(lease.job_id)
    assert order == ["a1", "b0", "b1", "b2", "b3", "a2"]


def test_estimates_are_learned_per_model_and_tenant(harness: LeaseHarness) -> None:
    harness.server()
    assert harness.leases.estimate_seconds(MODEL, "t1") == 1.0
    harness.push("j1", "j2")
    lease = harness.next(harness.must_claim(), 10.0)
    assert lease.estimate_seconds == 10.0
    harness.release(lease, gpu_seconds=20.0)
    assert harness.leases.estimate_seconds(MODEL, "t1") == pytest.approx(10.5)
    assert harness.leases.estimate_seconds(MODEL, "unknown") == pytest.approx(10.5)
    assert harness.leases.estimate_seconds("other", "t1") == 1.0


def test_switching_to_fifo_and_back_is_live_and_keeps_every_ticket(harness: LeaseHarness) -> None:
    harness.server()
    harness.push(*(f"a{i}" for i in range(6)), tenant="a")
    harness.push(*(f"b{i}" for i in range(6)), tenant="b")
    harness.pool("fifo")
    lease = harness.must_claim()
    order = [lease.job_id]
    for _ in range(3):
        lease = harness.next(lease)
        order.append(lease.job_id)
    assert order == ["a0", "a1", "a2", "a3"]
    harness.pool("fair")
    assert harness.waiting() == 8
    for _ in range(4):
        lease = harness.next(lease)
        order.append(lease.job_id)
    assert order[4:] == ["b0", "b1", "b2", "b3"]


def test_a_retry_keeps_its_place(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("first", "second", "third")
    lease = harness.must_claim()
    harness.release(lease, gpu_seconds=0)
    harness.leases.confirm_ends([lease.ref])
    harness.leases.push(POOL, [harness.tickets["first"]])
    assert harness.run_all() == ["first", "second", "third"]


# -- standing in line ----------------------------------------------------------------------------------


def test_a_ticket_waits_once(harness: LeaseHarness) -> None:
    harness.push("j1")
    assert harness.push("j1")[0].outcome is PushOutcome.DUPLICATE
    assert harness.waiting() == 1


def test_a_leased_or_settling_job_gets_no_ticket(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1")
    lease = harness.must_claim()
    assert harness.push("j1")[0].outcome is PushOutcome.HELD
    harness.release(lease)
    assert harness.push("j1")[0].outcome is PushOutcome.HELD
    harness.leases.confirm_ends([lease.ref])
    assert harness.push("j1")[0].outcome is PushOutcome.LEASED


def test_remove_returns_whether_the_ticket_was_waiting(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1", "j2")
    assert harness.leases.remove(POOL, harness.tickets["j2"])
    assert not harness.leases.remove(POOL, harness.tickets["j2"])
    harness.must_claim()
    assert not harness.leases.remove(POOL, harness.tickets["j1"])
    assert harness.waiting() == 0


def test_tickets_are_reachable_in_line_leased_and_settling(harness: LeaseHarness) -> None:
    harness.server()
    harness.push("j1", "j2")
    harness.ticket("j3")
    lease = harness.must_claim()
    assert [harness.in_line(job) for job in ("j1", "j2", "j3")] == [True, True, False]
    harness.release(lease)
    assert harness.in_line("j1")
    harness.leases.confirm_ends([lease.ref])
    assert not harness.in_line("j1")


def test_a_push_forecasts_a_lease_only_while_slots_are_free(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    outcomes = [result.outcome for result in harness.push("j1", "j2", "j3")]
    assert outcomes == [PushOutcome.LEASED, PushOutcome.LEASED, PushOutcome.QUEUED]


def test_positions_count_higher_bands_and_turns(harness: LeaseHarness) -> None:
    harness.push("u1", "u2", priority=1)
    harness.push(*(f"big{i}" for i in range(50)), tenant="big")
    assert harness.push("small", tenant="small")[0].position == 4
    assert harness.push("bulk", priority=9)[0].position == 54
    harness.pool("fifo")
    assert harness.push("last", tenant="small")[0].position == 54
