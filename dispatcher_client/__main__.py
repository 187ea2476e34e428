"""The command line: ``python3 -m dispatcher_client submit|wait|stream|cancel|flush``.

Exit status: 0 done · 1 refused, or the job did not complete · 2 wrong usage · 3 nothing answered ·
4 nothing answered and the request is in the spool · 5 the job is not over yet.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

from . import Client, DispatcherError, Job, NotOver, Problem, Spooled, Unavailable
from .submit_options import SubmitOptions, add_submit_options, json_value

DONE, REFUSED, UNANSWERED, SPOOLED, NOT_OVER = 0, 1, 3, 4, 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Answers go to stdout as JSON, one line each; what went wrong goes to stderr."""
    parser = _parser()
    options = parser.parse_args(arguments)
    url, key = os.environ.get("DISPATCHER_URL"), os.environ.get("DISPATCHER_API_KEY")
    if not url or not key:
        parser.error("DISPATCHER_URL and DISPATCHER_API_KEY must be set")
    spool = options.spool or os.environ.get("DISPATCHER_SPOOL") or None
    command: Callable[[Client, argparse.Namespace], int] = options.command
    try:
        return command(Client(url, key, spool=spool, retry_seconds=options.retry_seconds), options)
    except Spooled as spooled:
        _complain({"code": "spooled", "detail": str(spooled), "idempotency_key": spooled.idempotency_key})
        return SPOOLED
    except NotOver as late:
        _complain({"code": "not_over", "detail": str(late)})
        return NOT_OVER
    except Problem as problem:
        _complain({**problem.as_json(), "idempotency_key": problem.idempotency_key})
        return UNANSWERED if isinstance(problem, Unavailable) else REFUSED
    except DispatcherError as error:
        _complain({"code": "no_answer", "detail": str(error), "idempotency_key": error.idempotency_key})
        return UNANSWERED


def _submit(client: Client, options: argparse.Namespace) -> int:
    job = client.submit(
        options.model,
        options.payload,
        **cast("SubmitOptions", {name: getattr(options, name) for name in SubmitOptions.__annotations__}),
    )
    _show(job.data)
    return DONE


def _wait(client: Client, options: argparse.Namespace) -> int:
    job: Job = client.wait(options.job_id, options.timeout)
    _show(job.data)
    return DONE if job.status == "completed" else REFUSED


def _stream(client: Client, options: argparse.Namespace) -> int:
    for event in client.stream(options.job_id, after=options.after):
        _show({"type": event.type, "id": event.id, "data": event.data})
    return DONE


def _cancel(client: Client, options: argparse.Namespace) -> int:
    _show({"job_id": options.job_id, "outcome": client.cancel(options.job_id)})
    return DONE


def _flush(client: Client, options: argparse.Namespace) -> int:
    flushed = client.flush_spool()
    _show({"sent": flushed.sent, "refused": flushed.refused, "left": flushed.left})
    if flushed.stopped_by is not None:
        raise flushed.stopped_by
    return REFUSED if flushed.refused or flushed.left else DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m dispatcher_client",
        description="Submits jobs and follows them. DISPATCHER_URL and DISPATCHER_API_KEY say where and who.",
    )
    parser.add_argument("--spool", help="file for submits that nobody answers (or DISPATCHER_SPOOL)")
    parser.add_argument("--retry-seconds", type=float, default=60.0, help="how long to go on trying")
    commands = parser.add_subparsers(required=True, metavar="submit|wait|stream|cancel|flush")

    submit = commands.add_parser("submit", help="a job; prints it")
    submit.set_defaults(command=_submit)
    submit.add_argument("model")
    submit.add_argument("payload", type=json_value, help="a JSON object; - reads it from stdin")
    add_submit_options(submit)

    wait = _of_job(commands.add_parser("wait", help="for its end; prints the job"), _wait)
    wait.add_argument("--timeout", type=float, help="seconds; default: for ever")
    stream = _of_job(commands.add_parser("stream", help="its events, one a line"), _stream)
    stream.add_argument("--after", default="", help="id of the last event seen")
    _of_job(commands.add_parser("cancel", help="stops it"), _cancel)
    commands.add_parser("flush", help="sends what lies in the spool").set_defaults(command=_flush)
    return parser


def _of_job(
    parser: argparse.ArgumentParser, command: Callable[[Client, argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser.set_defaults(command=command)
    parser.add_argument("job_id")
    return parser


def _show(told: Any) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def _complain(told: dict[str, Any]) -> None:
    sys.stderr.write(json.dumps({name: value for name, value in told.items() if value is not None}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
