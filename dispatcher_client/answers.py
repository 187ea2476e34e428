"""Typed answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

from .errors import NoAnswer
from .job import Job, read_job


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job waits. code: docs/reference/explain.md. change: what to do so that it starts. evidence: the
    facts that the reason was decided by."""

    code: str
    message: str
    change: str
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StartsIn:
    """Estimated time until the start: half of such jobs start within the first, nine in ten within the
    second, learnt from `seen` starts."""

    p50_seconds: float
    p90_seconds: float
    seen: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Why a job would wait, the most binding reason first. position: in the queue, from 1."""

    reasons: tuple[Reason, ...]
    position: int | None
    starts_in: StartsIn | None


@dataclass(frozen=True, slots=True)
class Explanation(Estimate):
    """Why a job waits."""

    job_id: str
    status: str


@dataclass(frozen=True, slots=True)
class Key:
    """An API key. prefix: its first part."""

    prefix: str
    name: str
    kind: str
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Model:
    """A model that the key may submit to. payload_schema: a JSON Schema; None: any object. result_schema: of
    its results; None: any. typical_run_seconds: median of the tenant's own jobs."""

    model: str
    payload_schema: Any
    paused: bool
    typical_run_seconds: float | None
    result_schema: Any = None


@dataclass(frozen=True, slots=True)
class Limits:
    """None: no limit."""

    max_running: int | None
    max_queued: int | None
    max_queued_seconds: float | None
    submits_per_second: float | None
    submit_burst: int | None
    daily_gpu_seconds: float | None


@dataclass(frozen=True, slots=True)
class Used:
    """Current use of the limits. gpu_seconds_today: of this UTC day."""

    running: int
    waiting: int
    gpu_seconds_today: float
    submits_left: int | None


@dataclass(frozen=True, slots=True)
class Me:
    """The client's key: its tenant, scopes, models and limits. day_ends_at: when gpu_seconds_today begins
    again."""

    tenant: str
    key: Key
    scopes: tuple[str, ...]
    models: tuple[Model, ...]
    limits: Limits
    used: Used
    day_ends_at: datetime


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Ended jobs and GPU-seconds. key: the day, model or tag; empty: the total, or tags beyond the limit of a
    day."""

    key: str
    completed: int
    failed: int
    cancelled: int
    gpu_seconds: float


@dataclass(frozen=True, slots=True)
class Usage:
    """A tenant's usage. first, last: UTC days, both included. total: None by tag, as a job counts for each
    of its tags."""

    tenant: str
    first: date = field(metadata={"name": "from"})
    last: date = field(metadata={"name": "to"})
    by: str
    rows: tuple[UsageRow, ...]
    total: UsageRow | None


@dataclass(frozen=True, slots=True)
class DataErased:
    """The data of a job that was erased. artifacts: those that went with it; others use the rest."""

    job_id: str
    erased_at: datetime
    artifacts: int


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list. cursor: of the next page; None: this is the last."""

    jobs: tuple[Job, ...]
    cursor: str | None


def read_page(document: Mapping[str, Any]) -> Page:
    """Return a page of jobs. Raises NoAnswer."""
    rows = document.get("results")
    if not isinstance(rows, list):
        raise NoAnswer("the answer is not a page")
    return Page(tuple(read_job(row) for row in rows), cursor_of(document))


def cursor_of(document: Mapping[str, Any]) -> str | None:
    """Return the cursor of a page's next one; None: it is the last. Raises NoAnswer.

    Only the cursor of the URL `next` is used: the key is sent to no other host."""
    following = document.get("next")
    if following is None:
        return None
    if not isinstance(following, str):
        raise NoAnswer("the answer is not a page")
    try:
        (cursor,) = parse_qs(urlsplit(following).query)["cursor"]
    except (ValueError, KeyError):
        raise NoAnswer("the next page has no cursor") from None
    return cursor
