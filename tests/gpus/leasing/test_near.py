"""Tickets that prefer a server, because files that they need are there: never at the price of an idle slot,
and not for long."""

from __future__ import annotations

from gpus.protocol import Lease
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness


def both_busy(harness: LeaseHarness) -> dict[str, Lease]:
    """Two servers of one slot each, both with a lease."""
    harness.server("s1")
    harness.server("s2")
    harness.push("busy1", "busy2")
    return {lease.server: lease for lease in (harness.must_claim(), harness.must_claim())}


def test_of_two_idle_servers_the_near_one_takes_the_job(harness: LeaseHarness) -> None:
    for near in ("s1", "s2"):
        held = both_busy(harness)
        first, last = ("s2", "s1") if near == "s1" else ("s1", "s2")
        for server in (first, last):  # the other one is free the longest: it would be next
            harness.release(held[server])
            harness.leases.confirm_ends([held[server].ref])
            harness.wait(1)
        harness.push("far", place=1000)
        harness.push("job", near=near)
        lease = harness.must_claim()
        assert (lease.job_id, lease.server) == ("job", near)
        rest = harness.must_claim()
        assert rest.job_id == "far"
        harness.release(lease)
        harness.release(rest)
        harness.leases.confirm_ends([lease.ref, rest.ref])


def test_the_near_server_comes_before_one_with_the_loaded_model(harness: LeaseHarness) -> None:
    harness.server("s1", models=("flux", "zimg"))
    harness.server("s2", models=("flux", "zimg"))
    harness.push("a", model="flux")
    harness.push("b", model="zimg")
    held = [harness.must_claim(), harness.must_claim()]
    for lease in held:
        harness.release(lease)
    harness.leases.confirm_ends([lease.ref for lease in held])
    harness.push("job", model="zimg", near=held[0].server)
    assert harness.must_claim().server == held[0].server


def test_a_busy_near_server_does_not_keep_an_idle_slot_from_the_job(harness: LeaseHarness) -> None:
    held = both_busy(harness)
    harness.push("job", near="s2")
    assert harness.next(held["s1"]).job_id == "job"
    assert harness.leases.depth(POOL).placed == {"elsewhere": 1}


def test_another_job_goes_first_while_the_near_server_is_busy_for_two_seconds(harness: LeaseHarness) -> None:
    held = both_busy(harness)
    harness.push("job", near="s2")
    harness.push("o1", "o2", "o3", "o4")
    lease = harness.next(held["s1"])
    assert lease.job_id == "o1"
    harness.wait(1.9)
    lease = harness.next(lease)
    assert lease.job_id == "o2"
    harness.wait(0.2)
    assert harness.next(lease).job_id == "job"
    assert harness.next(held["s2"]).job_id == "o3"
    assert harness.leases.depth(POOL).placed == {"gave_up": 1}


def test_a_freed_near_server_takes_the_job_that_waited_for_it(harness: LeaseHarness) -> None:
    held = both_busy(harness)
    harness.push("job", near="s2")
    harness.push("o1", "o2")
    assert harness.next(held["s1"]).job_id == "o1"
    assert harness.next(held["s2"]).job_id == "job"
    assert harness.leases.depth(POOL).placed == {"near": 1}


def test_a_job_is_passed_over_eight_times_at_most(harness: LeaseHarness) -> None:
    held = both_busy(harness)
    harness.push("job", near="s2")
    harness.push(*(f"o{number}" for number in range(12)))
    lease, order = held["s1"], []
    for _ in range(9):
        lease = harness.next(lease, 0.001)
        order.append(lease.job_id)
    assert order == [*(f"o{number}" for number in range(8)), "job"]


def test_a_tenant_ahead_of_its_share_does_not_take_the_place_of_a_near_job(harness: LeaseHarness) -> None:
    """Passing over is bounded as for a warm model: by the patience and one job."""
    held = both_busy(harness)
    harness.pool(patience=1.0)
    for number in range(40):
        harness.push(f"g{number}", tenant="greedy")
    lease = harness.next(held["s1"], 1.0)
    for _ in range(20):
        lease = harness.next(lease, 100.0)
    harness.push("job", tenant="modest", near="s2")
    order = []
    for _ in range(3):
        lease = harness.next(lease, 100.0)
        order.append(lease.job_id)
    assert "job" in order, f"two of the other's jobs are 200 GPU-seconds: {order}"


