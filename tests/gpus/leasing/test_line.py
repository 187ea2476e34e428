"""The next ticket: bands, fair order of tenants, head starts; and how tickets wait."""

from __future__ import annotations

from collections import Counter

import pytest

from gpus.protocol import PushOutcome
from tests.gpus.leasing.rig import MODEL, POOL, Rig


def test_a_tenants_tickets_go_in_order_of_place(rig: Rig) -> None:
    rig.server()
    rig.push("late", place=20)
    rig.push("early", place=10)
    assert rig.run_all() == ["early", "late"]


def test_a_head_start_of_a_minute_per_priority_level_inside_the_band(rig: Rig) -> None:
    rig.server()
    rig.push("five", priority=5, place=0)
    rig.push("four", priority=4, place=59)
    rig.push("too-late", priority=4, place=61)
    rig.push("six", priority=6, place=0)
    assert rig.run_all() == ["four", "five", "too-late", "six"]


def test_bands_go_before_places(rig: Rig) -> None:
    rig.server()
    for job, priority in {"bulk": 7, "normal": 6, "urgent": 3}.items():
        rig.push(job, priority=priority, place=0)
    assert rig.run_all() == ["urgent", "normal", "bulk"]


def test_a_lower_band_gets_every_sixteenth_dispatch_of_the_pool(rig: Rig) -> None:
    rig.server()
    rig.push(*(f"u{i:02}" for i in range(40)), priority=1)
    rig.push("b1", "b2", "b3", priority=9)
    order = rig.run_all()
    assert [place for place, job in enumerate(order) if job.startswith("b")] == [15, 31, 42]


def test_a_band_that_ran_empty_starts_waiting_again(rig: Rig) -> None:
    rig.server()
    rig.push(*(f"u{i:02}" for i in range(30)), priority=1)
    rig.push("gone", priority=9)
    lease = rig.must_claim()
    for _ in range(9):
        lease = rig.next(lease)
    rig.leases.remove(POOL, rig.tickets["gone"])
    rig.push("bulk", priority=9)
    order = [lease.job_id]
    for _ in range(16):
        lease = rig.next(lease)
        order.append(lease.job_id)
    assert order.index("bulk") == 16


def test_tenants_alternate_despite_one_large_backlog(rig: Rig) -> None:
    rig.server()
    rig.push(*(f"big{i}" for i in range(10)), tenant="big")
    rig.push("small1", "small2", tenant="small")
    assert {job for job in rig.run_all()[:4] if job.startswith("small")} == {"small1", "small2"}


def test_turns_are_counted_in_gpu_seconds_not_in_jobs(rig: Rig) -> None:
    rig.server()
    rig.push(*(f"long{i}" for i in range(30)), tenant="long")
    rig.push(*(f"short{i}" for i in range(30)), tenant="short")
    served: Counter[str] = Counter()
    lease = rig.must_claim()
    for _ in range(33):
        served[lease.tenant] += 1
        lease = rig.next(lease, 10.0 if lease.tenant == "long" else 1.0)
    assert served["short"] == pytest.approx(10 * served["long"], abs=8)


def test_a_tenant_of_twice_the_weight_gets_twice_the_gpu_seconds(rig: Rig) -> None:
    rig.server()
    rig.tenant("heavy", weight=2.0)
    rig.push(*(f"h{i}" for i in range(20)), tenant="heavy")
    rig.push(*(f"l{i}" for i in range(20)), tenant="light")
    first = rig.run_all()[:15]
    assert sum(job.startswith("h") for job in first) == 10


def test_an_idle_tenant_saves_up_no_turns(rig: Rig) -> None:
    rig.server()
    rig.push(*(f"busy{i}" for i in range(20)), tenant="busy")
    lease = rig.must_claim()
    for _ in range(9):
        lease = rig.next(lease)
    rig.push(*(f"new{i}" for i in range(20)), tenant="new")
    order = []
    for _ in range(10):
        lease = rig.next(lease)
        order.append(lease.tenant)
    assert Counter(order) == {"new": 5, "busy": 5}


def test_an_idle_tenant_keeps_its_finish_tag(rig: Rig) -> None:
    rig.server(slots=2)
    rig.push("a1", tenant="a")
    rig.push("b1", tenant="b")
    first, second = rig.must_claim(), rig.must_claim()
    rig.release(first, gpu_seconds=100)
    rig.release(second, gpu_seconds=1)
    rig.leases.confirm_ends([first.ref, second.ref])
    rig.push("a2", tenant="a")
    rig.push("b2", "b3", tenant="b")
    assert rig.run_all() == ["b2", "b3", "a2"]


def test_a_refused_job_costs_nothing(rig: Rig) -> None:
    rig.server()
    rig.push("a1", "a2", tenant="a")
    rig.push("b1", "b2", tenant="b")
    lease = rig.must_claim()
    assert lease.job_id == "a1"
    assert rig.next(lease, 0.0).job_id == "a2"


