"""An LLM server as a model: `load` starts it, `run` sends it a request, `unload` frees its memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from foundation.json_text import unwrap
from gpu_host.handlers import errors as handler_errors
from gpu_host.handlers.context import RunContext
from gpu_host.llm_servers.declared import LlmServerConfig
from gpus.errors import BadInput, ConnectFailed, GpuBusy, GpuError, GpuFault, Interrupted, RunFailed
from gpus.protocol import Endpoint, ModelSpec, parse_progress
from gpus.runners.base import Abort, Response, RunRequest
from gpus.runners.llm import LlmRunner
from gpus.runners.ollama_http import OllamaRunner, has_model
from gpus.runners.openai_http import OpenAiRunner
from gpus.runners.transport import HttpTransport

POLL_SECONDS = 0.2
REQUEST_SECONDS = 2.0
FLUSH_SECONDS = 0.05
UNLOAD_SECONDS = 20.0
_BUSY_FIRST_SECONDS, _BUSY_CAP_SECONDS = 0.2, 5.0
_ANSWER_BYTES = 1024 * 1024
_RUNNERS: dict[str, type[LlmRunner]] = {runner.name: runner for runner in (OpenAiRunner, OllamaRunner)}

FIND_AGAIN_SECONDS = 2.0


class LlmServer:
    """Implements the contract of `gpu_host.handlers`. One per process; runs come in several threads."""

    def __init__(self, config: LlmServerConfig) -> None:
        self._config = config
        self.vram_mb, self.at_once = config.vram_mb, config.slots
        self.warm_seconds, self.min_resident = config.warm_seconds, config.min_resident
        self.held_outside = "ours" if config.unit else "" if config.command else "theirs"
        self.max_run_seconds, self.max_load_seconds = config.max_run_seconds, config.start_seconds + 60.0
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._transport = HttpTransport()
        spec = ModelSpec(
            config.name,
            config.name,
            model_type=config.protocol,
            remote_model=config.remote_model,
            max_run_seconds=config.max_run_seconds or 365 * 86400.0,  # the worker's own limit counts
            max_response_bytes=config.max_response_bytes,
            keep_alive_seconds=-1.0 if config.protocol == "ollama" else None,
        )
        self._spec = spec
        self._endpoint = Endpoint(config.name, config.url, max_slots=config.slots)
        self._runner = _RUNNERS[config.protocol]

    # -- the contract ----------------------------------------------------------------------------------

    def load(self) -> None:
        """Start the server. Raises RuntimeError with the reason if it does not answer in time."""
        with self._lock:
            self._start()

    def run(self, payload: Any, ctx: RunContext) -> Any:
        """Send the payload to the server and return its result; restart the server first if it has exited."""
        abort, over, buffer = Abort(), threading.Event(), _OutputBuffer(ctx)
        watch = threading.Thread(target=_watch, args=(ctx, abort, over, buffer), name="watch", daemon=True)
        watch.start()
        request = RunRequest(
            job_id=ctx.job_id,
            attempt_id=ctx.attempt_id,
            model=self._spec,
            endpoint=self._endpoint,
            payload=payload,
            slot=self._config.name,
            fence=0,
            report=buffer.add,
        )
        try:
            self._restart_if_ended(ctx, abort)
            return self._run_with_retries(request, ctx, abort)
        finally:
            over.set()
            watch.join()  # output must be sent before the run ends
            buffer.flush()

    def unload(self) -> None:
        """Unload the model from an Ollama server; stop a server that was started here."""
        with self._lock:
            if self._config.protocol == "ollama" and not self._config.command:
                with contextlib.suppress(GpuError):  # a server that has exited holds no memory
                    self._keep_alive(0)
                    self._wait_until_it_is_unloaded()
            if self._config.unit:
                _systemctl("stop", self._config.unit)
            self._stop()

    # -- runs --------------------------------------------------------------------------------------------

    def _run_with_retries(self, request: RunRequest, ctx: RunContext, abort: Abort) -> Any:
        """Send the request; wait and retry while the server is busy, since others may use it as well."""
        pause, started_again = _BUSY_FIRST_SECONDS, False
        while True:
            try:
                outcome = self._runner(self._spec).start(request, abort=abort)
                return unwrap(outcome.result)
            except GpuBusy as error:
                ctx.wait(error.retry_after_seconds or pause)
                pause = min(2 * pause, _BUSY_CAP_SECONDS)
            except ConnectFailed as error:  # nothing was sent: the server has just exited
                if started_again or not self._restart_if_ended(ctx, abort):
                    raise _upstream_error(error) from error
                started_again = True
            except BadInput as error:
                raise handler_errors.BadInput(error.message) from None
            except GpuFault as error:
                raise handler_errors.TransientGpuError(error.message) from None
            except Interrupted:
                raise handler_errors.Cancelled from None
            except RunFailed as error:
                raise RuntimeError(error.message) from error
            except GpuError as error:
                raise _upstream_error(error) from error

    # -- start and stop ----------------------------------------------------------------------------------

    def _is_up(self) -> bool:
        if not self._config.command:
            return True
        return self._process is not None and self._process.poll() is None

    def _restart_if_ended(self, ctx: RunContext, abort: Abort) -> bool:
        """Restart the server if it has exited; return whether it was restarted.

        Raises Cancelled as soon as this run is cancelled, whichever run starts the server."""
        while not self._lock.acquire(timeout=POLL_SECONDS):
            ctx.check()
        try:
            if self._is_up():
                return False
            ctx.log(f"{self._config.name} had ended: it is started again")
            self._start(ctx, abort)
        except Interrupted:
            raise handler_errors.Cancelled from None
        except GpuError as error:  # nothing was sent
            raise handler_errors.UpstreamError(error.message, code=error.code) from error
        finally:
            self._lock.release()
        return True

    def _start(self, ctx: RunContext | None = None, abort: Abort | None = None) -> None:
        """ctx, abort: of the run that waits for the start, if any."""
        self._stop()
        if self._config.command:
            # a process group of its own to kill it by; in the session of this process, so that its memory
            # counts as ours and the warden kills it in any case
            self._process = subprocess.Popen(
                self._config.command, stdin=subprocess.DEVNULL, stdout=sys.stderr, process_group=0
            )
        elif self._config.unit:
            _systemctl("start", self._config.unit)
        try:
            self._wait_until_it_serves(ctx)
            if self._config.protocol == "ollama":
                self._keep_alive(-1, abort)
        except (handler_errors.Cancelled, Interrupted):
            self._stop(signal.SIGKILL)  # a cancel must be quick, and no run has begun
            raise
        except BaseException:
            self._stop()
            raise

    def _wait_until_it_serves(self, ctx: RunContext | None) -> None:
        until, why = time.monotonic() + self._config.start_seconds, "no request was sent"
        while time.monotonic() < until:
            if not self._is_up():
                assert self._process is not None
                raise RuntimeError(f"{self._config.name} ended with status {self._process.returncode}")
            try:
                health = self._runner.health(self._spec, self._endpoint, self._get)
                if health.ok:
                    return
                why = health.error
            except GpuError as error:
                why = f"{error.code}: {error.message}"
            if ctx is None:
                time.sleep(POLL_SECONDS)
            else:
                ctx.wait(POLL_SECONDS)
        raise RuntimeError(
            f"{self._config.name} does not serve after {self._config.start_seconds:.0f} s: {why}"
        )

    def _stop(self, *signals: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for number in signals or (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._config.stop_seconds)
                break
        with contextlib.suppress(ProcessLookupError):  # children left in its group
            os.killpg(process.pid, signal.SIGKILL)

    def _get(self, url: str) -> Response:
        return self._request("GET", url, None, REQUEST_SECONDS)

    def _keep_alive(self, seconds: int, abort: Abort | None = None) -> None:
        """Load the model by an empty prompt, or with 0 seconds unload it. Raises GpuError, RuntimeError."""
        name = self._config.remote_model or self._config.name
        url = self._config.url.rstrip("/").removesuffix("/api") + "/api/generate"
        body = f'{{"model": "{name}", "keep_alive": {seconds}, "stream": false}}'.encode()
        limit = UNLOAD_SECONDS if seconds == 0 else self._config.start_seconds
        answer = self._request("POST", url, body, limit, abort)
        if answer.status != 200:
            raise RuntimeError(f"{self._config.name} answered {answer.status}: {answer.body[:200]!r}")

    def _wait_until_it_is_unloaded(self) -> None:
        """Wait until Ollama's list of loaded models shows that the memory is free: it answers the unload
        before."""
        name = self._config.remote_model or self._config.name
        url = self._config.url.rstrip("/").removesuffix("/api") + "/api/ps"
        until = time.monotonic() + UNLOAD_SECONDS
        while time.monotonic() < until and has_model(self._get(url), name):
            time.sleep(POLL_SECONDS)

    def _request(
        self, method: str, url: str, body: bytes | None, seconds: float, abort: Abort | None = None
    ) -> Response:
        return self._transport.request(
            method,
            url,
            headers={"Accept": "application/json", "Content-Type": "application/json"},
            body=body,
            connect_timeout_seconds=REQUEST_SECONDS,
            deadline_seconds=seconds,
            max_bytes=_ANSWER_BYTES,
            abort=abort,
        )


class _OutputBuffer:
    """Joins a server's pieces of output: a handler may send 200 items a second, a server sends more."""

    def __init__(self, ctx: RunContext) -> None:
        self._ctx, self._text, self._flushed_at = ctx, "", time.monotonic()
        self._lock = threading.RLock()

    def add(self, kind: str, value: Any) -> None:
        if kind == "progress":
            if (progress := parse_progress(value)) is not None:
                self._ctx.report(*progress)
            return
        with self._lock:
            if not isinstance(value, str):
                self.flush()
                self._ctx.partial(value)
                return
            self._text += value
            if time.monotonic() - self._flushed_at >= FLUSH_SECONDS:
                self.flush()

    def flush(self) -> None:
        with self._lock:
            text, self._text, self._flushed_at = self._text, "", time.monotonic()
            if text:
                self._ctx.partial(text)