def test_a_near_server_that_does_not_run_the_model_is_no_reason(harness: LeaseHarness) -> None:
    harness.server("s1")
    harness.server("s2", models=("other",))
    for job, near in (("a", "s2"), ("b", "gone"), ("c", "s1")):
        harness.push(job, near=near)
    harness.push("d")
    assert harness.run_all() == ["a", "b", "c", "d"]


def test_a_near_server_that_is_off_is_no_reason(harness: LeaseHarness) -> None:
    held = both_busy(harness)
    harness.server("s2", desired="off")
    harness.push("job", near="s2")
    harness.push("other")
    assert harness.next(held["s1"]).job_id == "job"


def test_a_lost_server_is_avoided_even_if_it_is_near(harness: LeaseHarness) -> None:
    harness.server("s1")
    harness.server("s2")
    harness.push("job", near="s1", avoid="s1")
    assert harness.must_claim().server == "s2"


def test_behind_a_job_that_avoids_the_idle_server_one_with_a_busy_near_server_runs(
    harness: LeaseHarness,
) -> None:
    held = both_busy(harness)
    harness.push("lost", avoid="s1")
    harness.push("job", near="s2")
    assert harness.next(held["s1"]).job_id == "job"
    assert harness.next(held["s2"]).job_id == "lost"


def test_the_job_is_not_passed_over_for_a_warm_model_on_its_near_server(harness: LeaseHarness) -> None:
    harness.server("s1", models=("flux", "zimg"))
    harness.push("warm", model="flux")
    lease = harness.must_claim()
    harness.push("job", model="zimg", near="s1")
    harness.push("other", model="flux")
    assert harness.next(lease).job_id == "job"


def test_a_pinned_worker_leaves_the_job_to_the_idle_near_host(harness: LeaseHarness) -> None:
    harness.server("s1", host="h1")
    harness.server("s2", host="h2")
    wakes = harness.leases.push(POOL, [harness.ticket("job", near="s2")]).wakes
    assert [(wake.host, wake.count) for wake in wakes] == [("h2", 1)]
    assert harness.claim(host="h1") is None, "its worker is awake for another reason"
    assert harness.must_claim(host="h2").job_id == "job"


def test_a_pinned_worker_takes_another_job_meanwhile(harness: LeaseHarness) -> None:
    harness.server("s1", host="h1", models=("flux",))
    harness.server("s2", host="h2", models=("flux",))
    harness.server("s3", 2, host="h1", models=("zimg",))
    harness.push("job", model="flux", near="s2")
    harness.push("z1", "z2", model="zimg")
    assert [harness.must_claim(host="h1").job_id for _ in range(2)] == ["z1", "z2"]
    assert harness.must_claim(host="h2").job_id == "job"


def test_an_idle_near_host_whose_worker_is_gone_keeps_the_job_for_two_seconds(harness: LeaseHarness) -> None:
    harness.server("s1", host="h1")
    harness.server("s2", host="h2")
    harness.push("job", near="s2")
    assert harness.claim(host="h1") is None
    harness.wait(1.9)
    assert harness.claim(host="h1") is None
    harness.wait(0.2)
    assert harness.must_claim(host="h1").job_id == "job"


def test_each_near_host_is_woken_once(harness: LeaseHarness) -> None:
    harness.server("s1", host="h1")
    harness.server("s2", host="h2")
    wakes = harness.leases.push(POOL, [harness.ticket(job, near="s2") for job in "abc"]).wakes
    assert sorted((wake.host, wake.count) for wake in wakes) == [("h1", 1), ("h2", 1)]


def test_nothing_is_left_of_a_preference_once_the_job_runs(harness: LeaseHarness) -> None:
    harness.server("s1")
    harness.push("job", near="s1")
    harness.must_claim()
    assert f"marks:{POOL}" not in harness.all_keys()
