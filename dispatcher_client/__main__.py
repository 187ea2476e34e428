"""The command line: ``python3 -m dispatcher_client COMMAND``: submit, wait, result, stream, logs, cancel,
rerun, erase, upload, download, flush.

Exit status: 0 done · 1 refused, or the job did not complete · 2 wrong usage, or a file that can't be read or
written · 3 no answer · 4 no answer, and the request is in the spool · 5 the job has not ended yet."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, cast

from . import Client, DispatcherError, Job, NotOver, Problem, Spooled, Unavailable
from .calls import RerunOptions
from .submit_options import SubmitOptions, add_submit_options, json_value

DONE, REFUSED, WRONG_USAGE, UNANSWERED, SPOOLED, NOT_OVER = 0, 1, 2, 3, 4, 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Answers go to stdout as JSON, one per line; errors go to stderr."""
    parser = _parser()
    options = parser.parse_args(arguments)
    url, key = os.environ.get("DISPATCHER_URL"), os.environ.get("DISPATCHER_API_KEY")
    if not url or not key:
        parser.error("DISPATCHER_URL and DISPATCHER_API_KEY must be set; for `up`, by `. var/up.env`")
    spool = options.spool or os.environ.get("DISPATCHER_SPOOL") or None
    command: Callable[[Client, argparse.Namespace], int] = options.command
    try:
        client = Client(url, key, spool=spool, retry_seconds=options.retry_seconds)
    except ValueError as error:
        parser.error(f"DISPATCHER_URL or DISPATCHER_API_KEY: {error}")
    try:
        return command(client, options)
    except Spooled as spooled:
        _print_error({"code": "spooled", "detail": str(spooled), "idempotency_key": spooled.idempotency_key})
        return SPOOLED
    except NotOver as late:
        _print_error({"code": "not_over", "detail": str(late)})
        return NOT_OVER
    except Problem as problem:
        _print_error({**problem.as_json(), "idempotency_key": problem.idempotency_key})
        return UNANSWERED if isinstance(problem, Unavailable) else REFUSED
    except DispatcherError as error:
        _print_error({"code": "no_answer", "detail": str(error), "idempotency_key": error.idempotency_key})
        return UNANSWERED
    except BrokenPipeError:  # the reader of stdout has ended
        raise
    except OSError as error:  # of a file: one of the connection is a DispatcherError
        _print_error(
            {"code": "file_error", "detail": f"{error.filename or 'a file'}: {error.strerror or error}"}
        )
        return WRONG_USAGE


def _submit(client: Client, options: argparse.Namespace) -> int:
    job = client.submit(
        options.model,
        options.payload,
        **cast("SubmitOptions", {name: getattr(options, name) for name in SubmitOptions.__annotations__}),
    )
    _print(job.data)
    return DONE


def _wait(client: Client, options: argparse.Namespace) -> int:
    if options.timeout is None:  # a wait without an end would never tell of a wrong address
        client.get(options.job_id)
    job: Job = client.wait(options.job_id, options.timeout)
    _print(job.data)
    return DONE if job.status == "completed" else REFUSED


def _result(client: Client, options: argparse.Namespace) -> int:
    job = client.get(options.job_id)
    if job.status != "completed":
        detail = f"the job is {job.status}" + (f": {job.error['code']}" if job.error else "")
        _print_error({"code": "no_result", "detail": detail})
        return REFUSED if job.is_over else NOT_OVER
    result = client.result(job)
    if options.download is None:
        _print(result)
        return DONE
    files = client.download_all(result, options.download, on_progress=_bar(options.download))
    _print({"result": result, "files": {artifact: str(path) for artifact, path in files.items()}})
    return DONE


def _erase(client: Client, options: argparse.Namespace) -> int:
    erased = client.erase(options.job_id)
    _print(
        {"job_id": erased.job_id, "erased_at": erased.erased_at.isoformat(), "artifacts": erased.artifacts}
    )
    return DONE


def _stream(client: Client, options: argparse.Namespace) -> int:
    for event in client.stream(options.job_id, after=options.after):
        _print({"type": event.type, "id": event.id, "data": event.data})
    return DONE


def _logs(client: Client, options: argparse.Namespace) -> int:
    for line in client.logs(options.job_id, follow=options.follow, tail=options.tail, after=options.after):
        _print(asdict(line))
    return DONE


def _cancel(client: Client, options: argparse.Namespace) -> int:
    _print({"job_id": options.job_id, "outcome": client.cancel(options.job_id)})
    return DONE


