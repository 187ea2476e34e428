"""Every call of the API, written once: each is one request, retried until it is answered.

`AsyncClient` is these calls over httpx; `Client` runs the same ones over urllib."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlencode

from .answers import DataErased, Estimate, Explanation, Me, Usage, read_page
from .artifacts import Artifact, OnProgress, id_of
from .downloads import Downloads
from .errors import NoAnswer, Problem, Spooled, Unavailable, problem_from_json, read_problem
from .job import Job, JobFailed, read_job, wait_until_over
from .log import LogLine, LogParser
from .reading import read_answer
from .schedule_calls import ScheduleCalls
from .spool import Entry, Flushed, Spool
from .stream import Event, EventParser
from .stream import follow as follow_stream
from .submit_options import SubmitOptions
from .transport import Request, RunCall, Transport, call_with_retries, key_of_request
from .uploads import Uploads
from .workflow_calls import WorkflowCalls

SUBMIT, SUBMIT_BATCH = "/queue/submit", "/queue/submit-batch"
_SMALL_REQUEST = "/queue/jobs?limit=1"
_POLL_MARGIN_SECONDS = 15.0
NO_CONTENT = 204

T = TypeVar("T")
UsageBy = Literal["day", "model", "tag"]
BatchAnswers = list[Job | Problem]


class ListFilter(TypedDict, total=False):
    """Which jobs are listed. page_size: jobs per request, up to 200."""

    status: str | None
    model: str | None
    tag: str | None
    created_after: datetime | str | None
    created_before: datetime | str | None
    page_size: int


class RerunOptions(SubmitOptions, total=False):
    """What may differ when a job is run again."""

    payload: Mapping[str, Any]


class Calls:
    """The calls over a transport.

    Each raises `Problem` for an error answer, and after the last retry `NoAnswer` or `Unavailable`.
    """

    def __init__(
        self, transport: Transport, *, spool: Spool | None, timeout_seconds: float, retry_seconds: float
    ) -> None:
        self._transport = transport
        self._spool = spool
        self._timeout_seconds = timeout_seconds
        self._retry_seconds = retry_seconds
        self._uploads = Uploads(transport, self, timeout_seconds=timeout_seconds, retry_seconds=retry_seconds)
        self._downloads = Downloads(
            transport, self, timeout_seconds=timeout_seconds, retry_seconds=retry_seconds
        )
        self.workflows = WorkflowCalls(
            transport,
            self,
            self._downloads.read,
            timeout_seconds=timeout_seconds,
            retry_seconds=retry_seconds,
        )
        self.schedules = ScheduleCalls(self, timeout_seconds=timeout_seconds)

    # -- submit --------------------------------------------------------------------------------------------

    async def submit(self, model: str, payload: Mapping[str, Any], **options: Unpack[SubmitOptions]) -> Job:
        """Submit a job; return it once it is durable. All tries carry one idempotency key (a new one by
        default), so it is stored exactly once.

        run_at: earliest start; a datetime needs a zone. if_busy: ``reject`` raises `Busy` if no slot is free
        now, instead of queueing the job.

        Without an answer: raises `Spooled` if there is a spool, else the last error, with the key in it.
        """
        body = _submit_body(model, payload, options)
        entry = Entry(SUBMIT, key_of_request(body.pop("idempotency_key", None)), body)
        return await self._send_or_spool(entry, lambda entry, document: read_job(document))

    async def submit_batch(
        self, jobs: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> BatchAnswers:
        """Submit up to 1,000 jobs in one transaction; return a job or an error for each, in order.

        jobs: the fields of `submit`, and `idempotency_key` for an item with its own. An error of one item
        does not affect the others."""
        body = {"jobs": [dict(job) for job in jobs]}
        return await self._send_or_spool(
            Entry(SUBMIT_BATCH, key_of_request(idempotency_key), body), _read_items
        )

    async def run(
        self,
        model: str,
        payload: Mapping[str, Any],
        *,
        timeout_seconds: float | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Any:
        """Submit a job, wait until it has ended, and return its result.

        timeout_seconds: as in `wait`. Raises `JobFailed` if it failed or was cancelled, and what `submit` and
        `wait` raise."""
        job = await self.wait((await self.submit(model, payload, **options)).job_id, timeout_seconds)
        if job.status != "completed":
            raise JobFailed(job)
        return await self.result(job)

    async def result(self, job: Job) -> Any:
        """Return the result of a job, also a long one, which is in an artifact."""
        return await self._downloads.read(id_of(job.result)) if job.result_is_artifact else job.result

    async def estimate(
        self, model: str, payload: Mapping[str, Any], **options: Unpack[SubmitOptions]
    ) -> Estimate:
        """Return why such a job would wait if it were submitted now, and when it would start. Nothing is
        stored; it costs one token of the rate limit."""
        body = _submit_body(model, payload, options)
        body.pop("idempotency_key", None)
        request = Request("POST", "/queue/estimate", self._timeout_seconds, body)
        return await self.send(request, lambda document: read_answer(Estimate, document))

    # -- one job -------------------------------------------------------------------------------------------

    async def get(self, job_id: str, *, with_payload: bool = False) -> Job:
        """Return the job with its attempts and its result. with_payload: with its payload too."""
        path = _job_path(job_id) + ("?include=payload" if with_payload else "")
        return await self._get(path, read_job)

    async def wait(self, job_id: str, timeout_seconds: float | None = None) -> Job:
        """Wait until the job has ended and return it, also while the dispatcher restarts.

        Raises `NotOver` after `timeout_seconds`; None waits for ever."""

        async def poll(seconds: float) -> Job:
            path = f"{_job_path(job_id)}?wait={seconds:.3f}"
            return read_job(await self._send_once(Request("GET", path, seconds + _POLL_MARGIN_SECONDS)))

        return await wait_until_over(poll, timeout_seconds, self._transport.sleep)

    def stream(self, job_id: str, *, after: str = "") -> AsyncGenerator[Event, None]:
        """Yield the job's events as they happen, each once; the last is ``done``. after: id of the last known
        event."""
        parser = EventParser(after, self._transport.max_answer_bytes, _job_path(job_id))
        return follow_stream(self._transport, parser, retry_seconds=self._retry_seconds)

    def logs(
        self,
        job_id: str,
        *,
        follow: bool = False,
        tail: int | None = None,
        attempt: int | None = None,
        after: str = "",
    ) -> AsyncGenerator[LogLine, None]:
        """Yield the lines of the job's log.

        follow: go on until the job ends, each line once. tail: the last lines only, as many as this. attempt:
        lines of this attempt only. after: id of the last known line."""
        parser = LogParser(
            _job_path(job_id),
            after=after,
            tail=tail,
            attempt=attempt,
            follow=follow,
            max_line_bytes=self._transport.max_answer_bytes,
        )
        return follow_stream(self._transport, parser, retry_seconds=self._retry_seconds)

    async def explain(self, job_id: str) -> Explanation:
        """Return why a job waits, and when it will start."""
        return await self._get(
            f"{_job_path(job_id)}/explain", lambda document: read_answer(Explanation, document)
        )

    async def cancel(self, job_id: str) -> str:
        """Cancel a job. ``cancelled``: it has ended. ``requested``: it runs and is being stopped; see `wait`.

        Raises `Conflict` if it had ended otherwise before."""
        request = Request("POST", f"{_job_path(job_id)}/cancel", self._timeout_seconds)
        return await self.send(request, lambda document: str(document.get("outcome")))

    async def erase(self, job_id: str) -> DataErased:
        """Erase what a job that has ended was given and made, with the files that only it uses; may be
        repeated. Raises `Conflict` if it has not ended, or belongs to a run."""
        request = Request("DELETE", f"{_job_path(job_id)}/data", self._timeout_seconds)
        return await self.send(request, lambda document: read_answer(DataErased, document))

    async def rerun(self, job_id: str, **changes: Unpack[RerunOptions]) -> Job:
        """Run a job again, as it was or with changes; return the new job, whose `rerun_of` names the
        earlier one.

        changes: fields of a submit; None: without the earlier value. All tries carry one idempotency key (a
        new one by default), so one new job is stored. It is not spooled. Raises `Busy`, `NotFound` if
        retention removed the earlier job, and `Problem` for changes that do not fit."""
        _require_known("rerun", changes, RerunOptions)
        body: dict[str, Any] = dict(changes)
        headers = {"Idempotency-Key": key_of_request(body.pop("idempotency_key", None))}
        if "run_at" in body:
            body["run_at"] = _time("run_at", body["run_at"])
        if body.get("tags") is not None:
            body["tags"] = list(body["tags"])
        request = Request("POST", f"{_job_path(job_id)}/rerun", self._timeout_seconds, body, headers)
        return await self.send(request, read_job)

    # -- the key and its jobs ------------------------------------------------------------------------------

    async def list(self, **chosen: Unpack[ListFilter]) -> AsyncGenerator[Job, None]:
        """Yield the tenant's jobs, newest first, without results; one request per page."""
        _require_known("list", chosen, ListFilter)
        query = {name: _time(name, value) for name, value in chosen.items() if value is not None}
        query["limit"] = query.pop("page_size", 200)
        while True:
            page = await self._get(f"/queue/jobs?{urlencode(query)}", read_page)
            for job in page.jobs:
                yield job
            if page.cursor is None:
                return
            query["cursor"] = page.cursor

    async def me(self) -> Me:
        """Return the key's tenant, scopes, models, limits, and current use of the limits."""
        return await self._get("/me", lambda document: read_answer(Me, document))

    async def usage(
        self, first: date | str | None = None, last: date | str | None = None, by: UsageBy = "day"
    ) -> Usage:
        """Return the tenant's ended jobs and GPU-seconds.

        first, last: UTC days, both included; the default is the 30 days until today."""
        given = {"from": first, "to": last, "by": by}
        query = urlencode({name: str(value) for name, value in given.items() if value is not None})
        return await self._get(f"/usage?{query}", lambda document: read_answer(Usage, document))

    # -- files ---------------------------------------------------------------------------------------------

    async def upload(
        self,
        path: str | os.PathLike[str],
        *,
        content_type: str | None = None,
        name: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> Artifact:
        """Upload a file straight to the dispatcher's store; return it, for use as `artifact.ref` in a
        payload. A file that the tenant has already is not sent. Above 64 MiB it is sent in parts: the same
        call again sends the missing ones.

        content_type: default: recognised by the dispatcher. name: default: the path's. on_progress: called
        with the bytes that were sent, and all. Raises `FileChanged` if the file is changed meanwhile."""
        return await self._uploads.upload(Path(path), content_type, name, on_progress)

    async def download(
        self,
        artifact: Artifact | Mapping[str, Any] | str,
        path: str | os.PathLike[str],
        *,
        on_progress: OnProgress | None = None,
    ) -> Artifact:
        """Download an artifact to a file, which appears whole and with the right hash, in place of any other
        one. The same call again continues an interrupted one, and keeps a file that is there.

        artifact: also its id, or a reference in a result. Raises `FileChanged` for other bytes."""
        return await self._downloads.download(id_of(artifact), Path(path), on_progress)

    async def download_all(
        self, result: Any, folder: str | os.PathLike[str], *, on_progress: OnProgress | None = None
    ) -> dict[str, Path]:
        """Download all files that a result refers to into a folder; return their paths by the artifacts' ids.
        The same call again keeps what is there, and continues what was interrupted.

        A file has the name of its artifact, with the artifact's id before it where another file has that
        name: no other file is replaced, also by calls at the same time. on_progress: called with the bytes of
        all files that are there, and all."""
        return await self._downloads.download_all(result, Path(folder), on_progress)

    async def artifact(self, artifact: Mapping[str, Any] | str) -> Artifact:
        """Return an artifact without its bytes. artifact: its id, or a reference in a result."""
        return await self._downloads.find(id_of(artifact))

    # -- the spool -----------------------------------------------------------------------------------------

    async def flush_spool(self) -> Flushed:
        """Send the spooled requests, oldest first.

        A request that alone gets no answer stays, and the others are tried; if the dispatcher does not answer
        at all, it stops."""
        spool = self._spool
        if spool is None:
            return Flushed(0, 0, 0)

        def flush(run: RunCall) -> Flushed:
            return spool.flush(lambda entry: run(self._resend(entry)), lambda: run(self._is_reachable()))

        return await self._transport.use_files(flush)

    async def _send_or_spool(self, entry: Entry, read: Callable[[Entry, dict[str, Any]], T]) -> T:
        try:
            return await self._post(entry, read)
        except (NoAnswer, Unavailable) as error:
            error.idempotency_key = entry.idempotency_key
            spool = self._spool
            if spool is None:
                raise
            try:
                await self._transport.use_files(lambda run: spool.append(entry))
            except OSError as failed:
                error.add_note(f"The request could not be spooled either: {failed}")
                raise error from failed
            raise Spooled(entry.idempotency_key, spool.path) from error

    async def _resend(self, entry: Entry) -> Sequence[Problem]:
        items = await self._post(entry, _read_items)
        return [item for item in items if isinstance(item, Problem)]

    async def _post(self, entry: Entry, read: Callable[[Entry, dict[str, Any]], T]) -> T:
        headers = {"Idempotency-Key": entry.idempotency_key}
        request = Request("POST", entry.path, self._timeout_seconds, entry.body, headers)
        return await self.send(request, lambda document: read(entry, document))

    async def _is_reachable(self) -> bool:
        """Return True if a small request gets an answer that is not a gateway's."""
        try:
            answer = await self._transport.request(Request("GET", _SMALL_REQUEST, self._timeout_seconds))
        except NoAnswer:
            return False
        return answer.status not in (502, 503, 504)

    # -- sending -------------------------------------------------------------------------------------------

    async def send(
        self, request: Request, read: Callable[[dict[str, Any]], T], *, accepted: Collection[int] = (200, 202)
    ) -> T:
        """Send a request until it is answered; return what `read` returns for the answer's JSON.

        read: raises NoAnswer for an answer that does not fit, which is then retried too. accepted: statuses
        of success; others raise Problem."""

        async def once() -> T:
            return read(await self._send_once(request, accepted))

        return await call_with_retries(once, retry_seconds=self._retry_seconds, sleep=self._transport.sleep)

    async def _send_once(self, request: Request, accepted: Collection[int] = (200, 202)) -> dict[str, Any]:
        answer = await self._transport.request(request)
        if answer.status not in accepted:
            raise read_problem(answer.status, answer.headers, answer.body)
        return {} if answer.status == NO_CONTENT else answer.json_object()

    async def _get(self, path: str, read: Callable[[dict[str, Any]], T]) -> T:
        return await self.send(Request("GET", path, self._timeout_seconds), read)


def _read_items(entry: Entry, document: dict[str, Any]) -> BatchAnswers:
    """Raises NoAnswer for an answer that does not fit."""
    if entry.path != SUBMIT_BATCH:
        return [read_job(document)]
    items = document.get("jobs")
    if not isinstance(items, list) or len(items) != len(entry.body["jobs"]):
        raise NoAnswer("the answer is not a batch")
    return [
        problem_from_json(item) if isinstance(item, dict) and "job_id" not in item else read_job(item)
        for item in items
    ]


def _submit_body(model: str, payload: Mapping[str, Any], options: SubmitOptions) -> dict[str, Any]:
    """Return the fields of a submit, `idempotency_key` among them."""
    _require_known("submit", options, SubmitOptions)
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if "run_at" in given:
        given["run_at"] = _time("run_at", given["run_at"])
    if "tags" in given:
        given["tags"] = list(given["tags"])
    return {"model": model, "payload": payload, **given}


def _require_known(call: str, given: Mapping[str, Any], known: Any) -> None:
    if unknown := sorted(given.keys() - known.__annotations__.keys()):
        raise TypeError(f"a {call} has no {', '.join(unknown)}")


def _job_path(job_id: str) -> str:
    if not isinstance(job_id, str):
        raise TypeError(f"the id of a job is a text, such as job.job_id; not {type(job_id).__name__}")
    return f"/queue/jobs/{quote(job_id, safe='')}"


def _time(name: str, at: Any) -> Any:
    if not isinstance(at, datetime):
        return at
    if at.tzinfo is None:
        raise ValueError(f"{name} needs a zone, as in datetime.now(UTC)")
    return at.isoformat()
