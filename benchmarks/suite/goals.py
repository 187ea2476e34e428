"""The goals, each with the measured value. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .contenders import DISPATCHER, RAW
from .figures import ratio
from .newcomer import APART, FIRST, LATER, TOGETHER
from .submit import DEPLOYED

Results = Mapping[str, Mapping[str, Any]]
"""By benchmark."""
UTILISATION = {"20 ms": 0.93, "100 ms": 0.985, "500 ms": 0.997}
BEHIND_AT_100_MS = 0.003
MEMORY_JOBS, POLLED_JOBS = 100_000, 200
_PLAIN_PEERS = ("celery", "rq", "dramatiq", "huey", "taskiq", "procrastinate", "bullmq")


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal with its measured value. met: None if it can't be decided."""

    benchmark: str
    goal: str
    measured: str
    met: bool | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def goals(results: Results) -> list[Goal]:
    """Return all goals, in order of the benchmarks."""
    return [goal for name, read in _GOALS_OF.items() for goal in read(results.get(name, {}))]


def _at_least(benchmark: str, what: str, limit: float, value: float | None, unit: str = "") -> Goal:
    return _goal(benchmark, f"{what} ≥ {limit:g}{unit}", value, unit, lambda one: one >= limit)


def _at_most(benchmark: str, what: str, limit: float, value: float | None, unit: str = "") -> Goal:
    return _goal(benchmark, f"{what} ≤ {limit:g}{unit}", value, unit, lambda one: one <= limit)


def _goal(benchmark: str, text: str, value: float | None, unit: str, met: Callable[[float], bool]) -> Goal:
    if value is None:
        return Goal(benchmark, text, "not measured", None)
    return Goal(benchmark, text, f"{value:g}{unit}", met(value))


def _get(found: Any, *path: str) -> Any:
    """Return the value at a path; None if it does not exist."""
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found


def _utilisation(found: Mapping[str, Any]) -> Iterator[Goal]:
    name = "utilisation"

    def of(contender: str, length: str, what: str) -> Any:
        return _get(found, "contenders", contender, length, "median", what)

    for length, limit in UTILISATION.items():
        yield _at_least(name, f"utilisation, jobs of {length},", limit, of(DISPATCHER, length, "utilisation"))
    for length in UTILISATION:
        share = ratio(of(DISPATCHER, length, "gap_p50_ms"), of(RAW, length, "gap_p50_ms"))
        yield _at_most(name, f"gap p50 / raw limit, jobs of {length},", 1.5, share, " ×")
    for length in UTILISATION:
        gap = of(DISPATCHER, length, "gap_p99_ms")
        yield _at_most(name, f"gap p99, jobs of {length},", 10, gap, " ms")
    for length, allowance in (("20 ms", 0.0), ("100 ms", BEHIND_AT_100_MS)):
        yield _ahead(found, length, allowance)
    cost = of(DISPATCHER, "20 ms", "cpu_ms_per_job")
    stored = of(DISPATCHER, "20 ms", "database_cpu_ms_per_job")
    yield _at_most(name, "CPU of all our processes per job of 20 ms", 3, cost, " ms")
    both = None if cost is None or not stored else round(cost + stored, 3)
    yield _at_most(name, "the same with PostgreSQL's", 3, both, " ms")


def _ahead(found: Mapping[str, Any], length: str, allowance: float) -> Goal:
    contenders = _get(found, "contenders") or {}
    peers = {
        name: value
        for name in _PLAIN_PEERS
        if (value := _get(contenders, name, length, "median", "utilisation")) is not None
    }
    ours = _get(contenders, DISPATCHER, length, "median", "utilisation")
    within = f", or within {allowance:g} of the best" if allowance else ""
    text = f"ahead of every peer at {length}{within}"
    if ours is None or not peers:
        return Goal("utilisation", text, "not measured", None)
    best = max(peers, key=lambda name: peers[name])
    missing = [name for name in _PLAIN_PEERS if name not in peers]
    measured = f"{ours:g}; the best is {best} with {peers[best]:g}"
    measured += f"; without {', '.join(missing)}" if missing else ""
    return Goal(
        "utilisation",
        text,
        measured,
        ours >= peers[best] - allowance and (bool(allowance) or ours > peers[best]),
    )


