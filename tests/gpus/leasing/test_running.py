"""The limit of a tenant's running jobs: no claim exceeds it, and other tenants are not delayed."""

from __future__ import annotations

import pytest

from gpus.protocol import ExpiryVerdict, Lease, PoolSpec, PushOutcome, TenantSpec
from tests.gpus.leasing.lease_harness import MODEL, POOL, WORKER, LeaseHarness, counts
from tests.gpus.leasing.rebuild_harness import begin, database_lease


def running(harness: LeaseHarness, tenant: str) -> int:
    return int(harness.client.scard(f"{harness.prefix}running:{tenant}"))


def claim_all(harness: LeaseHarness) -> list[Lease]:
    return list(iter(harness.claim, None))


def test_a_tenant_at_its_limit_gets_no_lease_and_others_do(harness: LeaseHarness) -> None:
    harness.server(slots=8)
    harness.tenant("a", most=2)
    harness.push(*(f"a{i}" for i in range(5)), tenant="a", place=0)
    harness.push(*(f"b{i}" for i in range(3)), tenant="b", place=9)
    assert sorted(lease.tenant for lease in claim_all(harness)) == ["a", "a", "b", "b", "b"]
    assert harness.leases.depth(POOL).parked == {MODEL: 3}


def test_a_released_slot_may_take_the_same_tenants_next_job(harness: LeaseHarness) -> None:
    harness.server(slots=4)
    harness.tenant("a", most=1)
    harness.push("a1", "a2", "a3", tenant="a")
    lease = harness.must_claim()
    for job in ("a2", "a3"):
        lease = harness.next(lease)
        assert (lease.job_id, running(harness, "a"), harness.claim()) == (job, 1, None)


@pytest.mark.parametrize("mode", ["ended", "free", "suspect"])
def test_any_end_of_a_lease_frees_the_limit(harness: LeaseHarness, mode: str) -> None:
    harness.server(slots=4)
    harness.tenant("a", most=1)
    harness.push("a1", "a2", tenant="a")
    harness.release(harness.must_claim(), mode)
    assert harness.must_claim().job_id == "a2"


def test_a_hand_over_keeps_counting_and_is_adopted_all_the_same(harness: LeaseHarness) -> None:
    harness.server(slots=4)
    harness.tenant("a", most=1)
    harness.push("a1", "a2", tenant="a")
    harness.release(harness.must_claim(), "adopt")
    assert running(harness, "a") == 1
    adopted = harness.must_claim(worker="w2")
    assert (adopted.job_id, adopted.adopted) == ("a1", True)
    assert harness.claim() is None
    assert harness.leases.take_over(adopted.ref, worker="w2", new_epoch=2)
    assert running(harness, "a") == 1


@pytest.mark.parametrize(
    ("verdict", "goes_on"), [("free", True), ("quarantined", True), ("adoptable", False)]
)
def test_an_expired_lease_counts_until_it_is_resolved(
    harness: LeaseHarness, verdict: str, goes_on: bool
) -> None:
    harness.server(slots=4)
    harness.tenant("a", most=1)
    harness.push("a1", "a2", tenant="a")
    lease = harness.must_claim()
    for _ in range(4):
        harness.wait(5)
        harness.leases.expired()
    assert harness.claim() is None
    assert harness.leases.resolve_expired(lease.ref, ExpiryVerdict(verdict))
    following = harness.must_claim()
    assert (following.job_id, following.adopted) == (("a2", False) if goes_on else ("a1", True))
    assert running(harness, "a") == 1


def test_an_end_that_becomes_adoptable_counts_again(harness: LeaseHarness) -> None:
    """Its process died with the result, and the run is asked for again."""
    harness.server(slots=4)
    harness.tenant("a", most=1)
    harness.push("a1", tenant="a")
    lease = harness.must_claim()
    harness.release(lease)
    assert running(harness, "a") == 0
    for _ in range(4):
        harness.wait(5)
        harness.leases.expired()
    assert harness.leases.resolve_expired(lease.ref, ExpiryVerdict.ADOPTABLE)
    harness.push("a2", tenant="a")
    assert running(harness, "a") == 1
    assert harness.must_claim().adopted
    assert harness.claim() is None


def test_a_quarantine_from_the_database_ends_the_lease_for_the_limit_too(harness: LeaseHarness) -> None:
    harness.server(slots=4)
    harness.tenant("a", most=1)
    harness.push("a1", "a2", tenant="a")
    lease = harness.must_claim()
    harness.leases.quarantine(lease.slot, lease.attempt_id)
    assert harness.must_claim().job_id == "a2"


def test_a_limit_is_live_in_both_directions(harness: LeaseHarness) -> None:
    harness.server(slots=8)
    harness.push(*(f"a{i}" for i in range(9)), tenant="a")
    leases = [harness.must_claim() for _ in range(3)]
    assert counts(harness.tenant("a", most=2)) == {}
    assert harness.claim() is None, "what runs above it runs on, nothing new starts"
    harness.release(leases[0], gpu_seconds=1)
    harness.release(leases[1], gpu_seconds=1)
    assert [lease.tenant for lease in claim_all(harness)] == ["a"]
    assert counts(harness.tenant("a", most=4)) != {}
    assert len(claim_all(harness)) == 2
    harness.tenant("a")
    assert len(claim_all(harness)) == 2  # the remaining line and slots
    assert harness.waiting() == 1


