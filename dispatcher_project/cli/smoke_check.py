"""`gpu-dispatcher check URL --key KEY`: try an installation from outside with an API key. Without Django.

The job is scheduled a few seconds ahead. Its event stream stays open until then, so that a proxy that buffers
the first bytes is found however short the job is.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dispatcher_client.errors import DispatcherError, NoAnswer, Problem, read_json, read_problem
from dispatcher_client.transport import Answer, Request, Transport
from dispatcher_client.urllib_transport import UrllibTransport, run_blocking
from dispatcher_project.cli.screen import harmless, plain
from foundation.program import command_line, page, usage_name

KEY_VARIABLE = "DISPATCHER_API_KEY"
STREAM_SECONDS = 1.0
"""A stream's first line must arrive within this time, besides two round trips."""
SCHEDULE_SECONDS = 3.0
"""Time between the submit and the start of the job."""
_REQUEST_SECONDS = 10.0
_POLL_SECONDS = 5.0
_SHORT_CERTIFICATE_DAYS, _SHORT_CERTIFICATE_PART = 14, 0.25
_SHOWN_MODELS = 5
_GUIDE = page("docs/how-to/deploying.md")
_MAX_BYTES = 65536
_MAX_SECONDS = 3600.0
_LAST_SECONDS = 5.0
"""For the reason and the cancellation of a late job, after all other time is spent."""


class Level(StrEnum):
    OK = "ok"
    SKIPPED = "skipped"
    WARNING = "warning"
    ERROR = "error"


_STATUS = {Level.OK: 0, Level.SKIPPED: 1, Level.WARNING: 1, Level.ERROR: 2}


@dataclass(frozen=True, slots=True)
class Step:
    """A step's outcome. do: what to do about it; empty when all is well."""

    step: str
    level: Level
    what: str
    do: str = ""


def certificate_step(version: str, certificate: Mapping[str, Any], now: float) -> Step:
    """Judge a certificate's time as `getpeercert` names it. Short-lived ones (Caddy's own CA: 12 hours) are
    renewed late, so a warning also takes that most of its life is over."""
    first, last = (ssl.cert_time_to_seconds(str(certificate[name])) for name in ("notBefore", "notAfter"))
    left = last - now
    shown = f"{left // 86400:.0f} more days" if left >= 2 * 86400 else f"{left // 3600:.0f} more hours"
    what = f"{version}, the certificate is valid for {shown}"
    if left < _SHORT_CERTIFICATE_DAYS * 86400 and left < _SHORT_CERTIFICATE_PART * (last - first):
        return Step("tls", Level.WARNING, what, "renew it: see why the proxy has not done so")
    return Step("tls", Level.OK, what)


class _Stop(Exception):
    """No later step can succeed."""


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog=usage_name("check_url"),
        description="Try an installation from outside with nothing but an API key: TLS, readiness, the key, "
        "an unbuffered event stream, a job and its result. Exit status: 0 all well, 1 warnings or skipped "
        "steps, 2 errors.",
    )
    arguments.add_argument("url", help="of the dispatcher, such as https://dispatcher.example.com")
    arguments.add_argument("--key", help=f"API key (default: {KEY_VARIABLE} of the environment)")
    arguments.add_argument("--model", help="model of the job (default: the only one that the key may use)")
    arguments.add_argument(
        "--payload", default="{}", help="payload of the job, JSON or @FILE (default %(default)s)"
    )
    arguments.add_argument(
        "--timeout",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="time for all steps together (default %(default)s)",
    )
    arguments.add_argument("--json", action="store_true", help="print JSON, for programs")
    return arguments


def main(arguments: Sequence[str], *, stream_seconds: float = STREAM_SECONDS) -> int:
    """Run the steps and print them. Returns the exit status. stream_seconds: see `Check`."""
    options_of = parser()
    options = options_of.parse_args(arguments)
    key = options.key or os.environ.get(KEY_VARIABLE)
    if not key:
        options_of.error(f"give a key with --key or {KEY_VARIABLE}")
    try:
        transport = UrllibTransport(options.url, key)
        payload = _payload(options.payload)
    except (ValueError, OSError) as error:
        options_of.error(str(error))
    steps = []
    try:
        check = Check(
            options.url,
            transport,
            options.model,
            payload,
            options.timeout,
            stream_seconds=stream_seconds,
        )
        for step in check.steps():
            steps.append(step)
            if not options.json:
                sys.stdout.write(_line(step))
                sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    status = max(_STATUS[step.level] for step in steps)
    if options.json:
        levels = ("ok", "warning", "error")
        document = {"status": levels[status], "steps": [asdict(step) for step in steps]}
        sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
    return status


