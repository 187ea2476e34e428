"""HTTP between a process and the GPU servers: `gpus.runners.base.Transport` under virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from urllib.parse import urlsplit

from django.conf import settings

from foundation.ids import made_at
from foundation.long_texts import LongTexts
from gpus.errors import ConnectFailed, ConnectRefused, Interrupted, RunTimedOut, ServerLost
from gpus.runners.base import Abort, Response
from verification.simulation.active_faults import ActiveFaults
from verification.simulation.gpu import LOST, Answer, GpuServer, server_of
from verification.simulation.scheduler import START, Event, Process, Scheduler


class GpuLink:
    """Connections to the GPU servers, with the active faults."""

    def __init__(
        self, scheduler: Scheduler, active_faults: ActiveFaults, servers: Mapping[str, GpuServer]
    ) -> None:
        self._scheduler, self._faults, self._servers = scheduler, active_faults, servers

    def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        connect_timeout_seconds: float,
        deadline_seconds: float,
        max_bytes: int,
        ca_pem: str | None = None,
        abort: Abort | None = None,
        on_sent: Callable[[], None] | None = None,
        long_texts: LongTexts | None = None,
    ) -> Response:
        """Send a request; see `Transport.request`."""
        if abort is not None and abort.fired:
            raise Interrupted("Interrupted before the request was sent.")
        name, path = server_of(url), urlsplit(url).path
        server, until = self._servers[name], self._scheduler.now + deadline_seconds
        asked_at = self._scheduler.now
        if (process := self._scheduler.current()) is not None:
            server.record_sender(process.name, headers)
        self._scheduler.point(f"{method} {name}{path[:20]}")
        if self._scheduler.now - asked_at > settings.DISPATCHER.lease_seconds:
            server.record_late_sender(headers)
        if self._claimed_ago(headers) > settings.DISPATCHER.lease_seconds:
            server.record_old_claim(headers)
        ended = Event(self._scheduler)
        if abort is not None:
            abort.set_reader(ended.set)
        try:
            if name in self._faults.unreachable:
                if ended.wait(min(connect_timeout_seconds, deadline_seconds)):
                    raise Interrupted("Interrupted before the request was sent.")
                raise ConnectFailed("Connecting took too long.")
            if not server.up:
                raise ConnectRefused("Connection refused.")
            serve = partial(server.answer, method, path, headers, body)
            return self._exchange(server, serve, on_sent or _nothing, until=until, ended=ended, abort=abort)
        finally:
            if abort is not None:
                abort.set_reader(None)

    def _claimed_ago(self, headers: Mapping[str, str]) -> float:
        """Return the seconds since the claim, by the sender's clock; the attempt's id was made then."""
        process, attempt_id = self._scheduler.current(), headers.get("Idempotency-Key")
        if process is None or attempt_id is None:
            return 0.0
        return START.timestamp() + self._scheduler.now + process.skew_seconds - made_at(attempt_id)

    def _exchange(
        self,
        server: GpuServer,
        work: Callable[[], Answer],
        on_sent: Callable[[], None],
        *,
        until: float,
        ended: Event,
        abort: Abort | None,
    ) -> Response:
        """Await the server's work, which continues if its sender leaves; work that has not begun by then
        never begins."""
        answers: list[Answer] = []
        waits = [True]

        def serve() -> None:
            while server.name in self._faults.hung:
                self._scheduler.sleep(0.5)
            if not waits:
                return
            answer = work() if server.up else LOST
            if server.name in self._faults.unreachable:
                return  # silence
            if self._faults.happens(self._faults.http_reply_lost):
                self._scheduler.note(server.name, "reply lost")
                answer = LOST
            answers.append(answer)
            ended.set()

        self._scheduler.spawn(Process(f"connection to {server.name}"), serve)
        try:
            on_sent()
            ended.wait(max(0.0, until - self._scheduler.now))
        finally:
            waits.clear()
        self._scheduler.point(f"answer of {server.name}")
        if answers:
            (answer,) = answers
            if answer is LOST:
                raise ServerLost("The connection broke before the answer.")
            return Response(answer.status, answer.headers, answer.body)
        if abort is not None and abort.fired:
            raise Interrupted("Interrupted while waiting for the answer.")
        raise RunTimedOut("No answer in time.")


def _nothing() -> None: ...
