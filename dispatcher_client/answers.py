"""Typed answers, and how they are read from JSON: `read_answer` checks each field against its annotation.

Fields of a newer server are ignored; a missing field that may be None is None."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, datetime
from functools import cache
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from .errors import NoAnswer
from .job import Job, read_job

T = TypeVar("T")


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
    """A model that the key may submit to. payload_schema: a JSON Schema; None: any object.
    typical_run_seconds: median of the tenant's own jobs."""

    model: str
    payload_schema: Any
    paused: bool
    typical_run_seconds: float | None


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
class Page:
    """A page of a list. cursor: of the next page; None: this is the last."""

    jobs: tuple[Job, ...]
    cursor: str | None


def read_page(document: Mapping[str, Any]) -> Page:
    """Return a page of jobs. Raises NoAnswer.

    Only the cursor of the URL `next` is used: the key is sent to no other host."""
    rows, following = document.get("results"), document.get("next")
    if not isinstance(rows, list) or not isinstance(following, str | None):
        raise NoAnswer("the answer is not a page")
    cursor = None
    if following is not None:
        try:
            (cursor,) = parse_qs(urlsplit(following).query)["cursor"]
        except (ValueError, KeyError):
            raise NoAnswer("the next page has no cursor") from None
    return Page(tuple(read_job(row) for row in rows), cursor)


def read_answer(kind: type[T], document: Any) -> T:
    """Return the answer as a dataclass of this kind. Raises NoAnswer if a field does not fit."""
    try:
        return typing.cast("T", _read(kind, document))
    except ValueError as error:
        raise NoAnswer(f"the answer is not {kind.__name__}: {error}") from None


def _read(annotation: Any, value: Any) -> Any:
    """Raises ValueError."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return value
    if origin is types.UnionType:  # only `… | None` is used
        return None if value is None else _read(arguments[0], value)
    if origin is tuple:
        return tuple(_read(arguments[0], item) for item in _of(list, value))
    if origin is Mapping:
        return _of(dict, value)
    if is_dataclass(annotation):
        return _read_fields(annotation, _of(dict, value))
    if annotation in (date, datetime):
        return annotation.fromisoformat(_of(str, value))
    if annotation is float and type(value) is int:
        return _of_float(value)
    return _of(annotation, value)


def _read_fields(kind: Any, given: Mapping[str, Any]) -> Any:
    return kind(**{name: _read(annotation, given.get(sent)) for name, sent, annotation in _fields(kind)})


@cache
def _fields(kind: Any) -> list[tuple[str, str, Any]]:
    """(name, name in JSON, type) of each field."""
    hints = typing.get_type_hints(kind)
    return [(one.name, one.metadata.get("name", one.name), hints[one.name]) for one in fields(kind)]


def _of(kind: type[Any], value: Any) -> Any:
    if type(value) is not kind:  # not isinstance: True is no number
        raise ValueError(f"{type(value).__name__} in place of {kind.__name__}")
    return value


def _of_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError("a number out of range") from None
