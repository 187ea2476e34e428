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
from tests.gpus.leasing.rebuild_rig import begin, database_lease
from tests.gpus.leasing.rig import POOL, Rig


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client of a server that no other test needs."""
    with EmbeddedValkey(Path(tmp_path_factory.mktemp("full")), append_only=False) as server:
        client: Any = connect(server.url)
        yield client
        client.close()


@pytest.fixture
def full(own_server: Any, fleet: str) -> Iterator[Rig]:
    """Three slots, six jobs, one of them running; full from now on."""
    rig = Rig(own_server, fleet).open()
    rig.server(slots=3)
    rig.push(*(f"j{number}" for number in range(6)))
    rig.must_claim("first")
    own_server.config_set("maxmemory", "100kb")
    yield rig
    own_server.config_set("maxmemory", "0")
    own_server.flushdb()


def lease_of(rig: Rig) -> Lease:
    return rig.must_claim("first")


CALLS: dict[str, Callable[[Rig], Any]] = {
    "claim": lambda rig: rig.must_claim(),
    "renew": lambda rig: rig.leases.renew("w1", [lease_of(rig)], []),
    "release": lambda rig: rig.release(lease_of(rig), gpu_seconds=1.0, next_attempt_id="next"),
    "reserve": lambda rig: rig.leases.reserve(lease_of(rig).ref, worker="w1", next_attempt_id="n"),
    "confirm_ends": lambda rig: (rig.release(lease_of(rig)), rig.leases.confirm_ends([lease_of(rig).ref])),
    "suspect": lambda rig: rig.release(lease_of(rig), "suspect"),
    "hand_over": lambda rig: rig.release(lease_of(rig), "adopt"),
    "take_over": lambda rig: rig.leases.take_over(lease_of(rig).ref, worker="w2", new_epoch=2),
    "give_back": lambda rig: rig.release(lease_of(rig), "free"),
    "remove": lambda rig: rig.leases.remove(POOL, rig.tickets["j5"]),
    "quarantine": lambda rig: rig.leases.quarantine("s1/2", "a"),
    "rest_server": lambda rig: rig.leases.rest_server("s1", 1.0),
    "fill": lambda rig: rig.leases.fill(),
    "server": lambda rig: rig.server("s2", slots=2),
    "pause": lambda rig: rig.leases.set_paused_tenants(POOL, ["t1"]),
    "tenant": lambda rig: rig.tenant("t1", most=1),
    "tokens": lambda rig: rig.leases.take_tokens("t1", 1, per_second=1.0, burst=5),
    "depth": lambda rig: rig.leases.depth(POOL),
}


@pytest.mark.parametrize("call", CALLS)
def test_scripts_other_than_push_work_at_maxmemory(full: Rig, call: str) -> None:
    CALLS[call](full)


def test_a_ticket_is_refused_and_taken_once_there_is_room(full: Rig) -> None:
    with pytest.raises(LeasingFull, match="maxmemory"):
        full.push("new")
    assert not full.in_line("new")
    full.client.config_set("maxmemory", "0")
    full.push("new")
    assert full.in_line("new")


def test_the_whole_line_is_worked_off(full: Rig) -> None:
    assert full.run_all() == [f"j{number}" for number in range(1, 6)]
    assert full.waiting() == 0


def test_leases_run_out(full: Rig) -> None:
    for _ in range(4):
        full.wait(4)
        expired = full.leases.expired()
    (only,) = expired
    assert full.leases.resolve_expired(only.ref, ExpiryVerdict.FREE)
    assert full.states() == ["free"] * 3


def test_a_rebuild_at_maxmemory_opens_with_the_tickets_that_fit(full: Rig) -> None:
    begin(full)
    full.server(slots=3)
    assert full.leases.restore_lease(database_lease())
    full.leases.restore_shares(POOL, [(5, "t1", 3.0)])
    with pytest.raises(LeasingFull):
        full.push("j1")
    assert full.leases.open_generation("one")
    assert full.leases.depth(POOL).slots == {"leased": 1, "free": 2}
