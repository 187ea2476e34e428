"""The options of a submit: made from jobs/submission/request.py by `manage.py write_docs`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict


class SubmitOptions(TypedDict, total=False):
    """What a submit may say besides model and payload."""

    callback_url: str | None
    priority: int | bool | None
    deadline_seconds: float | None
    start_deadline_seconds: float | None
    max_run_seconds: float | None
    run_at: datetime | str | None
    if_busy: Literal["queue", "reject"] | None
    max_retries: int | None
    tags: Sequence[str] | None
    metadata: Mapping[str, Any] | None
    idempotency_key: str | None


def add_submit_options(parser: argparse.ArgumentParser) -> None:
    """Add one argument per option."""
    parser.add_argument(
        "--callback-url",
        help="URL that gets a signed POST (Standard Webhooks) when the job has ended.",
    )
    parser.add_argument(
        "--priority",
        type=number(int),
        help="1 (first) to 9 (last).",
    )
    parser.add_argument(
        "--deadline-seconds",
        type=number(float),
        help="Seconds from the submit, or from `run_at`, after which a job that has not ended fails.",
    )
    parser.add_argument(
        "--start-deadline-seconds",
        type=number(float),
        help="The same for a job that has not started; at most `deadline_seconds`.",
    )
    parser.add_argument(
        "--max-run-seconds",
        type=number(float),
        help="Longest run of one attempt, between the model's `min_run_seconds` and `max_run_seconds`, "
        "which is the default.",
    )
    parser.add_argument(
        "--run-at",
        metavar="TIME",
        help="The job is queued at this time, and its deadlines count from it. A time with a zone, at "
        "most 366 days ahead. A time less than a minute ago means now.",
    )
    parser.add_argument(
        "--if-busy",
        choices=["queue", "reject"],
        help="reject: if no slot is free now, the answer is 503 `busy` or `no_capacity`, and no job is "
        "stored.",
    )
    parser.add_argument(
        "--max-retries",
        type=number(int),
        help="At most the model's number, which is the default.",
    )
    parser.add_argument(
        "--tag",
        dest="tags",
        action="append",
        help="May be repeated.",
    )
    parser.add_argument(
        "--metadata",
        type=json_value,
        help="Data of the client, returned with the job. Up to 16 KB.",
    )
    parser.add_argument(
        "--idempotency-key",
        help="The same key and body mean the same job; another body is refused.",
    )


def number(kind: type[int | float]) -> Callable[[str], int | float]:
    """Return a function that reads an argument: a whole number (int), or any (float)."""

    def read(text: str) -> int | float:
        try:
            return kind(text)
        except ValueError:
            name = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"must be {name}, not {text!r}") from None

    return read


def json_value(text: str) -> Any:
    """The value of an argument that holds JSON; - reads it from stdin."""
    try:
        return json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
