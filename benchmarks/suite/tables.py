"""The figures of a report as tables of texts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .contenders import DISPATCHER, RAW

_NUMBER = "{:,.3g}"


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [self.heads, ["---"] * len(self.heads), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def tables(results: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Table]]:
    """Return the tables of the measured benchmarks, by name."""
    return {name: list(_TABLES[name](found)) for name, found in results.items() if name in _TABLES}


def conditions(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the table of each benchmark's conditions."""
    rows = []
    for name, found in results.items():
        about = found["about"]
        rows.append([
            name, about["at"], about["commit"], about["database"], str(about["cores"]), about["python"],
            str(about["rounds"]), f"{about['load_before']}",
        ])  # fmt: skip
    heads = (
        "benchmark",
        "measured",
        "commit",
        "database",
        "cores",
        "Python",
        "rounds",
        "load average before",
    )
    return Table("Measured on", heads, rows)


def _utilisation(found: Mapping[str, Any]) -> Iterator[Table]:
    contenders: Mapping[str, Any] = found["contenders"]
    for length in contenders[DISPATCHER]:
        raw = contenders.get(RAW, {}).get(length, {}).get("median", {})
        ranked = sorted(
            (
                (contender, one[length]["median"], one[length]["wrong"])
                for contender, one in contenders.items()
                if length in one
            ),
            key=lambda one: -one[1]["utilisation"],
        )
        rows = []
        for contender, one, wrong in ranked:
            share = one["gap_p50_ms"] / raw["gap_p50_ms"] if raw.get("gap_p50_ms") else None
            rows.append([
                f"**{contender}**" if contender == DISPATCHER else contender,
                f"{one['utilisation']:.4f}", f"{one['gap_p50_ms']:.2f}", f"{one['gap_p99_ms']:.2f}",
                "–" if share is None else f"{share:.2f}", f"{one['cpu_ms_per_job']:.2f}",
                f"{one['database_cpu_ms_per_job']:.2f}", f"{one['judge_cpu_ms_per_job']:.2f}",
                "; ".join(wrong) or "yes",
            ])  # fmt: skip
        heads = (
            "contender", "utilisation", "gap p50 ms", "gap p99 ms", "gap p50 / raw", "CPU ms per job",
            "PostgreSQL's", "the judge's", "each job run once",
        )  # fmt: skip
        yield Table(f"{found['slots']} slots, jobs of {length}", heads, rows)


def _submit(found: Mapping[str, Any]) -> Iterator[Table]:
    rows = []
    for name, target in found["targets"].items():
        for way in ("single", "batch"):
            if way in target:
                one = target[way]["median"]
                numbers = [
                    f"{one[what]:,.1f}"
                    for what in ("requests_per_second", "jobs_per_second", "p50_ms", "p99_ms")
                ]
                rows.append([name, way, *numbers, f"`{target['served_by']}`"])
    yield Table(
        "Closed loop", ("contender", "way", "requests/s", "jobs/s", "p50 ms", "p99 ms", "served by"), rows
    )
    yield Table(
        "Open loop at half the capacity, while the fleet works",
        (
            "contender", "requests/s wanted", "answered/s", "p50 ms", "p99 ms", "sent late, p99 ms",
            "other answers",
        ),
        [
            [name, f"{one['rate']:,.1f}", f"{one['requests_per_second']:,.1f}",
             f"{one['p50_ms']}", f"{one['p99_ms']}", f"{one.get('late_p99_ms', '–')}",
             str(one["other"] or "none")]
            for name, one in found["open"].items()
        ],
    )  # fmt: skip
    yield Table(
        "Ratios", ("ours / theirs, jobs per second", "ratio"),
        [[name, "–" if value is None else f"{value:.3f}"] for name, value in found["ratios"].items()],
    )  # fmt: skip


def _end_to_end(found: Mapping[str, Any]) -> Iterator[Table]:
    rows = [[name, f"{one['p50']}", f"{one['p99']}", f"{one['max']}"] for name, one in found["ms"].items()]
    yield Table(f"{found['jobs']} jobs, one at a time, ms", ("from → to", "p50", "p99", "longest"), rows)


def _claim(found: Mapping[str, Any]) -> Iterator[Table]:
    sizes = ("waiting", "slots", "tenants", "models")
    costs = ("push_us", "claim_us", "release_us", "confirm_ends_us", "client_p50_us", "client_p99_us")
    heads = (
        *sizes,
        "push µs",
        "claim µs",
        "release and claim µs",
        "confirm µs",
        "client p50 µs",
        "client p99 µs",
    )
    rows = [
        [*(f"{row[name]:,}" for name in sizes), *(f"{row[name]:g}" for name in costs)]
        for row in found["rows"]
    ]
    yield Table("Redis time per call", heads, rows)