def _rerun(client: Client, options: argparse.Namespace) -> int:
    changes = {} if options.payload is None else {"payload": options.payload}
    _print(client.rerun(options.job_id, **cast("RerunOptions", changes)).data)
    return DONE


def _flush(client: Client, options: argparse.Namespace) -> int:
    flushed = client.flush_spool()
    _print({"sent": flushed.sent, "refused": flushed.refused, "left": flushed.left})
    if flushed.stopped_by is not None:
        raise flushed.stopped_by
    return REFUSED if flushed.refused or flushed.left else DONE


def _upload(client: Client, options: argparse.Namespace) -> int:
    artifact = client.upload(
        options.path, content_type=options.content_type, name=options.name, on_progress=_bar(options.path)
    )
    _print({"id": artifact.id, "ref": artifact.ref, "bytes": artifact.bytes, "sha256": artifact.sha256})
    return DONE


def _download(client: Client, options: argparse.Namespace) -> int:
    artifact = client.download(options.artifact_id, options.path, on_progress=_bar(options.path))
    _print({"id": artifact.id, "path": options.path, "bytes": artifact.bytes, "sha256": artifact.sha256})
    return DONE


def _bar(name: str) -> Callable[[int, int], None] | None:
    """Return a progress bar on stderr; None if that is no terminal."""
    if not sys.stderr.isatty():
        return None

    def draw(done: int, of: int) -> None:
        share = done / of if of else 1.0
        line = f"\r{name[-30:]:<30} [{'#' * int(share * 30):<30}] {share:4.0%} of {of:,} bytes"
        sys.stderr.write(line + ("\n" if done >= of else ""))
        sys.stderr.flush()

    return draw


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 -m dispatcher_client",
        description="Submits and follows jobs. DISPATCHER_URL and DISPATCHER_API_KEY must be set.",
    )
    parser.add_argument("--spool", help="file for submits without an answer (or DISPATCHER_SPOOL)")
    parser.add_argument("--retry-seconds", type=float, default=60.0, help="how long to retry (default: 60)")
    commands = parser.add_subparsers(
        required=True, metavar="submit|wait|result|stream|logs|cancel|rerun|erase|upload|download|flush"
    )

    submit = commands.add_parser("submit", help="submit a job and print it")
    submit.set_defaults(command=_submit)
    submit.add_argument("model")
    submit.add_argument("payload", type=json_value, help="a JSON object; -: read it from stdin")
    add_submit_options(submit)

    wait = _of_job(commands.add_parser("wait", help="wait for the end of a job and print it"), _wait)
    wait.add_argument("--timeout", type=float, help="seconds; default: for ever")
    result = _of_job(commands.add_parser("result", help="print the result of a job"), _result)
    result.add_argument("--download", metavar="DIR", help="also download the files that the result names")
    stream = _of_job(commands.add_parser("stream", help="print the events of a job, one per line"), _stream)
    stream.add_argument("--after", default="", help="id of the last known event")
    logs = _of_job(commands.add_parser("logs", help="print the log lines of a job, one per line"), _logs)
    logs.add_argument("--follow", action="store_true", help="go on until the job ends")
    logs.add_argument("--tail", type=int, help="print only the last lines, as many as this")
    logs.add_argument("--after", default="", help="id of the last known line")
    _of_job(commands.add_parser("cancel", help="cancel a job"), _cancel)
    rerun = _of_job(commands.add_parser("rerun", help="run a job again and print the new one"), _rerun)
    rerun.add_argument("--payload", type=json_value, help="a JSON object in place of the earlier payload")
    _of_job(commands.add_parser("erase", help="erase what an ended job was given and made"), _erase)
    upload = commands.add_parser("upload", help="upload a file; print its id, and the ref for a payload")
    upload.set_defaults(command=_upload)
    upload.add_argument("path")
    upload.add_argument("--content-type", help="media type; default: recognised from the first bytes")
    upload.add_argument("--name", help="name for downloads; default: the file's")
    download = commands.add_parser("download", help="download an artifact, or continue to")
    download.set_defaults(command=_download)
    download.add_argument("artifact_id")
    download.add_argument("path", help="file to write")
    commands.add_parser("flush", help="send the spooled requests").set_defaults(command=_flush)
    return parser


def _of_job(
    parser: argparse.ArgumentParser, command: Callable[[Client, argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser.set_defaults(command=command)
    parser.add_argument("job_id")
    return parser


def _print(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def _print_error(value: dict[str, Any]) -> None:
    sys.stderr.write(json.dumps({name: value for name, value in value.items() if value is not None}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
