"""Compares the records. Each function says in words what is wrong with them; nothing: they agree. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from verification.proving.records import FINAL, JobRow, Message, NodeLog, Order, Run

Spans = Mapping[str, Sequence[tuple[float, float]]]
"""When a server lied about what it runs: (begin, end) in Unix seconds, by its name."""

DEADLINE_SLACK_SECONDS = 1.5
DEADLINE_CODES = ("deadline_exceeded", "stopped_by_deadline")
POISON_DEATHS = 3
ORDER_SLACK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Wrong:
    """kind: short and stable, for counting. job_id: empty if it concerns no single job."""

    kind: str
    text: str
    job_id: str = ""


def ledger_against_rows(orders: Iterable[Order], rows: Mapping[str, JobRow]) -> Iterator[Wrong]:
    """Accepted means finished or explicitly failed, once, and as its client was told."""
    known: set[str] = set()
    for order in orders:
        known.update(order.job_ids)
        if len(order.job_ids) > 1:
            yield Wrong("two_jobs", f"one key made {len(order.job_ids)} jobs: {order.job_ids}", order.job_id)
        if not order.job_ids:
            yield Wrong("never_accepted", f"{order.key}: {order.problem or 'no answer yet'}")
            continue
        row = rows.get(order.job_id)
        if row is None:
            yield Wrong("lost", f"accepted at {order.accepted_at}, not in the database", order.job_id)
            continue
        if row.state not in FINAL:
            yield Wrong("not_over", f"is {row.state} after the drain", row.id)
        if order.told and (order.told, order.told_code) != (row.state, row.error_code):
            told, stored = f"{order.told} {order.told_code}", f"{row.state} {row.error_code}"
            yield Wrong("told_otherwise", f"its client was told {told}, the database says {stored}", row.id)
        if order.cancel == "cancelled" and row.state != "cancelled":
            yield Wrong("cancel_ignored", f"was confirmed as cancelled and is {row.state}", row.id)
        if order.cancel.startswith("unanswered"):
            yield Wrong("cancel_unanswered", f"its cancel: {order.cancel}", row.id)
        if row.state == "cancelled" and not order.cancel:
            yield Wrong("cancelled_unasked", "is cancelled and nobody asked for it", row.id)
        if row.state == "failed" and not _is_explained(order, row):
            yield Wrong("failed", f"failed with {row.error_code}, which its order does not explain", row.id)
    for job_id in rows.keys() - known:
        yield Wrong("unknown_job", "is in the database, and no client was told of it", job_id)


def _is_explained(order: Order, row: JobRow) -> bool:
    if row.error_code in DEADLINE_CODES:
        return order.deadline_seconds is not None
    if row.error_code == "lost_at_most_once":
        return order.model.endswith("-once")
    if row.error_code == "poison":
        return sum(attempt.state == "lost" for attempt in row.attempts) >= POISON_DEATHS
    return False


def too_early(orders: Iterable[Order], failed_at: Mapping[str, float]) -> Iterator[Wrong]:
    """failed_at: when a job was first seen as failed by its deadline, by our own clock."""
    for order in orders:
        seen = failed_at.get(order.job_id)
        if seen is not None and order.deadline_seconds is not None:
            lasted = seen - order.asked_at
            if lasted < order.deadline_seconds - DEADLINE_SLACK_SECONDS:
                text = f"failed by its deadline of {order.deadline_seconds} s after {lasted:.1f} s"
                yield Wrong("deadline_too_early", text, order.job_id)


def rows_against_runs(
    rows: Mapping[str, JobRow],
    logs: Sequence[NodeLog],
    slots: Mapping[str, int],
    *,
    once_models: str = "-once",
    excused: Spans | None = None,
) -> Iterator[Wrong]:
    """No GPU ran more than it has slots, what counts as a result really ran, and nothing ran unknown.

    excused: when a server denied what it runs. Its word is what a slot is given out again by, so only that
    it never runs more than it has slots holds then.
    """
    runs: dict[str, list[Run]] = defaultdict(list)
    for log in logs:
        if log.peak > slots[log.server]:
            yield Wrong("oversubscribed", f"{log.server} ran {log.peak} at once on {slots[log.server]} slots")
        for earlier, later in log.crossed:
            if _lied(excused or {}, log.server, later.started):
                continue
            text = f"slot {later.slot} ran {later.attempt_id} while it ran {earlier.attempt_id}"
            yield Wrong("slot_shared", text, later.job_id)
        for run in log.runs:
            runs[run.job_id].append(run)
            if not run.outcome:
                yield Wrong("still_runs", f"{log.server} still runs it", run.job_id)
    for job_id, count in Counter(run.attempt_id for log in logs for run in log.runs).items():
        if count > 1:
            yield Wrong("attempt_ran_twice", f"attempt {job_id} ran {count} times")
    for row in rows.values():
        yield from _winner(row, runs[row.id])
        if row.model.endswith(once_models) and len(runs[row.id]) > 1:
            yield Wrong("ran_more_than_once", f"ran {len(runs[row.id])} times, its model allows one", row.id)
    for job_id in runs.keys() - rows.keys():
        yield Wrong("ran_unknown", "ran on a GPU and is not in the database", job_id)


def _winner(row: JobRow, runs: Sequence[Run]) -> Iterator[Wrong]:
    winners = [one for one in row.attempts if one.state == "completed"]
    if row.state != "completed":
        if winners:
            yield Wrong("result_thrown_away", f"is {row.state} with a completed attempt", row.id)
        return
    if len(winners) != 1:
        yield Wrong("two_results", f"is completed by {len(winners)} attempts", row.id)
        return
    winner = winners[0]
    if row.result_attempt != winner.id:
        text = (
            f"its result is of attempt {row.result_attempt}, attempt {winner.id} is the one that completed it"
        )
        yield Wrong("result_of_another", text, row.id)
    if not any(run.attempt_id == winner.id and run.outcome == "success" for run in runs):
        yield Wrong("never_ran", f"is completed by attempt {winner.id}, which no GPU ran to its end", row.id)


def unwritten_runs(rows: Mapping[str, JobRow], logs: Sequence[NodeLog]) -> list[Run]:
    """Runs without an attempt in the database: their start was refused, or died with its worker."""
    known = {attempt.id for row in rows.values() for attempt in row.attempts}
    return [run for log in logs for run in log.runs if run.attempt_id not in known]


def arrivals_at_full(logs: Sequence[NodeLog], excused: Spans) -> Iterator[Wrong]:
    """Every request that came to a full server, although that refused it: the dispatcher thought it free.

    excused: by server, when it lied about what it runs. Late senders are not meant: a server knows those by
    their fence.
    """
    for log in logs:
        for one in log.refusals:
            if one.why == "full" and not _lied(excused, log.server, one.at):
                text = f"came to {log.server} ({one.slot}) at {one.at:.1f}, which ran {one.running} already"
                yield Wrong("sent_to_full", text, one.job_id)


def _lied(excused: Spans, server: str, at: float) -> bool:
    return any(begin <= at <= end for begin, end in excused.get(server, ()))


def rows_against_messages(
    orders: Iterable[Order], rows: Mapping[str, JobRow], messages: Iterable[Message]
) -> Iterator[Wrong]:
    """Each callback that was asked for came, signed, with the end that counts; at most repeated."""
    told: dict[str, list[Message]] = defaultdict(list)
    for message in messages:
        told[message.job_id].append(message)
    for order in orders:
        row = rows.get(order.job_id)
        found = told.pop(order.job_id, [])
        if row is None or row.state not in FINAL:
            continue
        if order.callback and not found:
            yield Wrong("callback_missing", "asked for a callback, none arrived", row.id)
        if found and not order.callback:
            yield Wrong("callback_unasked", f"got {len(found)} callbacks and asked for none", row.id)
        yield from _same_story(row, found)
    for job_id, found in told.items():
        yield Wrong("callback_unknown", f"{len(found)} callbacks for a job that no client ordered", job_id)


def _same_story(row: JobRow, messages: Sequence[Message]) -> Iterator[Wrong]:
    ids = {message.webhook_id for message in messages}
    if len(ids) > row.round:
        yield Wrong("callback_doubled", f"{len(ids)} different callbacks in {row.round} rounds", row.id)
    if any(message.signed is False for message in messages):
        yield Wrong("callback_unsigned", "a callback whose signature is wrong", row.id)
    ends = {(message.status, message.attempt_id) for message in messages}
    if len(ends) > row.round:
        yield Wrong("callback_contradiction", f"callbacks tell different ends: {sorted(ends)}", row.id)
    elif messages and row.round == 1:
        expected = (row.state, (row.result_attempt or "") if row.state == "completed" else "")
        if ends != {expected}:
            yield Wrong("callback_wrong", f"its callback says {sorted(ends)}, it is {expected}", row.id)


def order_kept(
    rows: Mapping[str, JobRow],
    logs: Sequence[NodeLog],
    flushed_at: float,
    *,
    slack_seconds: float = ORDER_SLACK_SECONDS,
) -> Iterator[Wrong]:
    """Jobs that waited when Redis was flushed, and ran first after it: within tenant, model and priority the
    first in line starts first. Slots work side by side, so a little slack is none of the line's business."""
    started: dict[str, float] = {}
    for log in logs:
        for run in log.runs:
            started[run.job_id] = min(run.started, started.get(run.job_id, run.started))
    lines: dict[tuple[str, str, int], list[tuple[int, float, str]]] = defaultdict(list)
    for row in rows.values():
        if row.place_us < flushed_at * 1_000_000 and started.get(row.id, 0.0) >= flushed_at:
            lines[row.tenant, row.model, row.priority].append((row.place_us, started[row.id], row.id))
    for line in lines.values():
        line.sort()
        earliest = float("inf")
        for _, at, job_id in reversed(line):
            if at > earliest + slack_seconds:
                late = at - earliest
                text = f"started {late:.1f} s after a job that stood behind it when Redis was flushed"
                yield Wrong("order_lost", text, job_id)
            earliest = min(earliest, at)
