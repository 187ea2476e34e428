"""What a claim costs Redis: microseconds of server time per script call, over the size of the line.

    python benchmarks/claim.py                     one dimension grows at a time
    python benchmarks/claim.py --waiting 1000000   one row of your own
    python benchmarks/claim.py --waiting 1000000 --slots 10000 --tenants 10000 --limited

`client` is what one caller waits for a release-and-claim, in the quietest chunk: median and 99th
percentile of its calls. --limited: every tenant may run so many jobs as the slots allow it in the mean, so
that most are at their limit.

The other times are Redis' own (`INFO commandstats`), so neither the client nor the socket is in them; each
figure is that of the quietest hundred calls, so that other processes on the machine are not in it either.
Flat columns are the point: the founding design's scan of instances costs 800 µs at 1,000 slots, 11,000 at
10,000.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dispatcher_project.embedded import EmbeddedValkey
from gpus.leasing.connect import connect
from gpus.leasing.store import RedisLeases
from gpus.protocol import Lease, PoolSpec, QueueAlgorithm, ReleaseMode, ServerSpec, TenantSpec, Ticket

POOL, WORKER = "bench", "bench"
SLOTS_PER_SERVER, CHUNK, MANY = 8, 100, 10_000


@dataclass(frozen=True, slots=True)
class Size:
    waiting: int = 1_000
    slots: int = 8
    tenants: int = 10
    models: int = 1
    algorithm: QueueAlgorithm = QueueAlgorithm.FAIR
    limited: bool = False

    @property
    def servers(self) -> int:
        return -(-self.slots // SLOTS_PER_SERVER)


class Costs:
    """Microseconds of server time per ticket pushed, claim, release-and-claim and end settled, each of the
    quietest chunk. memory: bytes per waiting ticket, where there are enough of them to tell."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._best: dict[str, float] = {}
        self.memory = ""
        self.client = (math.inf, math.inf)

    def __getitem__(self, what: str) -> float:
        return self._best[what]

    def saw(self, seconds: list[float]) -> None:
        """What each call of one chunk took at the client."""
        ordered = sorted(seconds)
        percentiles = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
        self.client = min(self.client, percentiles, key=lambda one: one[1])

    @contextmanager
    def of(self, what: str, count: int) -> Iterator[None]:
        """Scripts that are run inside are `count` times `what`."""
        self._client.config_resetstat()
        yield
        spent = self._client.info("commandstats")["cmdstat_fcall"]["usec"] / count
        self._best[what] = min(spent, self._best.get(what, spent))


def main() -> None:
    arguments = _parser().parse_args()
    fixed = {name: value for name, value in vars(arguments).items() if name != "calls" and value is not None}
    sizes = [Size(**fixed)] if fixed else list(default_sizes())
    print(
        f"{'waiting':>9} {'slots':>7} {'tenants':>8} {'models':>7} {'order':>5} │ "
        f"{'push':>6} {'claim':>6} {'release+claim':>14} {'settled':>8} {'client p50':>11} {'p99':>6} "
        f"{'bytes/ticket':>13}"
    )
    for size in sizes:
        costs = measure(size, arguments.calls)
        print(
            f"{size.waiting:>9,} {size.slots:>7,} {size.tenants:>8,} {size.models:>7} {size.algorithm:>5} │ "
            f"{costs['push']:>6.1f} {costs['claim']:>6.1f} {costs['release']:>14.1f} "
            f"{costs['settled']:>8.1f} {costs.client[0] * 1e6:>11.0f} {costs.client[1] * 1e6:>6.0f}"
            f" {costs.memory:>13}",
            flush=True,
        )


def default_sizes() -> Iterator[Size]:
    base = Size()
    yield base
    for field, values in {
        "waiting": (10_000, 100_000, 300_000),
        "slots": (100, 1_000, 10_000),
        "tenants": (1, 100, 1_000),
        "models": (4, 16, 64),
    }.items():
        for value in values:
            yield replace(base, **{field: value})  # type: ignore[arg-type]
    big = Size(waiting=100_000, slots=1_000, tenants=1_000, models=4)
    yield big
    yield replace(big, algorithm=QueueAlgorithm.FIFO)
    yield replace(big, limited=True)


