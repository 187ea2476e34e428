"""The repeated commands are those that were recorded."""

from __future__ import annotations

import pytest

from benchmarks import claim_floor
from benchmarks.claim import POOL, Size
from dispatcher_project.supervisor.embedded import find_valkey

pytestmark = pytest.mark.skipif(find_valkey() is None, reason="no Valkey or Redis server binary")

SMALL, COUNT = Size(waiting=400, models=4), 3


def state(one: claim_floor.Bench) -> tuple[dict[str, int], dict[str, str]]:
    """The number of waiting jobs of each model; the slot of each attempt."""
    (held,) = one.client.scan_iter(match="*:leases", count=1000)
    return dict(one.leases.depth(POOL).waiting), one.client.hgetall(held)


def test_the_commands_alone_do_what_the_release_and_claims_did() -> None:
    recorded = claim_floor.record(SMALL, COUNT)
    with claim_floor.bench(SMALL) as one:
        one.release(COUNT)
        after = state(one)
    with claim_floor.bench(SMALL) as one:
        before = state(one)
        for name in claim_floor.load(one, "commands_us", recorded):
            one.client.fcall(name, 0)
        assert state(one) == after != before


@pytest.mark.parametrize("value", [b"", b"plain", b"'quoted\\\"", bytes(range(256))])
def test_an_argument_is_written_for_lua_as_it_is(value: bytes) -> None:
    with claim_floor.bench(SMALL) as one:
        assert one.client.eval(f"return redis.sha1hex({claim_floor.literal(value)})", 0) == one.client.eval(
            "return redis.sha1hex(ARGV[1])", 0, value
        )
