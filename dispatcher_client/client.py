"""The client: each method is one request of the API, retried until it is answered."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, Unpack
from urllib.parse import quote

from .errors import NoAnswer, Problem, Spooled, Unavailable, problem_from_json, read_problem
from .job import Job, read_job, wait_until_over
from .spool import Entry, Flushed, Spool
from .stream import Event, Follower
from .submit_options import SubmitOptions
from .transport import Answer, Http, call_with_retries

SUBMIT, SUBMIT_BATCH = "/queue/submit", "/queue/submit-batch"
_SMALL_REQUEST = "/queue/jobs?limit=1"
_KEY = re.compile(r"[\x21-\x7e]{1,255}\Z")
_POLL_MARGIN_SECONDS = 15.0

T = TypeVar("T")


class Client:
    """A client with one API key. Thread-safe; it keeps no connection.

    url: of the dispatcher, such as ``http://127.0.0.1:8000``. spool: file for submits without an answer.
    timeout_seconds: of one try; should exceed the 20 s after which the dispatcher itself gives up on its
    database. retry_seconds: no retry begins later than this after the first try.

    Every method raises `Problem` for an error answer, and after the last retry `NoAnswer` or `Unavailable`.
    """

    def __init__(
        self,
        url: str,
        api_key: str,
        *,
        spool: str | os.PathLike[str] | None = None,
        timeout_seconds: float = 30.0,
        retry_seconds: float = 60.0,
    ) -> None:
        self._http = Http(url, api_key)
        self._spool = None if spool is None else Spool(spool)
        self._timeout_seconds = timeout_seconds
        self._retry_seconds = retry_seconds

    def submit(
        self,
        model: str,
        payload: Mapping[str, Any],
        **options: Unpack[SubmitOptions],
    ) -> Job:
        """Submit a job; return it once it is durable. All tries carry one idempotency key (a new one by
        default), so it is stored exactly once.

        run_at: earliest start; a datetime needs a zone. if_busy: ``reject`` raises `Busy` if no slot is free
        now, instead of queueing the job.

        Without an answer: raises `Spooled` if there is a spool, else the last error, with the key in it.
        """
        if unknown := sorted(options.keys() - SubmitOptions.__annotations__.keys()):
            raise TypeError(f"a submit has no {', '.join(unknown)}")
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        key = _key(given.pop("idempotency_key", None))
        body = {"model": model, "payload": payload, **given}
        if "run_at" in body:
            body["run_at"] = _time(body["run_at"])
        if "tags" in body:
            body["tags"] = list(body["tags"])
        entry = Entry(SUBMIT, key, body)
        return self._send_or_spool(entry, lambda entry, document: read_job(document))

    def submit_batch(
        self, jobs: Sequence[Mapping[str, Any]], *, idempotency_key: str | None = None
    ) -> list[Job | Problem]:
        """Submit up to 1,000 jobs in one transaction; return a job or an error for each, in order.

        jobs: the fields of `submit`, and `idempotency_key` for an item with its own. An error of one item
        does not affect the others."""
        body = {"jobs": [dict(job) for job in jobs]}
        return self._send_or_spool(Entry(SUBMIT_BATCH, _key(idempotency_key), body), _read_items)

    def get(self, job_id: str) -> Job:
        """Return the job with its attempts and its result."""
        return self._with_retries(lambda: read_job(self._request("GET", _job_path(job_id))))

    def wait(self, job_id: str, timeout_seconds: float | None = None) -> Job:
        """Wait until the job has ended and return it, also while the dispatcher restarts.

        Raises `NotOver` after `timeout_seconds`; None waits for ever."""

        def poll(seconds: float) -> Job:
            path = f"{_job_path(job_id)}?wait={seconds:.3f}"
            return read_job(self._request("GET", path, timeout_seconds=seconds + _POLL_MARGIN_SECONDS))

        return wait_until_over(poll, timeout_seconds)

    def stream(self, job_id: str, *, after: str = "") -> Iterator[Event]:
        """Yield the job's events as they happen, each once; the last is ``done``. after: id of the last known
        event."""
        follower = Follower(
            self._http, quote(job_id, safe=""), after=after, retry_seconds=self._retry_seconds
        )
        return follower.events()

    def cancel(self, job_id: str) -> str:
        """Cancel a job. ``cancelled``: it has ended. ``requested``: it runs and is being stopped; see `wait`.

        Raises `Conflict` if it had ended otherwise before."""
        return self._with_retries(
            lambda: str(self._request("POST", f"{_job_path(job_id)}/cancel").get("outcome"))
        )

    def flush_spool(self) -> Flushed:
        """Send the spooled requests, oldest first.

        A request that alone gets no answer stays, and the others are tried; if the dispatcher does not answer
        at all, it stops."""
        if self._spool is None:
            return Flushed(0, 0, 0)
        return self._spool.flush(self._resend, self._is_reachable)

    # -- sending -------------------------------------------------------------------------------------------

    def _send_or_spool(self, entry: Entry, read: Callable[[Entry, dict[str, Any]], T]) -> T:
        try:
            return self._with_retries(lambda: read(entry, self._post(entry)))
        except (NoAnswer, Unavailable) as error:
            error.idempotency_key = entry.idempotency_key
            if self._spool is None:
                raise
            try:
                self._spool.append(entry)
            except OSError as failed:
                error.add_note(f"The request could not be spooled either: {failed}")
                raise error from failed
            raise Spooled(entry.idempotency_key, self._spool.path) from error

    def _resend(self, entry: Entry) -> list[Problem]:
        items = self._with_retries(lambda: _read_items(entry, self._post(entry)))
        return [item for item in items if isinstance(item, Problem)]

    def _is_reachable(self) -> bool:
        """Return True if a small request gets an answer that is not a gateway's."""
        try:
            answer = self._http.request("GET", _SMALL_REQUEST, timeout_seconds=self._timeout_seconds)
        except NoAnswer:
            return False
        return answer.status not in (502, 503, 504)

    def _post(self, entry: Entry) -> dict[str, Any]:
        headers = {"Idempotency-Key": entry.idempotency_key}
        return self._request("POST", entry.path, body=entry.body, headers=headers)

    def _with_retries(self, once: Callable[[], T]) -> T:
        return call_with_retries(once, retry_seconds=self._retry_seconds)

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> dict[str, Any]:
        seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
        answer = self._http.request(method, path, timeout_seconds=seconds, body=body, headers=headers)
        return _success(answer)


def _success(answer: Answer) -> dict[str, Any]:
    if answer.status not in (200, 202):
        raise read_problem(answer.status, answer.headers, answer.body)
    return answer.json_object()


def _read_items(entry: Entry, document: dict[str, Any]) -> list[Job | Problem]:
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


def _job_path(job_id: str) -> str:
    return f"/queue/jobs/{quote(job_id, safe='')}"


def _time(at: Any) -> Any:
    if not isinstance(at, datetime):
        return at
    if at.tzinfo is None:
        raise ValueError("run_at needs a zone, as in datetime.now(UTC)")
    return at.isoformat()


def _key(given: Any) -> str:
    if given is not None and not _KEY.match(given):
        raise ValueError("an idempotency key has 1 to 255 printable ASCII characters without spaces")
    return given or uuid.uuid4().hex
