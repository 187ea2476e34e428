"""The options of a submit: made from jobs/submission/request.py by `manage.py write_docs`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
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
        help="Is sent a signed POST (Standard Webhooks) when the job is over.",
    )
    parser.add_argument(
        "--priority",
        type=int,
        help="1 first; true is 2.",
    )
    parser.add_argument(
        "--deadline-seconds",
        type=float,
        help="The job fails if it is not over so long after it was accepted, or after `run_at`.",
    )
    parser.add_argument(
        "--start-deadline-seconds",
        type=float,
        help="The job fails if it did not start by then; not after the deadline.",
    )
    parser.add_argument(
        "--max-run-seconds",
        type=float,
        help="Longest run of one attempt; at most, and by default, the model's; at least the model's "
        "`min_run_seconds`.",
    )
    parser.add_argument(
        "--run-at",
        metavar="TIME",
        help="Not in line before this time; the deadlines count from it. A time with a zone, at most 366"
        " days ahead; one that is less than a minute past means now.",
    )
    parser.add_argument(
        "--if-busy",
        choices=["queue", "reject"],
        help="reject: where no slot is free now, the answer is 503 `busy` or `no_capacity` and nothing "
        "is stored.",
    )
    parser.add_argument(
        "--max-retries",
        type=int,
        help="At most the model's, which is the default.",
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
        help="Yours; comes back with the job. Up to 16 KB.",
    )
    parser.add_argument(
        "--idempotency-key",
        help="The same key and body mean the same job; another body is refused.",
    )


def json_value(text: str) -> Any:
    """The value of an argument that holds JSON; - reads it from stdin."""
    try:
        return json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
