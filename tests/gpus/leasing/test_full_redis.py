"""A Redis at its maxmemory refuses new tickets only, so that waiting jobs are processed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpus.errors import LeasingFull
from gpus.leasing.connect import connect
from gpus.protocol import ExpiryVerdict, Lease
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness
from tests.gpus.leasing.rebuild_harness import begin, database_lease


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client of a server that no other test needs."""
    with EmbeddedValkey(Path(tmp_path_factory.mktemp("full")), append_only=False) as server:
        client: Any = connect(server.url)
        yield client
        client.close()


@pytest.fixture
def full(own_server: Any, fleet: str) -> Iterator[LeaseHarness]:
    """Three slots, six jobs, one of them running; full from now on."""
    harness = LeaseHarness(own_server, fleet).open()
    harness.server(slots=3)
    harness.push(*(f"j{number}" for number in range(6)))
    harness.must_claim("first")
    own_server.config_set("maxmemory", "100kb")
    yield harness
    own_server.config_set("maxmemory", "0")
    own_server.flushdb()


def lease_of(harness: LeaseHarness) -> Lease:
    return harness.must_claim("first")


CALLS: dict[str, Callable[[LeaseHarness], Any]] = {
    "claim": lambda harness: harness.must_claim(),
    "renew": lambda harness: harness.leases.renew("w1", [lease_of(harness)], []),
    "release": lambda harness: harness.release(lease_of(harness), gpu_seconds=1.0, next_attempt_id="next"),
    "reserve": lambda harness: harness.leases.reserve(
        lease_of(harness).ref, worker="w1", next_attempt_id="n"
    ),
    "confirm_ends": lambda harness: (
        harness.release(lease_of(harness)),
        harness.leases.confirm_ends([lease_of(harness).ref]),
    ),
    "suspect": lambda harness: harness.release(lease_of(harness), "suspect"),
    "hand_over": lambda harness: harness.release(lease_of(harness), "adopt"),
    "take_over": lambda harness: harness.leases.take_over(lease_of(harness).ref, worker="w2", new_epoch=2),
    "give_back": lambda harness: harness.release(lease_of(harness), "free"),
    "remove": lambda harness: harness.leases.remove(POOL, harness.tickets["j5"]),
    "quarantine": lambda harness: harness.leases.quarantine("s1/2", "a"),
    "rest_server": lambda harness: harness.leases.rest_server("s1", 1.0),
    "fill": lambda harness: harness.leases.fill(),
    "server": lambda harness: harness.server("s2", slots=2),
    "pause": lambda harness: harness.leases.set_paused_tenants(POOL, ["t1"]),
    "tenant": lambda harness: harness.tenant("t1", most=1),
    "tokens": lambda harness: harness.leases.take_tokens("t1", 1, per_second=1.0, burst=5),
    "depth": lambda harness: harness.leases.depth(POOL),
}


@pytest.mark.parametrize("call", CALLS)
def test_scripts_other_than_push_work_at_maxmemory(full: LeaseHarness, call: str) -> None:
    CALLS[call](full)


def test_a_ticket_is_refused_and_taken_once_there_is_room(full: LeaseHarness) -> None:
    with pytest.raises(LeasingFull, match="maxmemory"):
        full.push("new")
    assert not full.in_line("new")
    full.client.config_set("maxmemory", "0")
    full.push("new")
    assert full.in_line("new")


def test_the_whole_line_is_worked_off(full: LeaseHarness) -> None:
    assert full.run_all() == [f"j{number}" for number in range(1, 6)]
    assert full.waiting() == 0


def test_leases_run_out(full: LeaseHarness) -> None:
    for _ in range(4):
        full.wait(4)
        expired = full.leases.expired()
    (only,) = expired
    assert full.leases.resolve_expired(only.ref, ExpiryVerdict.FREE)
    assert full.states() == ["free"] * 3


def test_a_rebuild_at_maxmemory_opens_with_the_tickets_that_fit(full: LeaseHarness) -> None:
    begin(full)
    full.server(slots=3)
    assert full.leases.restore_lease(database_lease())
    full.leases.restore_shares(POOL, [(5, "t1", 3.0)])
    with pytest.raises(LeasingFull):
        full.push("j1")
    assert full.leases.open_generation("one")
    assert full.leases.depth(POOL).slots == {"leased": 1, "free": 2}
