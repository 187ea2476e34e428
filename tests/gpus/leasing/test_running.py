"""The limit of a tenant's running jobs: no claim exceeds it, and other tenants are not delayed."""

from __future__ import annotations

import pytest

from gpus.protocol import ExpiryVerdict, Lease, PoolSpec, PushOutcome, TenantSpec
from tests.gpus.leasing.rebuild_rig import begin, database_lease
from tests.gpus.leasing.rig import MODEL, POOL, WORKER, Rig, counts


def running(rig: Rig, tenant: str) -> int:
    return int(rig.client.scard(f"{rig.prefix}running:{tenant}"))


def claim_all(rig: Rig) -> list[Lease]:
    return list(iter(rig.claim, None))


def test_a_tenant_at_its_limit_gets_no_lease_and_others_do(rig: Rig) -> None:
    rig.server(slots=8)
    rig.tenant("a", most=2)
    rig.push(*(f"a{i}" for i in range(5)), tenant="a", place=0)
    rig.push(*(f"b{i}" for i in range(3)), tenant="b", place=9)
    assert sorted(lease.tenant for lease in claim_all(rig)) == ["a", "a", "b", "b", "b"]
    assert rig.leases.depth(POOL).parked == {MODEL: 3}


def test_a_released_slot_may_take_the_same_tenants_next_job(rig: Rig) -> None:
    rig.server(slots=4)
    rig.tenant("a", most=1)
    rig.push("a1", "a2", "a3", tenant="a")
    lease = rig.must_claim()
    for job in ("a2", "a3"):
        lease = rig.next(lease)
        assert (lease.job_id, running(rig, "a"), rig.claim()) == (job, 1, None)


@pytest.mark.parametrize("mode", ["ended", "free", "suspect"])
def test_any_end_of_a_lease_frees_the_limit(rig: Rig, mode: str) -> None:
    rig.server(slots=4)
    rig.tenant("a", most=1)
    rig.push("a1", "a2", tenant="a")
    rig.release(rig.must_claim(), mode)
    assert rig.must_claim().job_id == "a2"


def test_a_hand_over_keeps_counting_and_is_adopted_all_the_same(rig: Rig) -> None:
    rig.server(slots=4)
    rig.tenant("a", most=1)
    rig.push("a1", "a2", tenant="a")
    rig.release(rig.must_claim(), "adopt")
    assert running(rig, "a") == 1
    adopted = rig.must_claim(worker="w2")
    assert (adopted.job_id, adopted.adopted) == ("a1", True)
    assert rig.claim() is None
    assert rig.leases.take_over(adopted.ref, worker="w2", new_epoch=2)
    assert running(rig, "a") == 1


@pytest.mark.parametrize(
    ("verdict", "goes_on"), [("free", True), ("quarantined", True), ("adoptable", False)]
)
def test_an_expired_lease_counts_until_it_is_resolved(rig: Rig, verdict: str, goes_on: bool) -> None:
    rig.server(slots=4)
    rig.tenant("a", most=1)
    rig.push("a1", "a2", tenant="a")
    lease = rig.must_claim()
    for _ in range(4):
        rig.wait(5)
        rig.leases.expired()
    assert rig.claim() is None
    assert rig.leases.resolve_expired(lease.ref, ExpiryVerdict(verdict))
    following = rig.must_claim()
    assert (following.job_id, following.adopted) == (("a2", False) if goes_on else ("a1", True))
    assert running(rig, "a") == 1


def test_an_end_that_becomes_adoptable_counts_again(rig: Rig) -> None:
    """Its process died with the result, and the run is asked for again."""
    rig.server(slots=4)
    rig.tenant("a", most=1)
    rig.push("a1", tenant="a")
    lease = rig.must_claim()
    rig.release(lease)
    assert running(rig, "a") == 0
    for _ in range(4):
        rig.wait(5)
        rig.leases.expired()
    assert rig.leases.resolve_expired(lease.ref, ExpiryVerdict.ADOPTABLE)
    rig.push("a2", tenant="a")
    assert running(rig, "a") == 1
    assert rig.must_claim().adopted
    assert rig.claim() is None


def test_a_quarantine_from_the_database_ends_the_lease_for_the_limit_too(rig: Rig) -> None:
    rig.server(slots=4)
    rig.tenant("a", most=1)
    rig.push("a1", "a2", tenant="a")
    lease = rig.must_claim()
    rig.leases.quarantine(lease.slot, lease.attempt_id)
    assert rig.must_claim().job_id == "a2"


def test_a_limit_is_live_in_both_directions(rig: Rig) -> None:
    rig.server(slots=8)
    rig.push(*(f"a{i}" for i in range(9)), tenant="a")
    leases = [rig.must_claim() for _ in range(3)]
    assert counts(rig.tenant("a", most=2)) == {}
    assert rig.claim() is None, "what runs above it runs on, nothing new starts"
    rig.release(leases[0], gpu_seconds=1)
    rig.release(leases[1], gpu_seconds=1)
    assert [lease.tenant for lease in claim_all(rig)] == ["a"]
    assert counts(rig.tenant("a", most=4)) != {}
    assert len(claim_all(rig)) == 2
    rig.tenant("a")
    assert len(claim_all(rig)) == 2  # the remaining line and slots
    assert rig.waiting() == 1