def _one(title: str, *names: str) -> Callable[[Mapping[str, Any]], Iterator[Table]]:
    def read(found: Mapping[str, Any]) -> Iterator[Table]:
        rows = [[name.replace("_", " "), f"{found[name]}"] for name in names if name in found]
        yield Table(title, ("", "measured"), rows)

    return read


def _startup(found: Mapping[str, Any]) -> Iterator[Table]:
    rows = [
        ["`up`, new folder", f"{found['up_first_seconds']}"],
        ["`up`, warm", f"{found['up_warm_seconds']['median']}"],
        *([f"`manage.py {name}`", f"{seconds}"] for name, seconds in found["command_seconds"].items()),
    ]
    yield Table("Seconds", ("", "seconds"), rows)


def _newcomer(found: Mapping[str, Any]) -> Iterator[Table]:
    names = ("utilisation", "gap_p50_ms", "gap_p99_ms")
    rows = [[name, *(f"{one['median'][what]}" for what in names)] for name, one in found["rows"].items()]
    yield Table("Eight slots", ("", "utilisation", "gap p50, ms", "gap p99, ms"), rows)


def _idle(found: Mapping[str, Any]) -> Iterator[Table]:
    rows = [
        [f"`{name}`", f"{pss:.1f}", f"{rss:.1f}", f"{share:.2%}"]
        for name, (pss, rss, share) in found["processes"].items()
    ]
    yield Table("At rest", ("process", "PSS, MB", "RSS, MB", "of a core"), rows)


def _pinned(found: Mapping[str, Any]) -> Iterator[Table]:
    rows = [[name, *(f"{one[what]}" for what in ("p50", "max"))] for name, one in found["seconds"].items()]
    yield Table(f"{found['rounds']} rounds, seconds", ("from → to", "p50", "longest"), rows)


def _cost(found: Mapping[str, Any]) -> Iterator[Table]:
    names = list(dict.fromkeys([*found["single"], *found["batch"]]))
    rows = [
        [name, *(_NUMBER.format(found[way].get(name, 0.0)) for way in ("single", "batch"))] for name in names
    ]
    heads = ("per job", "submitted one by one", "100 at a time")
    yield Table(f"What a job costs ({found['jobs']} jobs of 20 ms)", heads, rows)
    parts = list(dict.fromkeys([*found["carries"]["single"], *found["carries"]["batch"]]))
    rows = [
        [part, *(f"{found['carries'][way].get(part, 0):,}" for way in ("single", "batch"))] for part in parts
    ]
    yield Table("What the parts carry, jobs per second", ("part", *heads[1:]), rows)


def _workflows(found: Mapping[str, Any]) -> Iterator[Table]:
    heads = ("contender", "chains, nodes/s", "CPU ms per node", "edge p50, ms", "p99", "map, nodes/s",
             "CPU ms per node")  # fmt: skip
    rows = []
    for contender, parts in found["contenders"].items():
        chains, edge, fan = (parts[part]["median"] for part in ("chains", "edge", "map"))
        cost = [one["cpu_ms_per_node"] + one["database_cpu_ms_per_node"] for one in (chains, fan)]
        rows.append([
            f"**{contender}**" if contender == DISPATCHER else contender,
            f"{chains['nodes_per_second']:,.0f}", f"{cost[0]:.2f}", f"{edge['p50_ms']:.1f}",
            f"{edge['p99_ms']:.1f}", f"{fan['nodes_per_second']:,.0f}", f"{cost[1]:.2f}",
        ])  # fmt: skip
    yield Table("Workflows of no-op nodes on eight slots, CPU with the database's", heads, rows)
    yield Table("The advancer alone", ("", "p50", "p99", "largest"), [
        [name, f"{one['p50']:g}", f"{one['p99']:g}", f"{one['max']:g}"]
        for name, one in found["steps"].items() if isinstance(one, Mapping)
    ])  # fmt: skip


_TABLES: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Table]]] = {
    "utilisation": _utilisation,
    "submit": _submit,
    "end-to-end": _end_to_end,
    "claim": _claim,
    "fleet": _one(
        "1,000 slots, jobs of 20 s, two worker processes", "utilisation", "gap_p50_ms", "gap_p99_ms", "jobs",
        "cpu_ms_per_job", "database_cpu_ms_per_job", "cores",
    ),
    "polling": _one(
        "Async jobs polled by one worker process", "jobs", "poll_interval_seconds", "polls_per_second",
        "core_share", "cpu_ms_per_poll",
    ),
    "memory": _one("A worker with 64 threads", "idle_mb", "first_mb", "last_mb", "most_mb", "jobs", "flat"),
    "startup": _startup,
    "newcomer": _newcomer,
    "idle": _idle,
    "pinned": _pinned,
    "cost": _cost,
    "workflows": _workflows,
    "schedules": _one(
        "Schedules due in one minute, their sweepers killed", "schedules", "sweepers", "kills", "started",
        "double", "missed", "lag p50 s", "lag p99 s", "lag max s",
    ),
}  # fmt: skip