def _line(step: Step) -> str:
    advice = f"  → {step.do}" if step.do else ""
    return f"{step.level:<8} {step.step:<7} {plain(step.what, 300)}{harmless(advice)}\n"


class Check:
    """The steps of one run.

    Args:
        model: None for the only one that the key may use.
        seconds: for all steps together.
    """

    def __init__(
        self,
        url: str,
        transport: Transport,
        model: str | None,
        payload: Any,
        seconds: float,
        *,
        stream_seconds: float = STREAM_SECONDS,
    ) -> None:
        self._stream_seconds = stream_seconds
        self._url = url.rstrip("/")
        self._transport = transport
        self._model = model
        self._payload = payload
        self._until = time.monotonic() + seconds
        self._round_trip = 0.0
        self._me: Mapping[str, Any] = {}

    def steps(self) -> Iterator[Step]:
        """Yield each step's outcome; the first that prevents all others is the last."""
        try:
            yield self._tls()
            yield self._reach()
            yield self._ready()
            yield self._key()
        except _Stop as stop:
            yield stop.args[0]
            return
        yield from self._job()

    def _tls(self) -> Step:
        parts = urlsplit(self._url)
        host = parts.hostname or ""
        if parts.scheme == "http":
            if host in ("localhost", "::1") or host.startswith("127."):
                return Step("tls", Level.OK, "no TLS, on this machine only")
            return Step(
                "tls", Level.WARNING, "no TLS: the key and all payloads travel readable",
                f"put a proxy with TLS before the web ({_GUIDE})",
            )  # fmt: skip
        if urllib.request.getproxies().get("https") and not urllib.request.proxy_bypass(host):
            return Step("tls", Level.OK, "through this machine's HTTP proxy")
        try:
            with (
                socket.create_connection((host, parts.port or 443), timeout=self._left()) as plain_socket,
                ssl.create_default_context().wrap_socket(plain_socket, server_hostname=host) as secured,
            ):
                certificate, version = secured.getpeercert() or {}, secured.version()
        except OSError as error:
            raise _Stop(_unreachable("tls", error)) from None
        return certificate_step(str(version), certificate, time.time())

    def _reach(self) -> Step:
        begun = time.monotonic()
        status, _, place = self._open("/livez")
        self._round_trip = time.monotonic() - begun
        if status != 200:
            do = (
                "add this name to DJANGO_ALLOWED_HOSTS"
                if status == 400
                else "let the proxy's host and port lead to the web (port 8000)"
            )
            raise _Stop(Step("reach", Level.ERROR, f"/livez answers {status}", do))
        if urlsplit(place)[:2] != urlsplit(self._url)[:2]:
            new = place.removesuffix("/livez")
            raise _Stop(
                Step(
                    "reach",
                    Level.ERROR,
                    f"the address redirects to {new}",
                    f"use {new}: the key is sent to no other",
                )
            )
        return Step("reach", Level.OK, f"the web answers after {self._round_trip * 1000:.0f} ms")

    def _ready(self) -> Step:
        status, body, _ = self._open("/readyz")
        document = _object(body)
        checks = document.get("checks")
        wrong = (
            [name for name, one in checks.items() if not one.get("ok")] if isinstance(checks, dict) else []
        )
        if status != 200:
            what = f"not ready: {', '.join(wrong) or status}"
            do = f"run `{command_line('doctor')}` on the web's host"
            raise _Stop(Step("ready", Level.ERROR, what, do))
        if document.get("status") != "ready":
            what = f"{document.get('status')}: {', '.join(wrong)}; jobs are accepted and do not start"
            return Step("ready", Level.WARNING, what, f"run `{command_line('doctor')}` on the web's host")
        return Step("ready", Level.OK, "database, migrations and Redis are there")

    def _key(self) -> Step:
        try:
            answer = self._request("GET", "/me")
        except Problem as problem:
            if problem.status == 403:
                return Step("key", Level.WARNING, f"valid, but may not read: {problem.detail}",
                    "use a key with the scopes submit and read")  # fmt: skip
            do = f"create a key with `{command_line('create_key --tenant NAME')}`"
            if problem.status != 401:
                do = f"run `{command_line('doctor')}` on the web's host"
            raise _Stop(Step("key", Level.ERROR, str(problem), do)) from None
        except NoAnswer as error:
            raise _Stop(
                Step("key", Level.ERROR, str(error), "see whether the proxy passes /api/v1 on to the web")
            ) from None
        self._me = answer.json_object()
        key = self._me["key"]
        expiry = f", until {key['expires_at']}" if key.get("expires_at") else ""
        return Step(
            "key", Level.OK,
            f"{key['prefix']} of tenant {self._me['tenant']}{expiry}: {', '.join(self._me['scopes'])}",
        )  # fmt: skip

    def _job(self) -> Iterator[Step]:
        missing = [name for name in ("submit", "read") if name not in self._me.get("scopes", ())]
        if missing:
            yield Step(
                "job", Level.SKIPPED, f"the key lacks {' and '.join(missing)}", "use a key with these scopes"
            )
            return
        try:
            model = self._chosen_model()
            begun = time.monotonic()
            answer = self._submit(model)
        except _Stop as stop:
            yield stop.args[0]
            return
        except DispatcherError as error:
            yield Step("submit", Level.ERROR, str(error), _about_submit(error))
            return
        job_id = str(answer["job_id"])
        yield Step("submit", Level.OK, f"job {job_id} for {model}, after {time.monotonic() - begun:.1f} s")
        yield self._stream(job_id)
        yield self._result(job_id)

    def _chosen_model(self) -> str:
        """Raises _Stop."""
        models = {one["model"]: one for one in self._me["models"]}
        names = ", ".join([*models][:_SHOWN_MODELS]) + (" …" if len(models) > _SHOWN_MODELS else "")
        if self._model is None:
            if not models:
                raise _Stop(Step("submit", Level.SKIPPED, "no model is registered that the key may use",
                    f"register a server with `{command_line('register URL')}`"))  # fmt: skip
            if len(models) > 1:
                raise _Stop(Step("submit", Level.SKIPPED, f"the key may use several models: {names}",
                    "choose one with --model"))  # fmt: skip
            (self._model,) = models
        if self._model not in models:
            raise _Stop(Step("submit", Level.ERROR, f"no model {self._model} for this key",
                f"choose one of: {names}" if models else "register a server that runs it"))  # fmt: skip
        if models[self._model]["paused"]:
            raise _Stop(Step("submit", Level.WARNING, f"{self._model} is paused",
                f"run `{command_line('resume')}`, or choose another with --model"))  # fmt: skip
        return self._model

    def _submit(self, model: str) -> dict[str, Any]:
        """Schedule the job by the server's clock: this machine's may be wrong."""
        here = self._request("GET", "/me")
        run_at = _server_time(here.headers) + timedelta(seconds=SCHEDULE_SECONDS)
        body = {"model": model, "payload": self._payload, "run_at": run_at.isoformat(), "tags": ["check"]}
        return self._request("POST", "/queue/submit", body).json_object()

    def _stream(self, job_id: str) -> Step:
        begun = time.monotonic()
        patience = self._stream_seconds + 2 * self._round_trip
        what = f"buffered: nothing of the event stream came within {patience:.1f} s"
        advice = f"let the proxy not buffer text/event-stream ({_GUIDE}, the proxy before the web)"
        buffered = Step("events", Level.ERROR, what, advice)
        try:
            status, kind, first = run_blocking(self._first_piece(job_id, min(patience, self._left())))
        except NoAnswer as error:
            if not isinstance(error.__cause__, TimeoutError) and "timed out" not in str(error):
                return Step("events", Level.ERROR, str(error), "see whether the proxy lets requests last")
            return buffered
        if status != 200 or not kind.startswith("text/event-stream"):
            return Step("events", Level.ERROR, f"the stream answers {status} with {kind}",
                "see whether the proxy passes these requests on to the web")  # fmt: skip
        seconds = time.monotonic() - begun
        if not first or seconds > patience:
            return buffered
        return Step("events", Level.OK, f"not buffered: the stream's first line came after {seconds:.2f} s")

    async def _first_piece(self, job_id: str, seconds: float) -> tuple[int, str, bytes]:
        """Status, content type and first bytes of the job's event stream. Raises NoAnswer."""
        path, headers = f"/queue/jobs/{job_id}/events", {"Accept": "text/event-stream"}
        async with self._transport.opened(Request("GET", path, seconds, headers=headers)) as answer:
            piece = await anext(answer.pieces, b"")
            return answer.status, answer.headers.get("content-type", "nothing"), piece

    def _result(self, job_id: str) -> Step:
        path, state = f"/queue/jobs/{job_id}", ""
        job: dict[str, Any] = {}
        begun = time.monotonic()
        while (left := self._until - time.monotonic()) > 0:
            try:
                job = self._request("GET", f"{path}?wait={min(_POLL_SECONDS, left):.1f}").json_object()
            except DispatcherError as error:
                return Step(
                    "result", Level.ERROR, str(error), "see whether the proxy waits 90 s for an answer"
                )
            state = str(job["status"])
            if state in ("completed", "failed", "cancelled"):
                break
        seconds = time.monotonic() - begun
        if state == "completed":
            return Step("result", Level.OK, f"completed, {seconds:.1f} s after the stream was opened")
        if state in ("failed", "cancelled"):
            error_of = job.get("error") or {}
            what = f"{state}: {error_of.get('code', '')} {error_of.get('message', '')}"
            return Step(
                "result",
                Level.ERROR,
                what,
                "give a --payload that the model takes, or see the GPU server's log",
            )
        what = f"still {state or 'unknown'} after {seconds:.0f} s{self._why(path)}"
        do = f"run `{command_line('doctor')}` on the web's host, or wait longer with --timeout"
        return Step("result", Level.ERROR, f"{what}; {self._cancel(path)}", do)

    def _why(self, path: str) -> str:
        """The first reason for which the job waits."""
        with contextlib.suppress(DispatcherError, LookupError, TypeError):
            explained = self._request("GET", f"{path}/explain", least_seconds=_LAST_SECONDS).json_object()
            return f": {explained['reasons'][0]['message']}"
        return ""

    def _cancel(self, path: str) -> str:
        try:
            self._request("POST", f"{path}/cancel", least_seconds=_LAST_SECONDS)
        except DispatcherError:
            return "the job could not be cancelled"
        return "the job is cancelled"

    def _left(self, least_seconds: float = 0.1) -> float:
        return min(max(self._until - time.monotonic(), least_seconds), _REQUEST_SECONDS)

    def _request(self, method: str, path: str, body: Any = None, *, least_seconds: float = 0.1) -> Answer:
        """Raises NoAnswer and Problem."""
        request = Request(method, path, self._left(least_seconds), body)
        answer = run_blocking(self._transport.request(request))
        if not 200 <= answer.status < 300:
            raise read_problem(answer.status, answer.headers, answer.body)
        return answer

    def _open(self, path: str) -> tuple[int, bytes, str]:
        """Status, body and final address of a request without the key. Raises _Stop."""
        try:
            with urllib.request.urlopen(self._url + path, timeout=self._left()) as response:
                return response.status, response.read(_MAX_BYTES), response.url
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(_MAX_BYTES), error.url or self._url + path
        except (OSError, http.client.HTTPException) as error:
            raise _Stop(_unreachable("reach", error)) from None


