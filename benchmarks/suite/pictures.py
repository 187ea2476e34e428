"""The plots of a report, by file name. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .contenders import DISPATCHER, RAW
from .plots import Axis, Row, axis_for, bars, lines, spans, strips
from .submit import DEPLOYED

_LABELS = {RAW: "raw limit, no database", "procrastinate": "procrastinate (PostgreSQL)"}


def pictures(results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return ``{"utilisation-20-ms": "<svg …"}`` for the measured benchmarks."""
    found: dict[str, str] = {}
    for name, draw in _PICTURES.items():
        if name in results:
            found.update(draw(results[name]))
    return found


def _utilisation(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    contenders: Mapping[str, Any] = found["contenders"]
    for length in contenders[DISPATCHER]:
        name = length.replace(" ", "-")
        here = {contender: lengths[length] for contender, lengths in contenders.items() if length in lengths}
        ranked = sorted(here.items(), key=lambda one: -one[1]["median"]["utilisation"])
        rows = [
            _row(contender, [one["utilisation"] for one in measured["rounds"]])
            for contender, measured in ranked
        ]
        lowest = min(value for row in rows for value in row.samples)
        yield (
            f"utilisation-{name}",
            strips(
                f"Busy share of {found['slots']} slots, jobs of {length}",
                "a dot for each round, the bar is their median",
                rows,
                Axis(int(lowest * 20) / 20, 1.0),
                digits=4,
            ),
        )
        rows = [
            _row(contender, [max(0.01, measured["median"][f"gap_{which}_ms"]) for which in ("p50", "p99")])
            for contender, measured in sorted(here.items(), key=lambda one: one[1]["median"]["gap_p50_ms"])
        ]
        yield (
            f"gaps-{name}",
            spans(
                f"Idle time of a slot between two jobs of {length}, ms",
                "from p50 (dot) to p99, medians of the rounds, logarithmic",
                rows,
                axis_for([value for row in rows for value in row.samples], log=True),
            ),
        )
        rows = [
            Row(
                _LABELS.get(contender, contender),
                [measured["median"]["cpu_ms_per_job"]],
                contender == DISPATCHER,
                measured["median"]["database_cpu_ms_per_job"],
            )
            for contender, measured in sorted(
                here.items(), key=lambda one: one[1]["median"]["cpu_ms_per_job"]
            )
        ]
        yield (
            f"cpu-{name}",
            bars(
                f"CPU per job of {length}, ms",
                "all processes and the broker; lighter: PostgreSQL's",
                rows,
                axis_for([row.samples[0] + row.more for row in rows], low=0.0),
            ),
        )


def _submit(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for way, title in (("single", "one by one"), ("batch", "100 in a request")):
        rows = [
            Row(name, [target[way]["median"]["jobs_per_second"]], name in (DISPATCHER, DEPLOYED))
            for name, target in found["targets"].items()
            if way in target
        ]
        yield (
            f"submit-{way}",
            bars(
                f"Jobs accepted per second, {title}",
                "16 connections, each posts again when it was answered; medians of the rounds",
                rows,
                axis_for([row.samples[0] for row in rows], low=0.0),
                digits=0,
            ),
        )


def _end_to_end(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    rows = [
        Row(name, [max(0.1, one["p50"]), max(0.1, one["p99"])], ours=True)
        for name, one in found["ms"].items()
        if one["p50"] is not None
    ]
    if rows:
        yield (
            "end-to-end",
            spans(
                "On an idle fleet, ms",
                f"from p50 (dot) to p99; jobs of {found['job_ms']:g} ms, one at a time",
                rows,
                axis_for([value for row in rows for value in row.samples], log=True),
            ),
        )


def _claim(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    rows = found["rows"]
    grown = dict.fromkeys(row["grows"] for row in rows if row["grows"])
    series = [
        (f"{name}", sorted((row[name], row["release_us"]) for row in rows if row["grows"] in (name, "")))
        for name in grown
    ]
    yield (
        "claim",
        lines(
            "Redis time of a release-and-claim, µs",
            "one dimension grows at a time, logarithmic",
            series,
            log_x=True,
        ),
    )


def _memory(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield (
        "memory",
        lines("Memory of a worker with 64 threads, MB", "over jobs done", [("resident", found["samples"])]),
    )


def _row(contender: str, samples: list[float]) -> Row:
    return Row(_LABELS.get(contender, contender), samples, contender == DISPATCHER)


_PICTURES = {
    "utilisation": _utilisation,
    "submit": _submit,
    "end-to-end": _end_to_end,
    "claim": _claim,
    "memory": _memory,
}
