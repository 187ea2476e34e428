"""The blocking client: `dispatcher_client.calls` over urllib, each run to its end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Unpack

from .answers import DataErased, Estimate, Explanation, Me, Usage
from .artifacts import Artifact, OnProgress
from .calls import BatchAnswers, Calls, ListFilter, RerunOptions, UsageBy
from .job import Job
from .log import LogLine
from .schedule_client import Schedules
from .spool import Flushed, Spool
from .stream import Event
from .submit_options import SubmitOptions
from .transport import MAX_ANSWER_BYTES
from .urllib_transport import UrllibTransport, iterate_blocking, run_blocking
from .workflow_client import Workflows


class Client:
    """A client with one API key. Thread-safe; it keeps no connection.

    url: of the dispatcher, such as ``http://127.0.0.1:8000``. spool: file for submits without an answer.
    timeout_seconds: of one try; should exceed the 20 s after which the dispatcher itself gives up on its
    database. retry_seconds: no retry begins later than this after the first try, or after the last byte of a
    file was sent or received. max_answer_bytes: a longer answer, or event of a stream, raises
    `AnswerTooLarge`.

    Every method raises `Problem` for an error answer, and after the last retry `NoAnswer` or `Unavailable`.
    `dispatcher_client.calls` has the details of each. workflows, schedules: the calls about these.
    """

    def __init__(
        self,
        url: str,
        api_key: str,
        *,
        spool: str | os.PathLike[str] | None = None,
        timeout_seconds: float = 30.0,
        retry_seconds: float = 60.0,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._calls = Calls(
            UrllibTransport(url, api_key, max_answer_bytes=max_answer_bytes),
            spool=None if spool is None else Spool(spool),
            timeout_seconds=timeout_seconds,
            retry_seconds=retry_seconds,
        )
        self.workflows = Workflows(self._calls.workflows)
        self.schedules = Schedules(self._calls.schedules)

    def submit(self, model: str, payload: Mapping[str, Any], **options: Unpack[SubmitOptions]) -> Job:
        """Submit a job, exactly once; return it once it is durable. Raises `Busy`, `Spooled`."""
        return run_blocking(self._calls.submit(model, payload, **options))

    def submit_batch(
        self, jobs: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> BatchAnswers:
        """Submit up to 1,000 jobs in one transaction; return a job or an error for each, in order."""
        return run_blocking(self._calls.submit_batch(jobs, idempotency_key=idempotency_key))

    def run(
        self,
        model: str,
        payload: Mapping[str, Any],
        *,
        timeout_seconds: float | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Any:
        """Submit a job, wait until it has ended, and return its result. Raises `JobFailed`, `NotOver`."""
        return run_blocking(self._calls.run(model, payload, timeout_seconds=timeout_seconds, **options))

    def result(self, job: Job) -> Any:
        """Return the result of a job, also a long one, which is in an artifact. Raises `AnswerTooLarge`."""
        return run_blocking(self._calls.result(job))

    def estimate(self, model: str, payload: Mapping[str, Any], **options: Unpack[SubmitOptions]) -> Estimate:
        """Return why such a job would wait if it were submitted now, and when it would start."""
        return run_blocking(self._calls.estimate(model, payload, **options))

    def get(self, job_id: str, *, with_payload: bool = False) -> Job:
        """Return the job with its attempts and its result. with_payload: with its payload too."""
        return run_blocking(self._calls.get(job_id, with_payload=with_payload))

    def wait(self, job_id: str, timeout_seconds: float | None = None) -> Job:
        """Wait until the job has ended and return it, even if the dispatcher restarts. Raises `NotOver`."""
        return run_blocking(self._calls.wait(job_id, timeout_seconds))

    def stream(self, job_id: str, *, after: str = "") -> Iterator[Event]:
        """Yield the job's events as they happen, each once; the last is ``done``. after: id of the last known
        event."""
        return iterate_blocking(self._calls.stream(job_id, after=after))

    def logs(
        self,
        job_id: str,
        *,
        follow: bool = False,
        tail: int | None = None,
        attempt: int | None = None,
        after: str = "",
    ) -> Iterator[LogLine]:
        """Yield the lines of the job's log; with `follow` until the job ends. tail: the last ones only."""
        return iterate_blocking(
            self._calls.logs(job_id, follow=follow, tail=tail, attempt=attempt, after=after)
        )

    def explain(self, job_id: str) -> Explanation:
        """Return why a job waits, and when it will start."""
        return run_blocking(self._calls.explain(job_id))

    def cancel(self, job_id: str) -> str:
        """Cancel a job; return ``cancelled`` or, if it runs, ``requested``. Raises `Conflict`."""
        return run_blocking(self._calls.cancel(job_id))

    def erase(self, job_id: str) -> DataErased:
        """Erase what a job that has ended was given and made, with the files that only it uses. Raises
        `Conflict`."""
        return run_blocking(self._calls.erase(job_id))

    def rerun(self, job_id: str, **changes: Unpack[RerunOptions]) -> Job:
        """Run a job again, as it was or with changes; return the new job."""
        return run_blocking(self._calls.rerun(job_id, **changes))

    def list(self, **chosen: Unpack[ListFilter]) -> Iterator[Job]:
        """Yield the tenant's jobs, newest first, without results; one request per page."""
        return iterate_blocking(self._calls.list(**chosen))

    def me(self) -> Me:
        """Return the key's tenant, scopes, models, limits, and current use of the limits."""
        return run_blocking(self._calls.me())

    def usage(
        self, first: date | str | None = None, last: date | str | None = None, by: UsageBy = "day"
    ) -> Usage:
        """Return the tenant's ended jobs and GPU-seconds. first, last: UTC days, both included."""
        return run_blocking(self._calls.usage(first, last, by))

    def upload(
        self,
        path: str | os.PathLike[str],
        *,
        content_type: str | None = None,
        name: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> Artifact:
        """Upload a file straight to the store, in parts that can be resumed; return it, for use as
        `artifact.ref` in a payload. Raises `FileChanged`."""
        call = self._calls.upload(path, content_type=content_type, name=name, on_progress=on_progress)
        return run_blocking(call)

    def download(
        self,
        artifact: Artifact | Mapping[str, Any] | str,
        path: str | os.PathLike[str],
        *,
        on_progress: OnProgress | None = None,
    ) -> Artifact:
        """Download an artifact to a file, or continue to. artifact: also its id, or a reference in a result.
        Raises `FileChanged`."""
        return run_blocking(self._calls.download(artifact, path, on_progress=on_progress))

    def download_all(
        self, result: Any, folder: str | os.PathLike[str], *, on_progress: OnProgress | None = None
    ) -> dict[str, Path]:
        """Download all files that a result refers to into a folder, or continue to; return their paths by the
        artifacts' ids. No other file is replaced."""
        return run_blocking(self._calls.download_all(result, folder, on_progress=on_progress))

    def artifact(self, artifact: Mapping[str, Any] | str) -> Artifact:
        """Return an artifact without its bytes. artifact: its id, or a reference in a result."""
        return run_blocking(self._calls.artifact(artifact))

    def flush_spool(self) -> Flushed:
        """Send the spooled requests, oldest first."""
        return run_blocking(self._calls.flush_spool())
