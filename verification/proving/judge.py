"""Compares the records. Each function yields its findings; none: the records agree. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from verification.proving.records import FINAL, JobRow, Message, NodeLog, Order, Run

Spans = Mapping[str, Sequence[tuple[float, float]]]
"""Times of wrong reports by a server about its runs: (begin, end) in Unix seconds, by server."""

DEADLINE_SLACK_SECONDS = 1.5
DEADLINE_CODES = ("deadline_exceeded", "stopped_by_deadline")
POISON_DEATHS = 3
ORDER_SLACK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A contradiction between records. kind: short and stable, for counting. job_id: empty if no single job
    is concerned."""

    kind: str
    text: str
    job_id: str = ""


def compare_ledger_with_rows(orders: Iterable[Order], rows: Mapping[str, JobRow]) -> Iterator[Finding]:
    """An accepted job must have completed or failed explicitly, once, and as its client was informed."""
    known: set[str] = set()
    for order in orders:
        known.update(order.job_ids)
        if len(order.job_ids) > 1:
            yield Finding(
                "two_jobs", f"one key made {len(order.job_ids)} jobs: {order.job_ids}", order.job_id
            )
        if not order.job_ids:
            yield Finding("never_accepted", f"{order.key}: {order.problem or 'no answer yet'}")
            continue
        row = rows.get(order.job_id)
        if row is None:
            yield Finding("lost", f"accepted at {order.accepted_at}, not in the database", order.job_id)
            continue
        if row.state not in FINAL:
            yield Finding("not_over", f"is {row.state} after the drain", row.id)
        if order.reported and (order.reported, order.reported_code) != (row.state, row.error_code):
            reported, stored = f"{order.reported} {order.reported_code}", f"{row.state} {row.error_code}"
            yield Finding(
                "client_read_differs", f"its client read {reported}, the database says {stored}", row.id
            )
        if order.cancel == "cancelled" and row.state != "cancelled":
            yield Finding("cancel_ignored", f"was confirmed as cancelled and is {row.state}", row.id)
        if order.cancel.startswith("unanswered"):
            yield Finding("cancel_unanswered", f"its cancel: {order.cancel}", row.id)
        if row.state == "cancelled" and not order.cancel:
            yield Finding("cancelled_unasked", "is cancelled without a request", row.id)
        if row.state == "failed" and not _is_expected(order, row):
            yield Finding("failed", f"failed with {row.error_code}, which its order does not explain", row.id)
    for job_id in rows.keys() - known:
        if rows[job_id].run or rows[job_id].schedule:
            continue
        yield Finding("unknown_job", "is in the database, and no client was reported of it", job_id)


def _is_expected(order: Order, row: JobRow) -> bool:
    if row.error_code in DEADLINE_CODES:
        return order.deadline_seconds is not None
    if row.error_code == "lost_at_most_once":
        return order.model.endswith("-once")
    if row.error_code == "poison":
        return sum(attempt.state == "lost" for attempt in row.attempts) >= POISON_DEATHS
    return False


def check_deadlines(orders: Iterable[Order], failed_at: Mapping[str, float]) -> Iterator[Finding]:
    """A job must not fail by its deadline too early. failed_at: when it was first seen as failed, by our own
    clock."""
    for order in orders:
        seen = failed_at.get(order.job_id)
        if seen is not None and order.deadline_seconds is not None:
            lasted = seen - order.asked_at
            if lasted < order.deadline_seconds - DEADLINE_SLACK_SECONDS:
                text = f"failed by its deadline of {order.deadline_seconds} s after {lasted:.1f} s"
                yield Finding("deadline_too_early", text, order.job_id)


def compare_rows_with_runs(
    rows: Mapping[str, JobRow],
    logs: Sequence[NodeLog],
    slots: Mapping[str, int],
    *,
    once_models: str = "-once",
    excused: Spans | None = None,
) -> Iterator[Finding]:
    """No GPU may run more than its slots, every result must be of a real run, and every run must be in the
    database.

    excused: times at which a server denied its runs. The dispatcher must believe it, so for these only the
    number of concurrent runs is checked."""
    runs: dict[str, list[Run]] = defaultdict(list)
    for log in logs:
        if log.peak > slots[log.server]:
            yield Finding(
                "oversubscribed", f"{log.server} ran {log.peak} at once on {slots[log.server]} slots"
            )
        for earlier, later in log.overlapping:
            if _is_excused(excused or {}, log.server, later.started):
                continue
            text = f"slot {later.slot} ran {later.attempt_id} while it ran {earlier.attempt_id}"
            yield Finding("slot_shared", text, later.job_id)
        for run in log.runs:
            runs[run.job_id].append(run)
            if not run.outcome:
                yield Finding("still_runs", f"{log.server} still runs it", run.job_id)
    for job_id, count in Counter(run.attempt_id for log in logs for run in log.runs).items():
        if count > 1:
            yield Finding("attempt_ran_twice", f"attempt {job_id} ran {count} times")
    for row in rows.values():
        yield from _winner(row, runs[row.id])
        if row.model.endswith(once_models) and len(runs[row.id]) > 1:
            yield Finding(
                "ran_more_than_once", f"ran {len(runs[row.id])} times, its model allows one", row.id
            )
    for job_id in runs.keys() - rows.keys():
        yield Finding("ran_unknown", "ran on a GPU and is not in the database", job_id)


