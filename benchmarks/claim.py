"""Cost of a claim for Redis: microseconds of server time per script call, by queue size.

    python -m benchmarks.claim                      one dimension grows at a time; then all of them at once
    python -m benchmarks.claim --waiting 1000000    one row of your own
    python -m benchmarks.claim --waiting 1000000 --slots 10000 --tenants 10000 --limited
    python -m benchmarks.claim --json claim.json    rows and verdicts, also as JSON (`-`: on stdout)

The times are Redis' own (`INFO commandstats`), without client and socket; each figure is that of the quietest
few calls, so that other processes on the machine do not count. `client` is a caller's wait for a claim or a
release-and-claim: median and 99th percentile of all of them. `bytes` is the memory of the queue per waiting
job. --limited: every tenant may run as many as the slots allow on average: most are at their limit. --warm:
each call of the worker names so many of the models as loaded, as a pinned worker does.

Goals (exit status 1 if one is missed): a claim and a release-and-claim take 30 µs at most; in no dimension
does any row cost more than 30 % more, or less, than the first one; the client waits 1 ms at most at the 99th
percentile; a waiting job takes 200 bytes at most.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.claim_rows import COSTS, HEADS, flatness, goals, line_of
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpus.errors import Verdict
from gpus.leasing.connect import connect
from gpus.leasing.store import RedisLeases
from gpus.protocol import Lease, PoolSpec, QueueAlgorithm, ReleaseMode, ServerSpec, TenantSpec, Ticket

POOL, WORKER = "bench", "bench"
SLOTS_PER_SERVER, CHUNK, MANY = 8, 20, 10_000
CLAIMS = 1_000
"""Claims by wake per row, besides the release-and-claims."""
GROWING: Mapping[str, Sequence[int]] = {
    "waiting": (10_000, 100_000, 1_000_000),
    "slots": (100, 1_000, 10_000),
    "tenants": (1, 100, 1_000, 10_000),
    "models": (4, 16, 64, 200),
}


@dataclass(frozen=True, slots=True)
class Size:
    """The dimensions of a row."""

    waiting: int = 1_000
    slots: int = 8
    tenants: int = 10
    models: int = 1
    algorithm: QueueAlgorithm = QueueAlgorithm.FAIR
    limited: bool = False
    warm: int = 0

    @property
    def loaded(self) -> list[str] | None:
        return [f"model-{number}" for number in range(self.warm)] or None

    @property
    def servers(self) -> int:
        return -(-self.slots // SLOTS_PER_SERVER)


class Costs:
    """Microseconds of server time per pushed ticket, claim, release-and-claim and settled end, each of the
    quietest chunk.

    client: seconds of each claim and each release-and-claim at the client. bytes: per waiting ticket, None
    for too few tickets."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._best: dict[str, float] = {}
        self.bytes: float | None = None
        self.client: list[float] = []

    def __getitem__(self, what: str) -> float:
        return self._best[what]

    def client_us(self, share: float) -> int:
        """Return the percentile of the calls' durations, microseconds."""
        return round(sorted(self.client)[int(len(self.client) * share)] * 1e6)

    @contextmanager
    def waited(self) -> Iterator[None]:
        """Time a call of the client in this block."""
        began = time.perf_counter()
        yield
        self.client.append(time.perf_counter() - began)

    @contextmanager
    def of(self, what: str, count: int) -> Iterator[None]:
        """Attribute the scripts in this block to `count` times `what`."""
        self._client.config_resetstat()
        yield
        spent = self._client.info("commandstats")["cmdstat_fcall"]["usec"] / count
        self._best[what] = min(spent, self._best.get(what, spent))


def main() -> None:
    arguments = _parser().parse_args()
    own = {name: value for name, value in vars(arguments).items() if name not in ("calls", "json")}
    fixed = {name: value for name, value in own.items() if value is not None}
    sizes = [("", Size(**fixed))] if fixed else list(default_sizes())
    stream = sys.stderr if arguments.json == "-" else sys.stdout
    print(HEADS, file=stream)
    rows = []
    for grows, size in sizes:
        rows.append(row_of(grows, size, measure(size, arguments.calls)))
        print(line_of(rows[-1]), flush=True, file=stream)
    found: dict[str, Any] = {"rows": rows, "flatness": flatness(rows), "goals": goals(rows)}
    if arguments.json:
        text = json.dumps(found, indent=1)
        print(text) if arguments.json == "-" else Path(arguments.json).write_text(text)
    for grows, ratios in found["flatness"].items():
        print(f"flat over {grows}, max/min:", *(f"{what} {one}" for what, one in ratios.items()), file=stream)
    for goal in found["goals"]:
        print("reached" if goal["reached"] else "missed ", goal["text"], goal["measured"], file=stream)
    sys.exit(not all(goal["reached"] for goal in found["goals"]))


