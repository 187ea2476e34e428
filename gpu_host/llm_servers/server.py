"""One LLM server as a model: `load` starts it, `run` asks it, `unload` gives its memory back."""

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

from foundation.json_text import plain
from gpu_host.handlers import errors as told
from gpu_host.handlers.context import RunContext
from gpu_host.llm_servers.declared import LlmServerConfig
from gpus.errors import BadInput, ConnectFailed, GpuBusy, GpuError, GpuFault, Interrupted, RunFailed
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import Abort, Response, RunRequest
from gpus.runners.llm import LlmRunner
from gpus.runners.ollama_http import OllamaRunner, has_model
from gpus.runners.openai_http import OpenAiRunner
from gpus.runners.transport import HttpTransport

LOOK_SECONDS = 0.2
ASK_SECONDS = 2.0
TELL_SECONDS = 0.05
UNLOAD_SECONDS = 20.0
_BUSY_FIRST_SECONDS, _BUSY_CAP_SECONDS = 0.2, 5.0
_ANSWER_BYTES = 1024 * 1024
_RUNNERS: dict[str, type[LlmRunner]] = {runner.name: runner for runner in (OpenAiRunner, OllamaRunner)}

ASK_AGAIN_SECONDS = 2.0


class LlmServer:
    """`gpu_host.handlers`' contract. One per process; runs come in several threads."""

    def __init__(self, cotenant: LlmServerConfig) -> None:
        self._it = cotenant
        self.vram_mb, self.at_once = cotenant.vram_mb, cotenant.slots
        self.warm_seconds, self.min_resident = cotenant.warm_seconds, cotenant.min_resident
        self.held_outside = "ours" if cotenant.unit else "" if cotenant.command else "theirs"
        self.max_run_seconds, self.max_load_seconds = cotenant.max_run_seconds, cotenant.start_seconds + 60.0
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._transport = HttpTransport()
        spec = ModelSpec(
            cotenant.name,
            cotenant.name,
            model_type=cotenant.protocol,
            remote_model=cotenant.remote_model,
            max_run_seconds=cotenant.max_run_seconds or 365 * 86400.0,  # the worker's own limit counts
            max_response_bytes=cotenant.max_response_bytes,
            keep_alive_seconds=-1.0 if cotenant.protocol == "ollama" else None,
        )
        self._spec = spec
        self._endpoint = Endpoint(cotenant.name, cotenant.url, max_slots=cotenant.slots)
        self._runner = _RUNNERS[cotenant.protocol]

    # -- the contract ----------------------------------------------------------------------------------

    def load(self) -> None:
        """Raises RuntimeError with the reason if it does not come up."""
        with self._lock:
            self._start()

    def run(self, payload: Any, ctx: RunContext) -> Any:
        abort, over, words = Abort(), threading.Event(), _OutputBuffer(ctx)
        watch = threading.Thread(target=_watch, args=(ctx, abort, over, words), name="watch", daemon=True)
        watch.start()
        request = RunRequest(
            job_id=ctx.job_id,
            attempt_id=ctx.attempt_id,
            model=self._spec,
            endpoint=self._endpoint,
            payload=payload,
            slot=self._it.name,
            fence=0,
            report=words.add,
        )
        try:
            self._restart_if_ended(ctx, abort)
            return self._ask(request, ctx, abort)
        finally:
            over.set()
            watch.join()  # what a run says belongs before its end
            words.flush()

    def unload(self) -> None:
        with self._lock:
            if self._it.protocol == "ollama" and not self._it.command:
                with contextlib.suppress(GpuError):  # a server that is gone holds nothing
                    self._keep_alive(0)
                    self._wait_until_it_is_unloaded()
            if self._it.unit:
                _systemctl("stop", self._it.unit)
            self._stop()

    # -- runs --------------------------------------------------------------------------------------------

    def _ask(self, request: RunRequest, ctx: RunContext, abort: Abort) -> Any:
        """What the server is too busy for waits here: others may use it as well."""
        pause, started_again = _BUSY_FIRST_SECONDS, False
        while True:
            try:
                outcome = self._runner(self._spec).start(request, abort=abort)
                return plain(outcome.result)
            except GpuBusy as error:
                ctx.wait(error.retry_after_seconds or pause)
                pause = min(2 * pause, _BUSY_CAP_SECONDS)
            except ConnectFailed as error:  # nothing was sent: it ended just now
                if started_again or not self._restart_if_ended(ctx, abort):
                    raise _upstream_error(error) from error
                started_again = True
            except BadInput as error:
                raise told.BadInput(error.message) from None
            except GpuFault as error:
                raise told.TransientGpuError(error.message) from None
            except Interrupted:
                raise told.Cancelled from None
            except RunFailed as error:
                raise RuntimeError(error.message) from error
            except GpuError as error:
                raise _upstream_error(error) from error

    # -- its life ----------------------------------------------------------------------------------------

    def _is_up(self) -> bool:
        if not self._it.command:
            return True
        return self._process is not None and self._process.poll() is None

    def _restart_if_ended(self, ctx: RunContext, abort: Abort) -> bool:
        """Raises Cancelled as soon as the run is cancelled, whichever run starts it."""
        while not self._lock.acquire(timeout=LOOK_SECONDS):
            ctx.check()
        try:
            if self._is_up():
                return False
            ctx.log(f"{self._it.name} had ended: it is started again")
            self._start(ctx, abort)
        except Interrupted:
            raise told.Cancelled from None
        except GpuError as error:  # nothing of the run was sent
            raise told.UpstreamError(error.message, code=error.code) from error
        finally:
            self._lock.release()
        return True

    def _start(self, ctx: RunContext | None = None, abort: Abort | None = None) -> None:
        """ctx, abort: of the run that waits for it."""
        self._stop()
        if self._it.command:
            # a group of its own to end it by; the session stays this process': its memory is counted as ours,
            # and its warden ends it whatever happens here
            self._process = subprocess.Popen(
                self._it.command, stdin=subprocess.DEVNULL, stdout=sys.stderr, process_group=0
            )
        elif self._it.unit:
            _systemctl("start", self._it.unit)
        try:
            self._wait_until_it_serves(ctx)
            if self._it.protocol == "ollama":
                self._keep_alive(-1, abort)
        except (told.Cancelled, Interrupted):
            self._stop(signal.SIGKILL)  # a cancel has not the time for more, and nothing runs there yet
            raise
        except BaseException:
            self._stop()
            raise

    def _wait_until_it_serves(self, ctx: RunContext | None) -> None:
        until, why = time.monotonic() + self._it.start_seconds, "it was never asked"
        while time.monotonic() < until:
            if not self._is_up():
                assert self._process is not None
                raise RuntimeError(f"{self._it.name} ended with status {self._process.returncode}")
            try:
                health = self._runner.health(self._spec, self._endpoint, self._get)
                if health.ok:
                    return
                why = health.error
            except GpuError as error:
                why = f"{error.code}: {error.message}"
            if ctx is None:
                time.sleep(LOOK_SECONDS)
            else:
                ctx.wait(LOOK_SECONDS)
        raise RuntimeError(f"{self._it.name} does not serve after {self._it.start_seconds:.0f} s: {why}")

    def _stop(self, *signals: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for number in signals or (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._it.stop_seconds)
                break
        with contextlib.suppress(ProcessLookupError):  # what it left behind in its group
            os.killpg(process.pid, signal.SIGKILL)

    def _get(self, url: str) -> Response:
        return self._request("GET", url, None, ASK_SECONDS)

    def _keep_alive(self, seconds: int, abort: Abort | None = None) -> None:
        """An empty prompt loads the model, or with 0 unloads it. Raises GpuError, RuntimeError."""
        name = self._it.remote_model or self._it.name
        url = self._it.url.rstrip("/").removesuffix("/api") + "/api/generate"
        body = f'{{"model": "{name}", "keep_alive": {seconds}, "stream": false}}'.encode()
        limit = UNLOAD_SECONDS if seconds == 0 else self._it.start_seconds
        answer = self._request("POST", url, body, limit, abort)
        if answer.status != 200:
            raise RuntimeError(f"{self._it.name} answered {answer.status}: {answer.body[:200]!r}")

    def _wait_until_it_is_unloaded(self) -> None:
        """Ollama answers before: its list of what is loaded says when the memory is back."""
        name = self._it.remote_model or self._it.name
        url = self._it.url.rstrip("/").removesuffix("/api") + "/api/ps"
        until = time.monotonic() + UNLOAD_SECONDS
        while time.monotonic() < until and has_model(self._get(url), name):
            time.sleep(LOOK_SECONDS)

    def _request(
        self, method: str, url: str, body: bytes | None, seconds: float, abort: Abort | None = None
    ) -> Response:
        return self._transport.request(
            method,
            url,
            headers={"Accept": "application/json", "Content-Type": "application/json"},
            body=body,
            connect_timeout_seconds=ASK_SECONDS,
            deadline_seconds=seconds,
            max_bytes=_ANSWER_BYTES,
            abort=abort,
        )


class _OutputBuffer:
    """Joins a server's pieces of output: a handler may send 200 items a second, a server sends more."""

    def __init__(self, ctx: RunContext) -> None:
        self._ctx, self._text, self._said_at = ctx, "", time.monotonic()
        self._lock = threading.RLock()

    def add(self, kind: str, value: Any) -> None:
        if kind == "progress":
            self._ctx.report(value)
            return
        with self._lock:
            if not isinstance(value, str):
                self.flush()
                self._ctx.partial(value)
                return
            self._text += value
            if time.monotonic() - self._said_at >= TELL_SECONDS:
                self.flush()

    def flush(self) -> None:
        with self._lock:
            text, self._text, self._said_at = self._text, "", time.monotonic()
            if text:
                self._ctx.partial(text)


def _watch(ctx: RunContext, abort: Abort, over: threading.Event, words: _OutputBuffer) -> None:
    """A cancel ends the read; the last words don't wait for the next ones."""
    while not over.wait(TELL_SECONDS):
        words.flush()
        if ctx.cancelled:
            abort.fire()
            return


def _upstream_error(error: GpuError) -> told.UpstreamError:
    return told.UpstreamError(error.message, code=error.code, unfinished=error.suspect or error.unfinished)


def _systemctl(do: str, unit: str) -> None:
    try:
        subprocess.run(["systemctl", do, unit], check=True, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise RuntimeError(f"systemctl {do} {unit}: {said.strip()}") from None


class UnitProcesses:
    """Called, it names the processes of these units that run now. cgroups: the folder, for tests."""

    def __init__(self, units: Sequence[str], cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._units, self._cgroups = tuple(units), cgroups
        self._paths: dict[str, Path] = {}
        self._asked_at: dict[str, float] = {}

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
                continue  # it ended meanwhile
        return found

    def _find(self, unit: str) -> Path | None:
        now = time.monotonic()
        if now - self._asked_at.get(unit, -1e9) < ASK_AGAIN_SECONDS:
            return None
        self._asked_at[unit] = now
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