def _submit(found: Mapping[str, Any]) -> Iterator[Goal]:
    ratios = found.get("ratios", {})
    batched = ratios.get("batched / Starlette, one by one")
    yield _at_least("submit", "jobs/s in batches of 100 / Starlette + Redis", 1.0, batched, " ×")
    single = ratios.get("single / Django, one row")
    yield _at_least("submit", "one by one / bare Django view, one row", 0.8, single, " ×")
    opened = found.get("open", {})
    late = _get(opened, DEPLOYED if DEPLOYED in opened else DISPATCHER, "p99_ms")
    yield _at_most("submit", "open loop at half capacity, fleet at work: p99", 50, late, " ms")


def _end_to_end(found: Mapping[str, Any]) -> Iterator[Goal]:
    for span, which, limit in (
        ("accepted → running", "p50", 8),
        ("accepted → running", "p99", 25),
        ("finished → called back", "p50", 20),
    ):
        yield _at_most("end-to-end", f"{span}: {which}", limit, _get(found, "ms", span, which), " ms")


def _claim(found: Mapping[str, Any]) -> Iterator[Goal]:
    yield _at_most(
        "claim", "Redis time of a release-and-claim, dearest row,", 30, found.get("most_us"), " µs"
    )
    text = "flat: every row within ± 30 % of the first"
    if "lowest_ratio" not in found:
        yield Goal("claim", text, "not measured", None)
        return
    lowest, highest = found["lowest_ratio"], found["highest_ratio"]
    yield Goal("claim", text, f"{lowest:g} to {highest:g} ×", lowest >= 0.7 and highest <= 1.3)


def _memory(found: Mapping[str, Any]) -> Iterator[Goal]:
    yield _at_most("memory", "worker with 64 threads", 120, found.get("most_mb"), " MB")
    text = "flat over 100,000 jobs"
    if "flat" not in found:
        yield Goal("memory", text, "not measured", None)
        return
    measured = f"{found['first_mb']:g} → {found['last_mb']:g} MB over {found['jobs']:,}"
    enough = found["jobs"] >= MEMORY_JOBS or not found["flat"]  # growth shows sooner
    yield Goal("memory", text, measured, found["flat"] if enough else None)


def _startup(found: Mapping[str, Any]) -> Iterator[Goal]:
    yield _at_most("startup", "`up` ready, warm", 6, _get(found, "up_warm_seconds", "median"), " s")
    commands: Mapping[str, float] = found.get("command_seconds", {})
    slowest = max(commands, key=lambda name: commands[name]) if commands else ""
    yield _at_most(
        "startup", f"`manage.py` command start{f', slowest: {slowest}' if slowest else ''}", 1,
        commands.get(slowest), " s",
    )  # fmt: skip


def _newcomer(found: Mapping[str, Any]) -> Iterator[Goal]:
    def of(name: str) -> Any:
        return _get(found, "rows", name, "median", "utilisation")

    share = ratio(of(FIRST), of(LATER))
    yield _at_least("newcomer", "utilisation right after `up` / later, jobs of 20 ms,", 0.97, share)
    share = ratio(of(APART), of(TOGETHER))
    what = "utilisation of a server that writes head and body apart / together, jobs of 100 ms,"
    yield _at_least("newcomer", what, 0.97, share)


def _idle(found: Mapping[str, Any]) -> Iterator[Goal]:
    yield _at_most("idle", "`up` and its demo fleet at rest: memory", 700, found.get("mb"), " MB")
    yield _at_most("idle", "the same: CPU of one core", 5, found.get("core_percent"), " %")