def measure(size: Size, calls: int) -> Costs:
    """On a server of its own. calls: release-and-claims; the line is kept at its length meanwhile."""
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder, EmbeddedValkey(Path(folder), append_only=False) as server:
        client: Any = connect(server.url)
        leases, costs = RedisLeases(client, "bench"), Costs(client)
        _open(leases, size)
        before = client.info("memory")["used_memory_dataset"]
        pushed = _push(leases, size, 0, size.waiting, costs)
        grown = client.info("memory")["used_memory_dataset"] - before
        costs.memory = f"{grown / size.waiting:.0f}" if size.waiting >= MANY else "–"
        held: list[Lease] = []
        for first in range(0, min(size.slots, calls), CHUNK):
            count = min(CHUNK, size.slots - first)
            with costs.of("claim", count):
                held += [
                    _must(leases.claim(POOL, worker=WORKER, attempt_id=f"c{first + i}")) for i in range(count)
                ]
            pushed = _push(leases, size, pushed, count, costs)
        for first in range(0, calls, CHUNK):
            ended, took = [], []
            with costs.of("release", CHUNK):
                for number in range(first, first + CHUNK):
                    place = chance.randrange(len(held))
                    ended.append(held[place].ref)
                    began = time.perf_counter()
                    held[place] = _must(
                        leases.release(
                            held[place].ref, ReleaseMode.SETTLE, worker=WORKER,
                            gpu_seconds=chance.expovariate(1), next_attempt_id=f"r{number}",
                        )
                    )  # fmt: skip
                    took.append(time.perf_counter() - began)
            costs.saw(took)
            with costs.of("settled", CHUNK):
                leases.settled(ended)
            pushed = _push(leases, size, pushed, CHUNK, costs)
        client.close()
    return costs


def _open(leases: RedisLeases, size: Size) -> None:
    leases.begin_rebuild(WORKER)
    leases.wipe(WORKER)
    leases.open_generation(WORKER)
    leases.configure_pool(PoolSpec(POOL, size.algorithm))
    if size.limited:
        most = max(1, -(-size.slots // size.tenants))
        leases.set_tenants([TenantSpec(f"tenant-{n}", 1.0, "normal", most) for n in range(size.tenants)])
    models = tuple(f"model-{number}" for number in range(size.models))
    for number in range(size.servers):
        count = min(SLOTS_PER_SERVER, size.slots - number * SLOTS_PER_SERVER)
        leases.configure_server(ServerSpec(f"server-{number}", POOL, count, models))


def _push(leases: RedisLeases, size: Size, first: int, count: int, costs: Costs) -> int:
    """The number of the next ticket."""
    for begin in range(first, first + count, 500):
        numbers = range(begin, min(begin + 500, first + count))
        with costs.of("push", len(numbers)):
            leases.push(POOL, [_ticket(number, size) for number in numbers])
    return first + count


def _ticket(number: int, size: Size) -> Ticket:
    """Ids as long as real ones."""
    chance = random.Random(number)
    return Ticket(
        job_id=f"01J{number:023d}",
        model=f"model-{chance.randrange(size.models)}",
        tenant=f"tenant-{number % size.tenants}",
        priority=5,
        place_us=1_700_000_000_000_000 + number * 1000,
    )


def _must(lease: Lease | None) -> Lease:
    assert lease is not None
    return lease


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for field in ("waiting", "slots", "tenants", "models"):
        parser.add_argument(f"--{field}", type=int)
    parser.add_argument("--algorithm", type=QueueAlgorithm, choices=list(QueueAlgorithm))
    parser.add_argument("--limited", action="store_true", default=None)
    parser.add_argument("--calls", type=int, default=5_000, help="release-and-claims per row")
    return parser


if __name__ == "__main__":
    main()