def _winner(row: JobRow, runs: Sequence[Run]) -> Iterator[Finding]:
    winners = [one for one in row.attempts if one.state == "completed"]
    if row.state != "completed":
        if winners:
            yield Finding("result_thrown_away", f"is {row.state} with a completed attempt", row.id)
        return
    if len(winners) != 1:
        yield Finding("two_results", f"is completed by {len(winners)} attempts", row.id)
        return
    winner = winners[0]
    if row.result_attempt != winner.id and not row.is_erased:
        text = (
            f"its result is of attempt {row.result_attempt}, attempt {winner.id} is the one that completed it"
        )
        yield Finding("result_of_another", text, row.id)
    if not any(run.attempt_id == winner.id and run.outcome == "success" for run in runs):
        yield Finding(
            "never_ran", f"is completed by attempt {winner.id}, which no GPU ran to its end", row.id
        )


def unrecorded_runs(rows: Mapping[str, JobRow], logs: Sequence[NodeLog]) -> list[Run]:
    """Return runs without an attempt in the database: their start was refused, or its worker died."""
    known = {attempt.id for row in rows.values() for attempt in row.attempts}
    return [run for log in logs for run in log.runs if run.attempt_id not in known]


def requests_to_full_servers(logs: Sequence[NodeLog], excused: Spans) -> Iterator[Finding]:
    """Yield every request that came to a full server, although it was refused: the dispatcher thought a slot
    was free.

    excused: by server, times of wrong reports. Late senders do not count: a server refuses them by their
    fence."""
    for log in logs:
        for one in log.refusals:
            if one.why == "full" and not _is_excused(excused, log.server, one.at):
                text = f"came to {log.server} ({one.slot}) at {one.at:.1f}, which ran {one.running} already"
                yield Finding("sent_to_full", text, one.job_id)


def _is_excused(excused: Spans, server: str, at: float) -> bool:
    return any(begin <= at <= end for begin, end in excused.get(server, ()))


def compare_rows_with_messages(
    orders: Iterable[Order], rows: Mapping[str, JobRow], messages: Iterable[Message]
) -> Iterator[Finding]:
    """Each requested callback of a job must have arrived, signed, with the final state; repeats are fine."""
    reported: dict[str, list[Message]] = defaultdict(list)
    for message in messages:
        if not message.run_id:
            reported[message.job_id].append(message)
    for order in orders:
        row = rows.get(order.job_id)
        found = reported.pop(order.job_id, [])
        if row is None or row.state not in FINAL:
            continue
        if order.callback and not found:
            yield Finding("callback_missing", "asked for a callback, none arrived", row.id)
        if found and not order.callback:
            yield Finding("callback_unasked", f"got {len(found)} callbacks and asked for none", row.id)
        yield from _consistent(row, found)
    for job_id, found in reported.items():
        yield Finding("callback_unknown", f"{len(found)} callbacks for a job that no client ordered", job_id)


def _consistent(row: JobRow, messages: Sequence[Message]) -> Iterator[Finding]:
    ids = {message.webhook_id for message in messages}
    if len(ids) > row.round:
        yield Finding("callback_doubled", f"{len(ids)} different callbacks in {row.round} rounds", row.id)
    if any(message.signed is False for message in messages):
        yield Finding("callback_unsigned", "a callback whose signature is wrong", row.id)
    ends = {(message.status, message.attempt_id) for message in messages}
    if len(ends) > row.round:
        yield Finding("callback_contradiction", f"callbacks report different ends: {sorted(ends)}", row.id)
    elif messages and row.round == 1:
        names_attempt = row.state == "completed" and not any(message.is_long for message in messages)
        expected = (row.state, (row.result_attempt or "") if names_attempt else "")
        if ends != {expected}:
            yield Finding("callback_wrong", f"its callback says {sorted(ends)}, it is {expected}", row.id)


def check_order(rows: Mapping[str, JobRow], logs: Sequence[NodeLog], flushed_at: float) -> Iterator[Finding]:
    """After a flush of Redis, jobs that waited must start in their old order within tenant, model and
    priority.

    Slots work in parallel, so a little slack is allowed."""
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
            if at > earliest + ORDER_SLACK_SECONDS:
                late = at - earliest
                text = f"started {late:.1f} s after a job that was queued behind it when Redis was flushed"
                yield Finding("order_lost", text, job_id)
            earliest = min(earliest, at)