def default_sizes() -> Iterator[tuple[str, Size]]:
    """Yield the dimension that grows ('' for none, or all), and the row. Every tenant has waiting jobs."""
    base = Size()
    yield "", base
    for field, values in GROWING.items():
        for value in values:
            waiting = max(base.waiting, 2 * value) if field == "tenants" else base.waiting
            grown: dict[str, Any] = {"waiting": waiting, field: value}
            yield field, replace(base, **grown)
    big = Size(waiting=1_000_000, slots=10_000, tenants=10_000)
    yield "", big
    yield "", replace(big, algorithm=QueueAlgorithm.FIFO)
    yield "", replace(big, limited=True)


def row_of(grows: str, size: Size, costs: Costs) -> dict[str, Any]:
    """Return the dimension, the size and the measured values as plain values, for JSON."""
    return {
        "grows": grows,
        **asdict(size),
        **{f"{what}_us": round(costs[what], 1) for what in ("push", *COSTS, "confirm_ends")},
        "client_p50_us": costs.client_us(0.5),
        "client_p99_us": costs.client_us(0.99),
        "bytes": costs.bytes and round(costs.bytes),
    }


def measure(size: Size, calls: int) -> Costs:
    """Measure on a new server. calls: release-and-claims; the queue is kept at its length meanwhile."""
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder, EmbeddedValkey(Path(folder), append_only=False) as server:
        client: Any = connect(server.url)
        leases, costs = RedisLeases(client, "bench"), Costs(client)
        open_index(leases, size)
        before = client.info("memory")["used_memory_dataset"]
        pushed = push_tickets(leases, size, 0, size.waiting, costs)
        grown = client.info("memory")["used_memory_dataset"] - before
        costs.bytes = grown / size.waiting if size.waiting >= MANY else None
        held: list[Lease] = []
        for first in range(0, min(size.slots, calls), CHUNK):
            held += _claim(leases, size, f"c{first}", min(CHUNK, size.slots - first), costs)
            pushed = push_tickets(leases, size, pushed, CHUNK, costs)
        for first in range(0, CLAIMS, CHUNK):  # few slots are claimed repeatedly
            some = [held.pop(chance.randrange(len(held))) for _ in range(min(CHUNK, len(held)))]
            for lease in some:
                leases.release(lease.ref, ReleaseMode.ENDED, worker=WORKER, gpu_seconds=1.0)
            leases.confirm_ends([lease.ref for lease in some])
            held += _claim(leases, size, f"a{first}", len(some), costs)
            pushed = push_tickets(leases, size, pushed, len(some), costs)
        for first in range(0, calls, CHUNK):
            ended = []
            with costs.of("release", CHUNK):
                for number in range(first, first + CHUNK):
                    place = chance.randrange(len(held))
                    ended.append(held[place].ref)
                    with costs.waited():
                        following = leases.release(
                            held[place].ref, ReleaseMode.ENDED, worker=WORKER,
                            gpu_seconds=chance.expovariate(1), next_attempt_id=f"r{number}",
                            verdict=Verdict.WELL, warm=size.loaded,
                        )  # fmt: skip
                    held[place] = required(following)
            with costs.of("confirm_ends", CHUNK):
                leases.confirm_ends(ended)
            pushed = push_tickets(leases, size, pushed, CHUNK, costs)
        client.close()
    return costs


def _claim(leases: RedisLeases, size: Size, name: str, count: int, costs: Costs) -> list[Lease]:
    held = []
    with costs.of("claim", count):
        for number in range(count):
            with costs.waited():
                lease = leases.claim(POOL, worker=WORKER, attempt_id=f"{name}-{number}", warm=size.loaded)
            held.append(required(lease))
    return held


def open_index(leases: RedisLeases, size: Size) -> None:
    """Register the fleet in an empty index."""
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


def push_tickets(leases: RedisLeases, size: Size, first: int, count: int, costs: Costs) -> int:
    """Push tickets; return the number of the next one."""
    for begin in range(first, first + count, 500):
        numbers = range(begin, min(begin + 500, first + count))
        with costs.of("push", len(numbers)):
            leases.push(POOL, [_ticket(number, size) for number in numbers])
    return first + count


def _ticket(number: int, size: Size) -> Ticket:
    """Ids are as long as real ones."""
    chance = random.Random(number)
    return Ticket(
        job_id=f"01J{number:023d}",
        model=f"model-{chance.randrange(size.models)}",
        tenant=f"tenant-{number % size.tenants}",
        priority=5,
        place_us=1_700_000_000_000_000 + number * 1000,
    )


def required(lease: Lease | None) -> Lease:
    """Return the lease; fail if there is none."""
    assert lease is not None
    return lease


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for field in ("waiting", "slots", "tenants", "models", "warm"):
        parser.add_argument(f"--{field}", type=int)
    parser.add_argument("--algorithm", type=QueueAlgorithm, choices=list(QueueAlgorithm))
    parser.add_argument("--limited", action="store_true", default=None)
    parser.add_argument("--json", help="where the result goes as JSON; -: to the standard output")
    parser.add_argument("--calls", type=int, default=5_000, help="release-and-claims per row")
    return parser


if __name__ == "__main__":
    main()