def test_the_limit_counts_over_all_pools(rig: Rig) -> None:
    rig.leases.configure_pool(PoolSpec("other"))
    rig.server(slots=4)
    rig.server("s2", slots=4, models=("zimg",), pool="other")
    rig.tenant("a", most=2)
    rig.push("a1", "a2", "a3", tenant="a")
    rig.leases.push("other", [rig.ticket(f"z{i}", tenant="a", model="zimg") for i in range(3)])
    first = rig.must_claim()
    second = rig.must_claim(pool="other")
    assert (rig.claim(), rig.claim(pool="other")) == (None, None)
    rig.release(first, gpu_seconds=1)
    assert rig.must_claim(pool="other").job_id == "z1", "in whichever pool it waits"
    assert rig.claim() is None
    rig.release(second, gpu_seconds=1)
    assert rig.must_claim().job_id == "a2"


def test_a_committed_end_in_one_pool_sends_wakes_for_another(rig: Rig) -> None:
    rig.leases.configure_pool(PoolSpec("other"))
    rig.server()
    rig.server("s2", slots=4, models=("zimg",), pool="other")
    rig.tenant("a", most=1)
    rig.push("a1", tenant="a")
    lease = rig.must_claim()
    rig.leases.push("other", [rig.ticket("z1", tenant="a", model="zimg")])
    rig.leases.fill()
    rig.release(lease, gpu_seconds=1)
    assert counts(rig.leases.confirm_ends([lease.ref])) == {("other", None): 1}


def test_a_push_beyond_the_limit_waits_without_wakes(rig: Rig) -> None:
    rig.server(slots=4)
    rig.tenant("a", most=1)
    rig.push("a1", tenant="a")
    rig.must_claim()
    pushed = rig.leases.push(POOL, [rig.ticket("a2", tenant="a")])
    assert (pushed.results[0].outcome, pushed.wakes) == (PushOutcome.QUEUED, ())
    assert rig.leases.fill() == ()


def test_a_parked_ticket_that_is_removed_leaves_no_trace(rig: Rig) -> None:
    rig.server(slots=4)
    rig.tenant("a", most=1)
    rig.push("a1", "a2", tenant="a")
    lease = rig.must_claim()
    assert rig.leases.remove(POOL, rig.tickets["a2"])
    rig.release(lease, gpu_seconds=1)
    rig.push("a3", tenant="a")
    assert rig.must_claim().job_id == "a3"
    assert rig.client.hgetall(f"{rig.prefix}parked:{POOL}") == {}


def test_a_pause_and_a_limit_hold_each_by_itself(rig: Rig) -> None:
    rig.server(slots=4)
    rig.tenant("a", most=1)
    rig.push("a1", "a2", "a3", tenant="a")
    lease = rig.must_claim()
    rig.leases.set_paused_tenants(POOL, ["a"])
    rig.release(lease, gpu_seconds=1)
    assert rig.claim() is None
    rig.leases.set_paused_tenants(POOL, [])
    second = rig.must_claim()
    rig.leases.set_paused_tenants(POOL, ["a"])
    rig.leases.set_paused_tenants(POOL, [])
    assert rig.claim() is None
    assert rig.next(second).job_id == "a3"


def test_a_claim_costs_the_same_with_tenants_at_their_limit(rig: Rig) -> None:
    def commands() -> dict[str, int]:
        rig.client.config_resetstat()
        assert rig.must_claim().tenant == "b"
        stats = rig.client.info("commandstats")
        return {name: stat["calls"] for name, stat in stats.items() if "config" not in name}

    rig.server(slots=60)
    rig.push(*(f"b{i}" for i in range(9)), tenant="b", place=5)
    rig.must_claim()
    before = commands()
    for number in range(30):
        rig.tenant(f"a{number}", most=1)
        rig.push(*(f"p{number}-{i}" for i in range(5)), tenant=f"a{number}", place=0)
    while rig.leases.depth(POOL).waiting[MODEL] > 7:
        rig.must_claim()
    assert commands() == before


def test_sent_twice_a_limit_is_the_same(rig: Rig) -> None:
    rig.server(slots=4)
    rig.tenant("a", most=1)
    rig.push("a1", "a2", tenant="a")
    lease = rig.must_claim("attempt")
    assert rig.claim("attempt") == lease
    assert running(rig, "a") == 1
    for _ in range(2):
        rig.release(lease, gpu_seconds=1)
    assert running(rig, "a") == 0


# -- during a rebuild -----------------------------------------------------------------------


@pytest.mark.parametrize("pushed_first", [True, False])
def test_a_restored_lease_counts_in_either_order(rig: Rig, pushed_first: bool) -> None:
    begin(rig)
    rig.server(slots=4)
    lease = database_lease()
    rig.tenant(lease.tenant, most=1)
    if pushed_first:
        rig.push("new", tenant=lease.tenant)
    assert rig.leases.restore_lease(lease)
    if not pushed_first:
        rig.push("new", tenant=lease.tenant)
    rig.leases.open_generation("one")
    assert rig.claim() is None
    assert rig.leases.renew(WORKER, [lease], []) == []
    rig.release(lease, gpu_seconds=1)
    assert rig.must_claim().job_id == "new"


def test_a_wiped_index_has_no_leases(rig: Rig) -> None:
    rig.server(slots=4)
    rig.tenant("a", most=1)
    rig.push("a1", "a2", tenant="a")
    rig.must_claim()
    begin(rig)
    left = {name for name in rig.all_keys() if name != "rebuild"}
    assert left == set()


@pytest.mark.parametrize("most", [0, -1])
def test_a_limit_of_zero_is_refused(most: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        TenantSpec("a", 1.0, "normal", most)
