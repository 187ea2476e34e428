"""ASGI gateway: receives bodies, enforces limits and waits on the event loop; Django answers in threads.

A view requests waiting by a header of its response (`jobs.events.handover`). The gateway then holds that
response back, and sends an event stream, or the job once it has ended.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_from_bytes

from django.conf import settings

from artifacts.store.configured import STORE_PATH
from dispatcher_project.web.headers import security_headers
from dispatcher_project.web.request_limits import (
    HOLDER_KEY,
    MAX_UNDECLARED_BYTES,
    Application,
    BodyBudget,
    BodyTooLong,
    BodyTooSlow,
    ClientGone,
    InFlight,
    NoRoomForBody,
    RequestBody,
    Scope,
    TooManyInFlight,
    holder_of,
    send_problem,
)
from foundation.http_api.json_body import BODY_PENDING_KEY, CONTINUE
from foundation.http_api.problems import Problem
from gpus.registry.upload_url import COG_UPLOADS
from jobs.api.errors import API_PREFIX
from jobs.api.representations import job_url
from jobs.api.submit import asked_wait
from jobs.domain.states import JobState, is_final
from jobs.events.handover import (
    FOLLOW_HEADER,
    LATE_ANSWER_KEY,
    PULSE_HEADER,
    SCOPE_KEY,
    WAIT_HEADER,
    Follow,
    WaitFor,
)
from jobs.events.hub import EventHub
from jobs.events.stream import Message, Receive, Send, Source, stream_events, stream_pulse, until_disconnect
from jobs.submission.fetched_urls import SCOPE_KEY as FETCH_KEY
from jobs.submission.fetched_urls import FetchHandover, UrlFetcher, close_all
from jobs.submission.request import Outcome, outcome_of_state

LIVEZ = "/livez"
"""Answered without a thread: the process is alive even if all threads wait for the database."""
ARTIFACT_BYTES = f"{STORE_PATH}/"
_NOT_FORWARDED = (
    b"content-length",
    b"content-type",
    b"transfer-encoding",
    b"expect",
    b"prefer",
    b"idempotency-key",
)
"""Headers of the request that do not belong to the GET that reads its job."""

_SINGLE = {
    b"authorization": b"Authorization",
    b"idempotency-key": b"Idempotency-Key",
    b"idempotency_key": b"Idempotency-Key",
}
"""Headers that a request may have only once, by all names that are the same under WSGI."""
_TOO_LONG = f"Only the API takes more than {MAX_UNDECLARED_BYTES} bytes, and with a Content-Length."
_TOO_SLOW = "The body did not arrive in time."
_NO_ROOM = "The server has no disk space for a body of this length. Smaller requests still work."
NO_ROOM_SECONDS = 10.0
_CLOSE = {"Connection": "close"}


class AsgiGateway:
    """The outermost ASGI application.

    site: Django as an ASGI application in threads. make_hub: called once, on the event loop. begin: called at
    the server's start; returns the function to call at its stop. streams_per_reader: most event streams of
    one key or user. body_bytes: memory for bodies that are still arriving. artifact_bytes: answers requests
    for the bytes of artifacts, and cog_uploads the files of Cog containers, whose bodies are not received
    whole; None: the site does. url_fetcher: reads the files of URLs in submits; None: they stay as they are.
    sources: of event streams of other kinds than jobs (`Follow.kind`).
    """

    def __init__(
        self,
        site: Application,
        make_hub: Callable[[], EventHub],
        begin: Callable[[], Callable[[], None]] = lambda: lambda: None,
        streams_per_reader: int = 256,
        body_bytes: int = 96 * 1024 * 1024,
        *,
        artifact_bytes: Application | None = None,
        cog_uploads: Application | None = None,
        url_fetcher: UrlFetcher | None = None,
        sources: Mapping[str, Source] | None = None,
    ) -> None:
        self._sources = sources or {}
        self._site = site
        self._streamed = {ARTIFACT_BYTES: artifact_bytes, COG_UPLOADS: cog_uploads}
        self._url_fetcher = url_fetcher
        self._make_hub = make_hub
        self._begin = begin
        self._hub: EventHub | None = None
        self._streams_per_reader = streams_per_reader
        self._budget = BodyBudget(body_bytes)
        limits = settings.DISPATCHER
        self._requests = InFlight("requests", limits.web_requests_per_tenant)
        self._bodies = InFlight("bytes of requests", limits.web_body_bytes_per_tenant)
        self._waits = InFlight("requests that wait for a job", limits.web_waits_per_tenant)
        self._security_headers = [security_headers(over_https=https) for https in (False, True)]
        self._streams: Counter[str] = Counter()
        """Open event streams by reader."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            send = self._secure(scope, send)
            if scope["path"] == LIVEZ:
                await _send_alive(send)
            else:
                await self._application_of(scope["path"])(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    def _application_of(self, path: str) -> Application:
        """Return what answers requests for a path."""
        for prefix, application in self._streamed.items():
            if application is not None and path.startswith(prefix):
                return application
        return self._serve

    def _secure(self, scope: Scope, send: Send) -> Send:
        """Add the security headers that Django or the view has not set."""
        added = self._security_headers[scope.get("scheme") == "https"]

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": _with(added, message.get("headers", ()))}
            await send(message)

        return send_with_headers

    @property
    def hub(self) -> EventHub:
        if self._hub is None:
            self._hub = self._make_hub()
        return self._hub

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        end: Callable[[], None] | None = None
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                end = self._begin()
                await send({"type": "lifespan.startup.complete"})
                continue
            if self._hub is not None:
                await self._hub.close()
            if self._url_fetcher is not None:
                self._url_fetcher.close()
            if end is not None:
                await asyncio.to_thread(end)
            await send({"type": "lifespan.shutdown.complete"})
            return

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = RequestBody(receive, scope["headers"], self._budget)
        scope = {**scope, SCOPE_KEY: True, "query_string": _ascii(scope["query_string"])}
        holder = scope[HOLDER_KEY] = holder_of(scope)
        try:
            _refuse_repeated(scope["headers"])
            with self._requests.of(holder), self._bodies.of(holder, body.most_bytes):
                answer = await self._answer(scope, body, send)
            if answer.follow is not None:
                await self._follow(scope, answer.follow, body, send)
            elif answer.pulse:
                await stream_pulse(self.hub, body.receive, send)
            elif answer.wait is not None:
                await self._wait(scope, answer, body, send)
        except (TooManyInFlight, RepeatedHeader) as refused:
            await send_problem(_ends_after(body, send), refused)
        except BodyTooLong:
            problem = Problem(413, "payload_too_large", _TOO_LONG, headers=_CLOSE)
            await send_problem(_ends_after(body, send), problem)
        except BodyTooSlow:
            await send_problem(send, Problem(408, "upload_too_slow", _TOO_SLOW, headers=_CLOSE))
        except NoRoomForBody:
            problem = Problem(
                503, "no_room_for_body", _NO_ROOM, headers=_CLOSE, retry_after_seconds=NO_ROOM_SECONDS
            )
            await send_problem(_ends_after(body, send), problem)
        except ClientGone:
            pass
        finally:
            body.close()

    async def _answer(self, scope: Scope, body: RequestBody, send: Send) -> _Answer:
        """Return the site's answer. For a long body the view first decides whether it is read at all.

        Raises the exceptions of `RequestBody.take_in`.
        """
        answer = _Answer(send)
        if body.is_long and scope["path"].startswith(API_PREFIX):
            early = _Answer(None)
            await self._site({**scope, BODY_PENDING_KEY: True}, _empty_body, early.take)
            if early.status != CONTINUE:
                if not early.is_handed_over:
                    await early.send_to(_ends_after(body, send))
                return early
            await body.take_in()
        else:
            length = await body.take_in(at_most=MAX_UNDECLARED_BYTES)
            if body.chunked and length is not None:  # WSGI needs a Content-Length
                others = [header for header in scope["headers"] if header[0] != b"content-length"]
                scope["headers"] = [*others, (b"content-length", str(length).encode())]
        handed = FetchHandover()
        if self._url_fetcher is not None and settings.DISPATCHER.fetched_urls:
            scope[FETCH_KEY] = handed
        await self._site(scope, body.receive, answer.take)
        if handed.wanted is not None and answer.status == CONTINUE:
            return await self._answer_with_files(scope, handed, body, send)
        return answer

    async def _answer_with_files(
        self, scope: Scope, handed: FetchHandover, body: RequestBody, send: Send
    ) -> _Answer:
        """Read the files of a request's URLs, and return the site's answer to the request with them. Raises
        ClientGone."""
        assert self._url_fetcher is not None
        assert handed.wanted is not None
        fetching = asyncio.wrap_future(self._url_fetcher.fetch_all(handed.wanted))
        disconnected = asyncio.ensure_future(until_disconnect(body.receive))
        try:
            either: set[asyncio.Future[Any]] = {fetching, disconnected}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not fetching.done():
                raise ClientGone
        finally:
            fetching.cancel()
            disconnected.cancel()
        handed.fetched = fetching.result()
        try:
            body.rewind()
            answer = _Answer(send)
            await self._site(scope, body.receive, answer.take)
            return answer
        finally:
            close_all(handed.fetched)

    async def _follow(self, scope: Scope, follow: Follow, body: RequestBody, send: Send) -> None:
        async def may_follow() -> bool:
            """Check the permission again with the same request. An error, such as 503, does not end the
            stream."""
            answer = _Answer(None)
            await self._site(scope, _empty_body, answer.take)
            return answer.status not in (401, 403, 404)

        if self._streams[follow.reader] >= self._streams_per_reader:
            most = (
                f"{self._streams_per_reader} event streams are open for this key or user, the most at once."
            )
            await send_problem(send, Problem(429, "too_many_streams", most, retry_after_seconds=5.0))
            return
        self._streams[follow.reader] += 1
        try:
            source = None if follow.kind == "job" else self._sources[follow.kind]
            await stream_events(self.hub, follow, body.receive, send, may_follow=may_follow, source=source)
        finally:
            self._streams[follow.reader] -= 1
            self._streams += Counter()  # drops readers without a stream

    async def _wait(self, scope: Scope, answer: _Answer, body: RequestBody, send: Send) -> None:
        try:
            with self._waits.of(scope[HOLDER_KEY]):
                await self._wait_for(scope, answer, body, send)
        except TooManyInFlight:
            if scope["method"] != "POST":
                raise
            await answer.send_to(send)  # the job is accepted, so the answer is sent without the wait

    async def _wait_for(self, scope: Scope, answer: _Answer, body: RequestBody, send: Send) -> None:
        assert answer.wait is not None
        over = asyncio.ensure_future(self.hub.wait_until_over(answer.wait.job_id, answer.wait.seconds))
        disconnected = asyncio.ensure_future(until_disconnect(body.receive))
        try:
            await asyncio.wait({over, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            if not over.done():
                return
        finally:
            over.cancel()
            disconnected.cancel()
        submitted = scope["method"] == "POST"
        now = await self._read_job(scope, answer.wait.job_id)
        if now.status == 200:
            if not submitted:
                answer = now
            else:
                answer = answer.with_result(now) if over.result() else answer.with_state(now)
        if submitted:
            answer.headers.append((b"preference-applied", f"wait={_seconds(scope)}".encode()))
        await answer.send_to(send)

    async def _read_job(self, scope: Scope, job_id: str) -> _Answer:
        """GET the job with the credentials of the request."""
        path = scope.get("root_path", "") + job_url(job_id)
        headers = [header for header in scope["headers"] if header[0].lower() not in _NOT_FORWARDED]
        get: Scope = {
            **scope,
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": _included(scope) if scope["method"] == "GET" else b"",
            "headers": headers,
            LATE_ANSWER_KEY: scope["method"] == "POST",
        }
        answer = _Answer(None)
        await self._site(get, _empty_body, answer.take)
        return answer


class RepeatedHeader(Problem):
    """400: WSGI would join the two values to one that the client did not send."""

    def __init__(self, name: str) -> None:
        super().__init__(400, "repeated_header", f"The request has more than one {name} header.")


def _refuse_repeated(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises RepeatedHeader. Under WSGI a name with an underscore is the same header."""
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in _SINGLE:
            if _SINGLE[name] in seen:
                raise RepeatedHeader(_SINGLE[name].decode())
            seen.add(_SINGLE[name])


@dataclass(slots=True)
class _Answer:
    """The site's answer: sent as it comes, or held back if the view hands the request over to the gateway.

    to: where it is sent; None holds all of it back.
    """

    to: Send | None
    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    content: bytearray = field(default_factory=bytearray)
    wait: WaitFor | None = None
    follow: Follow | None = None
    pulse: bool = False

    @property
    def is_handed_over(self) -> bool:
        return self.wait is not None or self.follow is not None or self.pulse

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            named = {name.decode("latin1"): value.decode("latin1") for name, value in message["headers"]}
            if (text := named.get(WAIT_HEADER)) is not None:
                self.wait = WaitFor.from_header(text)
            if (text := named.get(FOLLOW_HEADER)) is not None:
                self.follow = Follow.from_header(text)
            self.pulse = PULSE_HEADER in named
            if self.wait is not None:
                message["headers"] = [h for h in message["headers"] if h[0] != WAIT_HEADER.encode()]
            self.headers = list(message["headers"])
        if self.to is None or self.is_handed_over or self.status == CONTINUE:
            self.content += message.get("body", b"")
            return
        await self.to(message)

    def with_result(self, job: _Answer) -> _Answer:
        """Return a submit's answer after the end of its job. The result may have megabytes, so it is not
        parsed."""
        outcome = (
            f',"outcome":"{Outcome.FINISHED.value}","position":null,"wait_reason":null,"starts_in":null}}'
        )
        content = job.content.rstrip().removesuffix(b"}") + outcome.encode()
        headers = [header for header in self.headers if header[0] != b"content-length"]
        headers.append((b"content-length", str(len(content)).encode()))
        return _Answer(None, 200, headers, content)

    def with_state(self, job: _Answer) -> _Answer:
        """Return a submit's answer with the current state of its job. The forecast of the start stays only
        while state and attempts are the same."""
        before, now = json.loads(self.content), json.loads(job.content)
        state = JobState(now["status"])
        if is_final(state):
            return self.with_result(job)
        forecast = ("position", "wait_reason", "starts_in")
        is_same = (state, now["attempts"]) == (before["status"], before["attempts"])
        kept = {name: before[name] if is_same else None for name in forecast}
        outcome = before["outcome"] if is_same else outcome_of_state(state).value
        content = json.dumps({**before, **now, **kept, "outcome": outcome}, separators=(",", ":")).encode()
        headers = [header for header in self.headers if header[0] != b"content-length"]
        headers.append((b"content-length", str(len(content)).encode()))
        return _Answer(None, self.status, headers, bytearray(content))

    async def send_to(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": bytes(self.content), "more_body": False})


def _ends_after(body: RequestBody, send: Send) -> Send:
    """Send the answer at once, but end the exchange only after the rest of the body was read and dropped."""

    async def send_then_drop(message: Message) -> None:
        if message["type"] != "http.response.body" or message.get("more_body", False):
            await send(message)
            return
        await send({**message, "more_body": True})
        await body.drop()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return send_then_drop


def _with(
    added: Sequence[tuple[bytes, bytes]], headers: Sequence[tuple[bytes, bytes]]
) -> list[tuple[bytes, bytes]]:
    present = {name for name, _ in headers}
    return [*headers, *(header for header in added if header[0] not in present)]


async def _send_alive(send: Send) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"status": "alive"}', "more_body": False})


async def _empty_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def _ascii(query: bytes) -> bytes:
    """Percent-encode raw bytes in a query string: WSGI takes ASCII only."""
    return query if query.isascii() else quote_from_bytes(query, safe="!$&'()*+,;=:@/?%-._~").encode()


def _included(scope: Scope) -> bytes:
    """Return the query of a waiting GET without its wait."""
    kept = [part for part in scope["query_string"].split(b"&") if part.startswith(b"include=")]
    return b"&".join(kept)


def _seconds(scope: Scope) -> str:
    prefer = ", ".join(v.decode("latin1") for n, v in scope["headers"] if n.lower() == b"prefer")
    return asked_wait(prefer) or "0"