def test_a_lease_without_a_known_cost_is_charged_for_the_time_held(rig: Rig) -> None:
    rig.server()
    rig.push("a1", "a2", tenant="a")
    rig.push(*(f"b{i}" for i in range(5)), tenant="b")
    lease = rig.must_claim()
    rig.wait(3.5)
    order = [lease.job_id]
    for _ in range(5):
        lease = rig.next(lease, None if lease.job_id == "a1" else 1.0)
        order.append(lease.job_id)
    assert order == ["a1", "b0", "b1", "b2", "b3", "a2"]


def test_estimates_are_learned_per_model_and_tenant(rig: Rig) -> None:
    rig.server()
    assert rig.leases.estimate_seconds(MODEL, "t1") == 1.0
    rig.push("j1", "j2")
    lease = rig.next(rig.must_claim(), 10.0)
    assert lease.estimate_seconds == 10.0
    rig.release(lease, gpu_seconds=20.0)
    assert rig.leases.estimate_seconds(MODEL, "t1") == pytest.approx(10.5)
    assert rig.leases.estimate_seconds(MODEL, "unknown") == pytest.approx(10.5)
    assert rig.leases.estimate_seconds("other", "t1") == 1.0


def test_switching_to_fifo_and_back_is_live_and_keeps_every_ticket(rig: Rig) -> None:
    rig.server()
    rig.push(*(f"a{i}" for i in range(6)), tenant="a")
    rig.push(*(f"b{i}" for i in range(6)), tenant="b")
    rig.pool("fifo")
    lease = rig.must_claim()
    order = [lease.job_id]
    for _ in range(3):
        lease = rig.next(lease)
        order.append(lease.job_id)
    assert order == ["a0", "a1", "a2", "a3"]
    rig.pool("fair")
    assert rig.waiting() == 8
    for _ in range(4):
        lease = rig.next(lease)
        order.append(lease.job_id)
    assert order[4:] == ["b0", "b1", "b2", "b3"]


def test_a_retry_keeps_its_place(rig: Rig) -> None:
    rig.server()
    rig.push("first", "second", "third")
    lease = rig.must_claim()
    rig.release(lease, gpu_seconds=0)
    rig.leases.confirm_ends([lease.ref])
    rig.leases.push(POOL, [rig.tickets["first"]])
    assert rig.run_all() == ["first", "second", "third"]


# -- standing in line ----------------------------------------------------------------------------------


def test_a_ticket_waits_once(rig: Rig) -> None:
    rig.push("j1")
    assert rig.push("j1")[0].outcome is PushOutcome.DUPLICATE
    assert rig.waiting() == 1


def test_a_leased_or_settling_job_gets_no_ticket(rig: Rig) -> None:
    rig.server()
    rig.push("j1")
    lease = rig.must_claim()
    assert rig.push("j1")[0].outcome is PushOutcome.HELD
    rig.release(lease)
    assert rig.push("j1")[0].outcome is PushOutcome.HELD
    rig.leases.confirm_ends([lease.ref])
    assert rig.push("j1")[0].outcome is PushOutcome.LEASED


def test_remove_returns_whether_the_ticket_was_waiting(rig: Rig) -> None:
    rig.server()
    rig.push("j1", "j2")
    assert rig.leases.remove(POOL, rig.tickets["j2"])
    assert not rig.leases.remove(POOL, rig.tickets["j2"])
    rig.must_claim()
    assert not rig.leases.remove(POOL, rig.tickets["j1"])
    assert rig.waiting() == 0


def test_tickets_are_reachable_in_line_leased_and_settling(rig: Rig) -> None:
    rig.server()
    rig.push("j1", "j2")
    rig.ticket("j3")
    lease = rig.must_claim()
    assert [rig.in_line(job) for job in ("j1", "j2", "j3")] == [True, True, False]
    rig.release(lease)
    assert rig.in_line("j1")
    rig.leases.confirm_ends([lease.ref])
    assert not rig.in_line("j1")


def test_a_push_forecasts_a_lease_only_while_slots_are_free(rig: Rig) -> None:
    rig.server(slots=2)
    outcomes = [result.outcome for result in rig.push("j1", "j2", "j3")]
    assert outcomes == [PushOutcome.LEASED, PushOutcome.LEASED, PushOutcome.QUEUED]


def test_positions_count_higher_bands_and_turns(rig: Rig) -> None:
    rig.push("u1", "u2", priority=1)
    rig.push(*(f"big{i}" for i in range(50)), tenant="big")
    assert rig.push("small", tenant="small")[0].position == 4
    assert rig.push("bulk", priority=9)[0].position == 54
    rig.pool("fifo")
    assert rig.push("last", tenant="small")[0].position == 54
