"""The record of runs of workflows: the clients' ledger against the database. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verification.proving.judge import Finding
from verification.proving.records import JobRow, Message
from verification.proving.run_kinds import FILM, KINDS

OVER = ("completed", "failed", "cancelled")
_EXPLAINED = ("poison",)
"""Errors of jobs that faults explain."""


@dataclass(slots=True)
class RunOrder:
    """A run as its client knows it. run_ids: all ids that it got for its key. reported: its end by the
    API. is_erased: its erasure was accepted. kind: of `KINDS`."""

    key: str
    tenant: str
    asked_at: float
    run_ids: list[str] = field(default_factory=list)
    problem: str = ""
    cancel: str = ""
    reported: str = ""
    callback: bool = False
    kind: str = FILM.name
    is_erased: bool = False


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as the database stores it.

    finished_at: Unix seconds; None: never. ends: the state at the end of each round, by its events. tries: of
    its callbacks, by round. nodes: their states by key; is_erased: its data was asked to be erased."""

    id: str
    state: str
    error_code: str
    finished_at: float | None
    ends: Sequence[str] = ()
    tries: Mapping[int, int] = field(default_factory=dict)
    nodes: Mapping[str, str] = field(default_factory=dict)
    is_erased: bool = False


def read_runs(lines: Iterable[Mapping[str, Any]]) -> list[RunOrder]:
    """Return the runs of a ledger. lines: its JSON objects."""
    orders: dict[str, RunOrder] = {}
    by_run: dict[str, RunOrder] = {}
    for line in lines:
        what = line["what"]
        if what == "run_asked":
            known = {name: line[name] for name in ("callback", "kind") if name in line}
            orders[line["key"]] = RunOrder(line["key"], line["tenant"], line["at"], **known)
        elif what == "run_accepted":
            order = by_run[line["run"]] = orders[line["key"]]
            if line["run"] not in order.run_ids:
                order.run_ids.append(line["run"])
        elif what == "run_problem":
            orders[line["key"]].problem = line["error"]
        elif what == "run_cancel":
            by_run[line["run"]].cancel = line["outcome"]
        elif what == "run_erased":
            by_run[line["run"]].is_erased = line["outcome"] == "erased"
        elif what == "run_reported":
            by_run[line["run"]].reported = line["status"]
    return list(orders.values())


def compare_runs(
    orders: Sequence[RunOrder],
    rows: Mapping[str, RunRow],
    jobs: Iterable[JobRow],
    forgotten: Sequence[tuple[float, float]] = (),
    scheduled: Collection[str] = (),
) -> Iterator[Finding]:
    """Each accepted run must be there once, have ended, and as its client was informed.

    jobs: of the database. forgotten: when commits were lost, Unix seconds; runs of these times are not
    judged. scheduled: ids of runs that schedules started."""
    failed = {job.run for job in jobs if job.run and job.state == "failed" and job.error_code in _EXPLAINED}
    known: set[str] = set()
    for order in orders:
        known.update(order.run_ids)
        found = [rows[run_id] for run_id in order.run_ids if run_id in rows]
        ends = [row.finished_at or float("inf") for row in found] or [float("inf")]
        if any(order.asked_at <= last and max(ends) >= first for first, last in forgotten):
            continue
        if len(order.run_ids) > 1:
            yield Finding("two_runs", f"one key started {order.run_ids}", order.run_ids[0])
        if not order.run_ids:
            yield Finding("run_never_accepted", f"{order.key}: {order.problem or 'no answer yet'}")
        elif not found:
            yield Finding("run_lost", "was accepted and is not in the database", order.run_ids[0])
        for row in found:
            yield from _compare(order, row, is_explained=row.id in failed)
    if not forgotten:
        for run_id in sorted(rows.keys() - known - set(scheduled)):
            yield Finding("unknown_run", "is in the database, and in no client's ledger", run_id)