def _pinned(found: Mapping[str, Any]) -> Iterator[Goal]:
    elsewhere, on = found.get("elsewhere_seconds"), found.get("on_seconds")
    yield _at_most(
        "pinned", "the job of a killed pinned worker runs elsewhere, longest,", 25, elsewhere, " s"
    )
    yield _at_most("pinned", "a pinned worker that is switched on runs what waits, longest,", 1, on, " s")


def _fleet(found: Mapping[str, Any]) -> Iterator[Goal]:
    what = "1,000 slots, jobs of 20 s, two workers: utilisation"
    yield _at_least("fleet", what, 0.98, found.get("utilisation"))


def _polling(found: Mapping[str, Any]) -> Iterator[Goal]:
    text = "200 async jobs polled by one worker process < 10 % of a core"
    if "core_share" not in found:
        yield Goal("polling", text, "not measured", None)
        return
    share, jobs = found["core_share"], found["jobs"]
    met = share < 0.1 if jobs >= POLLED_JOBS or share >= 0.1 else None
    yield Goal("polling", text, f"{share:.1%} with {jobs} jobs", met)


def _workflows(found: Mapping[str, Any]) -> Iterator[Goal]:
    name = "workflows"

    def of(part: str, what: str) -> Any:
        return _get(found, "contenders", DISPATCHER, part, "median", what)

    least = 200 if _get(found, "about", "database") == "SQLite" else 300
    yield _at_least(name, "chains of 5, 200 runs at once: nodes/s", least, of("chains", "nodes_per_second"))
    yield _at_most(name, "edge, idle fleet: p50", 40, of("edge", "p50_ms"), " ms")
    yield _at_most(name, "edge, idle fleet: p99", 120, of("edge", "p99_ms"), " ms")
    yield _at_least(name, "map and join: nodes/s", 300, of("map", "nodes_per_second"))
    beside = _get(found, "others", "beside a map", "p99")
    plain = _get(found, "others", "beside plain jobs", "p99")
    what = "p99 of other jobs' submits beside a map / beside as many plain jobs"
    yield _at_most(name, what, 1.1, ratio(beside, plain), " ×")
    grows = _get(found, "others", "memory_grows_mb")
    yield _at_most(name, "memory of the advancer's process grows over a map by", 20, grows, " MB")
    cancel = _get(found, "cancel", "seconds")
    yield _at_most(name, "cancel of a map of 100,000, to the last waiting child", 5, cancel, " s")
    steps = found.get("steps", {})
    yield _at_most(
        name, "advancer's transaction, a map: p99", 60, _get(steps, "map: transaction ms", "p99"), " ms"
    )
    event = _get(steps, "event in a large run: CPU ms", "p50")
    yield _at_most(name, "CPU of one event in a run of 1,000 nodes: p50", 2, event, " ms")


def _schedules(found: Mapping[str, Any]) -> Iterator[Goal]:
    lag = found.get("lag p99 s")
    yield _at_most("schedules", "10,000 due in a minute, 10 kills of sweepers: p99 of the lag", 2, lag, " s")


_GOALS_OF: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Goal]]] = {
    "utilisation": _utilisation,
    "submit": _submit,
    "end-to-end": _end_to_end,
    "claim": _claim,
    "fleet": _fleet,
    "polling": _polling,
    "memory": _memory,
    "startup": _startup,
    "newcomer": _newcomer,
    "idle": _idle,
    "pinned": _pinned,
    "workflows": _workflows,
    "schedules": _schedules,
}


def wrongs(results: Results) -> Sequence[str]:
    """Return incorrect results of any contender: a fast one that loses jobs is not fast."""
    found = [f"{name}: {text}" for name, one in results.items() for text in one.get("wrong", ())]
    for contender, lengths in (results.get("utilisation", {}).get("contenders") or {}).items():
        found += [
            f"{contender}, {length}: {text}" for length, one in lengths.items() for text in one["wrong"]
        ]
    return found