def _watch(ctx: RunContext, abort: Abort, over: threading.Event, buffer: _OutputBuffer) -> None:
    """Fire the abort when the run is cancelled, and flush the output regularly."""
    while not over.wait(FLUSH_SECONDS):
        buffer.flush()
        if ctx.cancelled:
            abort.fire()
            return


def _upstream_error(error: GpuError) -> handler_errors.UpstreamError:
    return handler_errors.UpstreamError(
        error.message, code=error.code, unfinished=error.suspect or error.unfinished
    )


def _systemctl(do: str, unit: str) -> None:
    try:
        subprocess.run(["systemctl", do, unit], check=True, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise RuntimeError(f"systemctl {do} {unit}: {said.strip()}") from None


class UnitProcesses:
    """Returns the pids of these systemd units when called. cgroups: the folder, for tests."""

    def __init__(self, units: Sequence[str], cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._units, self._cgroups = tuple(units), cgroups
        self._paths: dict[str, Path] = {}
        self._searched_at: dict[str, float] = {}

    def __call__(self) -> Collection[int]:
        return {pid for unit in self._units for pid in self._of(unit)}

    def _of(self, unit: str) -> list[int]:
        path = self._paths.get(unit)
        if path is None or not path.exists():
            path = self._find(unit)
        if path is None:
            return []
        found = []
        for file in path.rglob("cgroup.procs"):
            try:
                found += [int(line) for line in file.read_text().split()]
            except (OSError, ValueError):
                continue  # the unit ended meanwhile
        return found

    def _find(self, unit: str) -> Path | None:
        now = time.monotonic()
        if now - self._searched_at.get(unit, -1e9) < FIND_AGAIN_SECONDS:
            return None
        self._searched_at[unit] = now
        command = ["systemctl", "show", "--property=ControlGroup", "--value", unit]
        try:
            said = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            return None
        group = said.strip().lstrip("/")
        if not group:
            return None
        self._paths[unit] = self._cgroups / group
        return self._paths[unit]