def _compare(order: RunOrder, row: RunRow, *, is_explained: bool) -> Iterator[Finding]:
    if row.state not in OVER:
        yield Finding("run_not_over", f"is {row.state} after the drain", row.id)
    if order.reported and order.reported != row.state:
        yield Finding(
            "run_client_read_differs",
            f"its client read {order.reported}, the database says {row.state}",
            row.id,
        )
    if row.state == "cancelled" and not order.cancel:
        yield Finding("run_cancelled_unasked", "is cancelled, and its client did not ask for it", row.id)
    if order.is_erased and not row.is_erased:
        text = "its client's erasure was accepted, and the run does not record it"
        yield Finding("run_not_erased", text, row.id)
    if row.state == "cancelled" or row.state not in OVER or is_explained:
        return
    kind = KINDS[order.kind]
    if (row.state, row.error_code) != (kind.state, kind.code):
        text = (
            f"is {row.state} {row.error_code}, and runs of the kind {kind.name} end {kind.state} {kind.code}"
        )
        yield Finding("run_ended_otherwise", text.replace("  ", " "), row.id)
        return
    for key, state in kind.nodes:
        if row.nodes.get(key) != state:
            text = f"its node {key} is {row.nodes.get(key, 'missing')}, and has to be {state}"
            yield Finding("run_node_wrong", text, row.id)


def compare_run_messages(
    orders: Sequence[RunOrder],
    rows: Mapping[str, RunRow],
    messages: Sequence[Message],
    forgotten: Sequence[tuple[float, float]] = (),
) -> Iterator[Finding]:
    """Each round of a run with a callback must have sent its end, signed and under one id; repeats are fine.
    A later round's end arrives after an earlier one's, unless that had to be tried again.

    messages: in the order of their arrival. Runs of a time in `forgotten` are not judged."""
    arrived: dict[str, list[Message]] = {}
    for message in messages:
        if message.run_id:
            arrived.setdefault(message.run_id, []).append(message)
    for order in orders:
        for run_id in order.run_ids:
            found, row = arrived.pop(run_id, []), rows.get(run_id)
            last = max((one.at for one in found), default=order.asked_at)
            if row is None or any(order.asked_at <= end and last >= first for first, end in forgotten):
                continue
            if found and not order.callback:
                text = f"got {len(found)} callbacks and asked for none"
                yield Finding("run_callback_unasked", text, run_id)
            elif order.callback:
                yield from _rounds(row, found)
    if not forgotten:
        for run_id, found in arrived.items():
            yield Finding(
                "run_callback_unknown", f"{len(found)} callbacks of a run that no client started", run_id
            )


def _rounds(row: RunRow, messages: Sequence[Message]) -> Iterator[Finding]:
    if any(message.signed is False for message in messages):
        yield Finding("run_callback_unsigned", "a callback whose signature is wrong", row.id)
    first: dict[int, int] = {}
    for place, message in enumerate(messages):
        first.setdefault(message.round, place)
    for number, state in enumerate(row.ends, 1):
        found = [one for one in messages if one.round == number]
        if not found:
            yield Finding("run_callback_missing", f"round {number} ended, and no callback arrived", row.id)
            continue
        if len({one.webhook_id for one in found}) > 1:
            yield Finding("run_callback_doubled", f"round {number} has callbacks with different ids", row.id)
        if {one.status for one in found} != {state}:
            said = sorted({one.status for one in found})
            yield Finding(
                "run_callback_wrong", f"round {number} ended {state}, its callback says {said}", row.id
            )
        newer = [later for later, place in first.items() if later > number and place < first[number]]
        if newer and row.tries.get(number, 1) < 2:
            text = f"the end of round {number} arrived after that of round {min(newer)}"
            yield Finding("run_callback_order", text, row.id)
    if extra := sorted(first.keys() - set(range(1, len(row.ends) + 1))):
        yield Finding("run_callback_wrong", f"callbacks of rounds {extra}, which have not ended", row.id)