def _unreachable(step: str, error: Exception) -> Step:
    reason = getattr(error, "reason", error)
    cause = reason if isinstance(reason, Exception) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        what = f"the certificate is not trusted: {cause.verify_message}"
        do = "put a certificate for this name into the proxy, or name its authority with SSL_CERT_FILE"
    elif isinstance(cause, ssl.SSLError):
        what, do = f"no TLS there: {cause}", "check the port, and that the proxy speaks TLS on it"
    elif isinstance(cause, socket.gaierror):
        what, do = f"the name is unknown: {cause.strerror}", "check the address, and the name's DNS record"
    elif isinstance(cause, ConnectionRefusedError):
        what, do = "nothing listens there", "start the proxy and the web, and check the port"
    elif isinstance(cause, TimeoutError):
        what, do = "no answer in time", "open the port in the firewalls on the way"
    else:
        what, do = f"{type(cause).__name__}: {cause}", "check the address and the network"
    return Step(step, Level.ERROR, what, do)


def _about_submit(error: DispatcherError) -> str:
    if isinstance(error, Problem) and error.status == 422:
        return "give a --payload that the model takes"
    if isinstance(error, Problem) and error.status == 429:
        return "a limit of the tenant is reached: try again later, or raise it"
    return f"run `{command_line('doctor')}` on the web's host"


def _server_time(headers: Mapping[str, str]) -> datetime:
    try:
        return parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError):
        return datetime.now(UTC)


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = read_json(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _payload(text: str) -> Any:
    """Raises ValueError and OSError."""
    try:
        return read_json(Path(text[1:]).read_bytes() if text.startswith("@") else text)
    except ValueError as error:
        raise ValueError(f"--payload is not JSON: {error}") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to {_MAX_SECONDS:g}")
    return seconds
