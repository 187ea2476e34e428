"""The records as values: the clients' orders, rows, runs of GPU servers, callback messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verification.proving.ledger import read_lines

FINAL = ("completed", "failed", "cancelled")


@dataclass(slots=True)
class Order:
    """A job as its client knows it.

    job_ids: all ids that it got for its key; more than one is a defect. reported: its end by the API, empty
    if never read. reported_attempt: of the result, None if never read."""

    key: str
    tenant: str
    model: str
    priority: int
    seconds: float
    callback: bool
    deadline_seconds: float | None
    asked_at: float
    job_ids: list[str] = field(default_factory=list)
    accepted_at: float | None = None
    took: float = 0.0
    problem: str = ""
    cancel: str = ""
    reported: str = ""
    reported_code: str = ""
    reported_attempt: str | None = None
    artifact: str = ""
    """Id of its file; sha256 and bytes as its client knows them."""
    sha256: str = ""
    bytes: int = 0

    @property
    def job_id(self) -> str:
        return self.job_ids[0] if self.job_ids else ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A submit that was slow, refused, or not answered (status 0)."""

    status: int
    retry_after: str
    asked_at: float
    took: float


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """An attempt as the database stores it."""

    id: str
    number: int
    round: int
    state: str
    epoch: int
    server: str
    slot: int
    has_remote_id: bool
    error_code: str
    started_at: float


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job's row. result_attempt: the attempt that its result names, None without one."""

    id: str
    tenant: str
    model: str
    priority: int
    place_us: int
    state: str
    error_code: str
    round: int
    result_attempt: str | None
    attempts: tuple[AttemptRow, ...]
    run: str = ""
    """The run of a workflow that made it."""
    schedule: str = ""
    """The schedule whose firing started it."""
    output: str = ""
    """The artifact of the file that its run saved; output_sha256: its hash, as the run says."""
    output_sha256: str = ""
    is_erased: bool = False
    """Its payload and result were erased."""


@dataclass(slots=True)
class Run:
    """A run in its GPU server's log. outcome: ``crashed`` if the server died during it; empty: active."""

    server: str
    job_id: str
    attempt_id: str
    slot: str
    fence: int | None
    started: float
    ended: float | None = None
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused request. why: ``full``, ``stale_fence``, ``stopping`` or ``direct_caller``
    (gpu_host/node/runs.py)."""

    server: str
    job_id: str
    attempt_id: str
    slot: str
    why: str
    running: int
    at: float


@dataclass(frozen=True, slots=True)
class Message:
    """A callback that arrived, of a job or of a round of a run.

    signed: None if the receiver has no secret to check with. is_long: its result is an artifact, so it names
    no attempt."""

    webhook_id: str
    job_id: str
    status: str
    attempt_id: str
    signed: bool | None
    at: float
    run_id: str = ""
    round: int = 1
    is_long: bool = False


@dataclass(frozen=True, slots=True)
class NodeLog:
    """The log of a GPU server. runs: in the order of their starts. peak: most concurrent runs."""

    server: str
    runs: list[Run]
    refusals: list[Refusal]
    peak: int
    overlapping: list[tuple[Run, Run]]
    """Pairs of runs that overlapped on one slot."""


def read_orders(path: Path) -> tuple[dict[str, Order], list[Answer]]:
    """Return the orders by key, in order of their submits, and the notable answers."""
    orders: dict[str, Order] = {}
    by_job: dict[str, Order] = {}
    answers: list[Answer] = []
    for line in read_lines(path):
        what = line["what"]
        if what == "asked":
            names = ("key", "tenant", "model", "priority", "seconds", "callback", "deadline_seconds")
            order = Order(**{name: line[name] for name in names}, asked_at=line["at"])
            orders[order.key] = order
        elif what in ("accepted", "doubled"):
            order = orders[line["key"]]
            if line["job"] not in order.job_ids:
                order.job_ids.append(line["job"])
            by_job[line["job"]] = order
            if what == "accepted":
                order.accepted_at, order.took = line["at"], line["took"]
        elif what in ("unanswered", "refused"):
            orders[line["key"]].problem = f"{what}: {line['error']}"
        elif what == "file":
            order = orders[line["key"]]
            order.artifact, order.sha256, order.bytes = line["artifact"], line["sha256"], line["bytes"]
        elif what == "answer":
            fields = ("status", "retry_after", "asked_at", "took")
            answers.append(Answer(**{name: line[name] for name in fields}))
        elif not what.startswith(("run_", "schedule_")) and line["job"] in by_job:
            _note(by_job[line["job"]], line)
    return orders, answers


def _note(order: Order, line: Mapping[str, Any]) -> None:
    if line["what"] == "cancel":
        order.cancel = line["outcome"]
    elif line["what"] == "reported":
        order.reported, order.reported_code = line["status"], line["code"]
        order.reported_attempt = line.get("attempt", order.reported_attempt)


def read_node_log(server: str, lines: Iterable[Mapping[str, Any]]) -> NodeLog:
    """Lines are in order of the events: no clock is used for that."""
    log = NodeLog(server, [], [], 0, [])
    running: dict[str, Run] = {}
    peak = 0
    for line in lines:
        what = line["what"]
        if what == "boot":  # runs that were active died with the old process
            for run in running.values():
                run.ended, run.outcome = line["at"], "crashed"
            running.clear()
        elif what == "began" and line["source"] == "dispatcher":
            run = Run(
                server, line["job"], line["attempt"], line["slot"], line["fence"], started=line["started"]
            )
            log.overlapping.extend((other, run) for other in running.values() if other.slot == run.slot)
            running[line["run"]] = run
            log.runs.append(run)
            peak = max(peak, len(running))
        elif what == "ended" and line["run"] in running:
            run = running.pop(line["run"])
            run.ended, run.outcome = line["ended"], line["outcome"]
        elif what == "refused" and line["source"] == "dispatcher":
            fields = {name: line[name] for name in ("slot", "why", "running", "at")}
            log.refusals.append(Refusal(server, line["job"], line["attempt"], **fields))
    return NodeLog(server, log.runs, log.refusals, peak, log.overlapping)


def read_messages(lines: Iterable[Mapping[str, Any]]) -> Iterator[Message]:
    """Yield the callback messages in the receiver's log, in the order of their arrival. lines: its JSON
    objects."""
    for line in lines:
        yield Message(
            line["webhook_id"],
            line["job"],
            line["status"],
            line["attempt"],
            line["signed"],
            line["at"],
            line["run"],
            line["round"],
            line["is_long"],
        )