def test_the_limit_counts_over_all_pools(harness: LeaseHarness) -> None:
    harness.leases.configure_pool(PoolSpec("other"))
    harness.server(slots=4)
    harness.server("s2", slots=4, models=("zimg",), pool="other")
    harness.tenant("a", most=2)
    harness.push("a1", "a2", "a3", tenant="a")
    harness.leases.push("other", [harness.ticket(f"z{i}", tenant="a", model="zimg") for i in range(3)])
    first = harness.must_claim()
    second = harness.must_claim(pool="other")
    assert (harness.claim(), harness.claim(pool="other")) == (None, None)
    harness.release(first, gpu_seconds=1)
    assert harness.must_claim(pool="other").job_id == "z1", "in whichever pool it waits"
    assert harness.claim() is None
    harness.release(second, gpu_seconds=1)
    assert harness.must_claim().job_id == "a2"


def test_a_committed_end_in_one_pool_sends_wakes_for_another(harness: LeaseHarness) -> None:
    harness.leases.configure_pool(PoolSpec("other"))
    harness.server()
    harness.server("s2", slots=4, models=("zimg",), pool="other")
    harness.tenant("a", most=1)
    harness.push("a1", tenant="a")
    lease = harness.must_claim()
    harness.leases.push("other", [harness.ticket("z1", tenant="a", model="zimg")])
    harness.leases.fill()
    harness.release(lease, gpu_seconds=1)
    assert counts(harness.leases.confirm_ends([lease.ref])) == {("other", None): 1}


def test_a_push_beyond_the_limit_waits_without_wakes(harness: LeaseHarness) -> None:
    harness.server(slots=4)
    harness.tenant("a", most=1)
    harness.push("a1", tenant="a")
    harness.must_claim()
    pushed = harness.leases.push(POOL, [harness.ticket("a2", tenant="a")])
    assert (pushed.results[0].outcome, pushed.wakes) == (PushOutcome.QUEUED, ())
    assert harness.leases.fill() == ()


def test_a_parked_ticket_that_is_removed_leaves_no_trace(harness: LeaseHarness) -> None:
    harness.server(slots=4)
    harness.tenant("a", most=1)
    harness.push("a1", "a2", tenant="a")
    lease = harness.must_claim()
    assert harness.leases.remove(POOL, harness.tickets["a2"])
    harness.release(lease, gpu_seconds=1)
    harness.push("a3", tenant="a")
    assert harness.must_claim().job_id == "a3"
    assert harness.client.hgetall(f"{harness.prefix}parked:{POOL}") == {}


def test_a_pause_and_a_limit_hold_each_by_itself(harness: LeaseHarness) -> None:
    harness.server(slots=4)
    harness.tenant("a", most=1)
    harness.push("a1", "a2", "a3", tenant="a")
    lease = harness.must_claim()
    harness.leases.set_paused_tenants(POOL, ["a"])
    harness.release(lease, gpu_seconds=1)
    assert harness.claim() is None
    harness.leases.set_paused_tenants(POOL, [])
    second = harness.must_claim()
    harness.leases.set_paused_tenants(POOL, ["a"])
    harness.leases.set_paused_tenants(POOL, [])
    assert harness.claim() is None
    assert harness.next(second).job_id == "a3"


def test_a_claim_costs_the_same_with_tenants_at_their_limit(harness: LeaseHarness) -> None:
    def commands() -> dict[str, int]:
        harness.client.config_resetstat()
        assert harness.must_claim().tenant == "b"
        stats = harness.client.info("commandstats")
        return {name: stat["calls"] for name, stat in stats.items() if "config" not in name}

    harness.server(slots=60)
    harness.push(*(f"b{i}" for i in range(9)), tenant="b", place=5)
    harness.must_claim()
    before = commands()
    for number in range(30):
        harness.tenant(f"a{number}", most=1)
        harness.push(*(f"p{number}-{i}" for i in range(5)), tenant=f"a{number}", place=0)
    while harness.leases.depth(POOL).waiting[MODEL] > 7:
        harness.must_claim()
    assert commands() == before


def test_sent_twice_a_limit_is_the_same(harness: LeaseHarness) -> None:
    harness.server(slots=4)
    harness.tenant("a", most=1)
    harness.push("a1", "a2", tenant="a")
    lease = harness.must_claim("attempt")
    assert harness.claim("attempt") == lease
    assert running(harness, "a") == 1
    for _ in range(2):
        harness.release(lease, gpu_seconds=1)
    assert running(harness, "a") == 0


# -- during a rebuild -----------------------------------------------------------------------


@pytest.mark.parametrize("pushed_first", [True, False])
def test_a_restored_lease_counts_in_either_order(harness: LeaseHarness, pushed_first: bool) -> None:
    begin(harness)
    harness.server(slots=4)
    lease = database_lease()
    harness.tenant(lease.tenant, most=1)
    if pushed_first:
        harness.push("new", tenant=lease.tenant)
    assert harness.leases.restore_lease(lease)
    if not pushed_first:
        harness.push("new", tenant=lease.tenant)
    harness.leases.open_generation("one")
    assert harness.claim() is None
    assert harness.leases.renew(WORKER, [lease], []) == []
    harness.release(lease, gpu_seconds=1)
    assert harness.must_claim().job_id == "new"


def test_a_wiped_index_has_no_leases(harness: LeaseHarness) -> None:
    harness.server(slots=4)
    harness.tenant("a", most=1)
    harness.push("a1", "a2", tenant="a")
    harness.must_claim()
    begin(harness)
    left = {name for name in harness.all_keys() if name != "rebuild"}
    assert left == set()


@pytest.mark.parametrize("most", [0, -1])
def test_a_limit_of_zero_is_refused(most: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        TenantSpec("a", 1.0, "normal", most)
