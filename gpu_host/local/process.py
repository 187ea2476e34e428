"""The model process as the worker holds it: `ModelProcess` starts it, exchanges frames and ends it.

`ProcessOwner` spawns one at a time, waits for its answers, and replaces it."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foundation.network import ByteRateLimiter
from gpu_host.handlers.code import Declared
from gpu_host.local.confinement import DEFAULT_CONFINEMENT, Confinement
from gpu_host.local.device import session_pids
from gpu_host.local.frames import (
    ANSWERS,
    MAX_FRAME_BYTES,
    RUN_FRAMES,
    BadFrame,
    Frame,
    Pipe,
    PipeBroken,
    read_models,
    read_why,
)
from gpu_host.local.process_output import OnLine, ProcessOutput
from gpu_host.local.warden import SIGNALLED

_ALLOWED = re.compile(
    r"""
    (?# of the system)
    PATH | HOME | USER | LOGNAME | SHELL | HOSTNAME | LANG | LANGUAGE | LC_\w+ | TZ | TERM | TMPDIR | TEMP
    | TMP | XDG_\w+ | DBUS_\w+ | SSL_CERT_FILE | SSL_CERT_DIR | REQUESTS_CA_BUNDLE | CURL_CA_BUNDLE
    | LD_LIBRARY_PATH | LD_PRELOAD | DYLD_\w+ | MALLOC_\w+ | PYTHON\w* | VIRTUAL_ENV
    (?# of machine learning libraries)
    | (CUDA|CUDNN|CUBLAS|NVIDIA|NVCC|NCCL|HIP|HSA|ROCM|ROCR|TRITON|XLA|JAX|TF|TORCH|TORCHINDUCTOR|PYTORCH)_\w+
    | (CUPY|NUMBA|ONNXRUNTIME|ORT|OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|NUMEXPR|TBB|VECLIB|CONDA)_\w+
    | (HF|HUGGINGFACE|TRANSFORMERS|TOKENIZERS|DIFFUSERS|DATASETS|ACCELERATE|SAFETENSORS|VLLM|OLLAMA|LLAMA)_\w+
    (?# by which `up` finds its processes)
    | GPU_DISPATCHER_UP_RUN
    """,
    re.VERBOSE,
)
_CREDENTIAL = re.compile(r"TOKEN(?!IZERS)|SECRET|PASSW|CREDENTIAL|API_?KEY|PRIVATE_KEY|AUTH", re.IGNORECASE)


def model_environment(environment: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment variables that model code may see: those on a list, and `also`.

    All others stay with the worker: database and broker URLs, keys, tokens. also: further names
    (`DISPATCHER_MODEL_ENVIRONMENT`), which may be credentials of the models (``HF_TOKEN``)."""
    named = frozenset(also)
    return {name: value for name, value in environment.items() if name in named or _is_allowed(name)}


def _is_allowed(name: str) -> bool:
    return _ALLOWED.fullmatch(name) is not None and _CREDENTIAL.search(name) is None


ROOT = Path(__file__).resolve().parents[2]
KILL_SECONDS = 60.0
"""How long to wait for the warden's exit: the driver may take long to free a process' memory, and killing the
warden earlier would lose track of its children."""
_LOOK_SECONDS = 0.1
WARDEN = Path(__file__).with_name("warden.py")
FRAME_BYTES_PER_SECOND = 64 * 1024 * 1024


class ModelProcess:
    """One process, started by the constructor.

    on_frame: called with every frame, in a reader thread. on_exit: called once, after the last frame, with
    the reason of the exit. output: receives lines that are written past Python's streams. environment:
    added to the variables that models may see. confinement: limits of the process. max_frame_bytes: returns
    the limit of the next frame.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        on_frame: Callable[[Frame], None],
        on_exit: Callable[[str], None],
        output: OnLine,
        environment: Mapping[str, str] | None = None,
        confinement: Confinement = DEFAULT_CONFINEMENT,
        max_frame_bytes: Callable[[], int] = lambda: MAX_FRAME_BYTES,
    ) -> None:
        self._on_frame, self._on_exit = on_frame, on_exit
        ours, theirs = socket.socketpair()
        end_of_life, self._lifeline = os.pipe()
        self._lock = threading.Lock()
        self._protocol_error = ""
        self._max_frame_bytes = max_frame_bytes
        numbers = [str(theirs.fileno()), str(end_of_life)]
        child = [sys.executable, "-m", "gpu_host.local.child", numbers[0], *paths]
        warden = [sys.executable, "-I", "-S", str(WARDEN), *numbers, confinement.as_text(), *child]
        try:
            self._popen = subprocess.Popen(
                warden,
                pass_fds=(theirs.fileno(), end_of_life),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C must reach only the worker
                cwd=ROOT,
                env={**_inherited(confinement), **(environment or {})},
            )
        except BaseException:
            ours.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(end_of_life)
        self._pipe = Pipe(ours)
        self._reader = threading.Thread(target=self._read, name="model-frames", daemon=True)
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        self._output = ProcessOutput(self._popen.stdout, self._popen.stderr, output)
        self._printer = threading.Thread(target=self._output.read, name="model-output", daemon=True)
        self._reader.start()
        self._printer.start()
        threading.Thread(target=self._wait, name="model-process", daemon=True).start()

    @property
    def session(self) -> int:
        """The session (and process group) of the process and its warden."""
        return self._popen.pid

    @property
    def is_alive(self) -> bool:
        return self._popen.poll() is None

    def send(self, frame: Frame) -> None:
        """Send a frame; if the process does not read it, kill the process. Raises ValueError for a value that
        is not JSON."""
        try:
            self._pipe.send(frame)
        except PipeBroken:
            self.kill(wait=False)

    def kill(self, *, wait: bool = True) -> None:
        """Kill the process and everything that it started. wait: return only after its exit."""
        with self._lock:
            lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            os.close(lifeline)
            self._popen.send_signal(signal.SIGCONT)  # model code may have stopped its warden
        if not wait:
            return
        try:
            self._popen.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:  # its warden was killed, or a child does not exit
            self._kill_session()
            self._popen.wait()

    def _read(self) -> None:
        pace = ByteRateLimiter(
            FRAME_BYTES_PER_SECOND, lambda: FRAME_BYTES_PER_SECOND + self._max_frame_bytes()
        )

        def admit(size: int) -> None:
            if size > (most := self._max_frame_bytes()):
                raise PipeBroken(f"a frame of {size} bytes, {most} at most")
            pace.take(size)

        while True:
            try:
                frame = self._pipe.receive(admit)
            except PipeBroken as error:
                if self.is_alive and str(error) != "closed":
                    self._protocol_error = f"it broke the protocol: {error}"
                    self.kill(wait=False)
                return
            try:
                if frame.get("said") == "ended":  # its output came another way
                    self._output.settle()
                self._on_frame(frame)
            except Exception as error:  # otherwise its runs would never end
                self._protocol_error = f"its worker failed on a frame: {type(error).__name__}: {error}"
                self.kill(wait=False)
                return

    def _wait(self) -> None:
        status = self._popen.wait()
        while self._kill_session():  # the GPU is in use until all of them have exited
            time.sleep(_LOOK_SECONDS)
        self._reader.join(1.0)
        self._printer.join(0.2)  # its last lines may have the reason
        self._pipe.close()
        self.kill(wait=False)
        self._on_exit(self._protocol_error or _exit_text(status))

    def _kill_session(self) -> bool:
        """Kill the rest of its session, in any process group; needed if its warden was killed. False:
        no process is left."""
        try:
            left = session_pids(self._popen.pid)
        except OSError:  # no /proc here
            try:
                os.killpg(self._popen.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):  # PermissionError: only zombies are left
                return False
            return True
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return bool(left)


def _inherited(confinement: Confinement) -> dict[str, str]:
    kept = model_environment(os.environ, confinement.environment)
    if (user := confinement.user) is not None:
        kept = {name: value for name, value in kept.items() if not name.startswith(("XDG_", "DBUS_"))}
        kept |= {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
    path = [str(ROOT), *filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))]
    return {**kept, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}


def _exit_text(status: int) -> str:
    number = -status if status < 0 else status - SIGNALLED
    if number <= 0:
        return f"it exited with status {status}"
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = str(number)
    if number == signal.SIGKILL:
        return "it was killed (SIGKILL: by hand, or the system ran out of memory)"
    return f"it was ended by signal {number} ({name})"


Notification = Callable[[], None] | None
SPAWN_SECONDS = 300.0
"""Importing the models' modules may load gigabytes of libraries from a slow disk."""


_SLICE_SECONDS = 0.5
STUCK_SECONDS = 10.0
"""After this a killed process counts as stuck."""


def never() -> bool:
    """The default of `give_up`."""
    return False


class ProcessGone(Exception):
    """The process exited; the message says why. ours: it was ended by `ProcessOwner.end`."""

    def __init__(self, why: str, *, ours: bool = False) -> None:
        super().__init__(why)
        self.ours = ours


class Overdue(Exception):
    """The process did not answer in time."""


class GivenUp(Exception):
    """The run that waited for this operation was stopped."""


class CannotStart(Exception):
    """The models' code can't be imported, or breaks the contract."""


class ProcessOwner:
    """Spawns one model process at a time and exchanges frames with it.

    lock: guards all state here and in the classes that use this one; notified at every change. on_frame:
    receives frames about runs (``ended``, ``heard``). on_exit: called once per process, with the reason. Both
    are called with the lock held and may return a callback, which is called without it, since it may be slow.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        lock: threading.Condition,
        on_frame: Callable[[Frame], Notification],
        on_exit: Callable[[str], Notification],
        output: OnLine,
        environment: Mapping[str, str],
        confinement: Confinement = DEFAULT_CONFINEMENT,
        max_frame_bytes: Callable[[], int] = lambda: MAX_FRAME_BYTES,
    ) -> None:
        self.process: ModelProcess | None = None
        self.models: dict[str, Declared] = {}
        self.spawned = 0
        self._paths, self._lock, self._environment = paths, lock, environment
        self._confinement, self._max_frame_bytes = confinement, max_frame_bytes
        self._on_run_frame, self._notify_exit, self._output = on_frame, on_exit, output
        self.give_up: Callable[[], bool] = never
        """Called with the lock held while an answer is awaited; True: stop waiting."""
        self._answers: dict[str, Frame] = {}
        self._broken = ""
        self._exit_reason = "it was never started"
        self._ended_number = 0
        self._end_by = math.inf

    @property
    def session(self) -> int | None:
        process = self.process  # read without the lock
        return None if process is None else process.session

    @property
    def is_ending(self) -> bool:
        """Return True if the process was killed and has not exited yet: no run begins, no process is
        spawned."""
        return self.process is not None and self._ended_number == self.spawned

    @property
    def is_stuck(self) -> bool:
        """Return True if a killed process should have exited by now: one that hangs in the driver can't be
        killed."""
        return self.is_ending and time.monotonic() >= self._end_by

    def spawn(self) -> None:
        """Start a process and read its models, without the lock. Raises CannotStart, ProcessGone, Overdue,
        GivenUp."""
        with self._lock:
            self._answers.clear()
            self._broken = ""
            self.spawned += 1
            number = self.spawned
            self.process = ModelProcess(
                self._paths,
                on_frame=lambda frame: self._on_frame(number, frame),
                on_exit=lambda why: self._on_exit(number, why),
                output=self._output,
                environment=self._environment,
                confinement=self._confinement,
                max_frame_bytes=self._max_frame_bytes,
            )
        ready = self._await("ready", SPAWN_SECONDS)
        try:
            models = read_models(ready.get("models"))
        except BadFrame as error:
            self.end()
            raise CannotStart(f"the process sent no valid list of models: {error}") from error
        with self._lock:
            self.models = models

    def ask(self, frame: Frame, answer_kind: str, seconds: float) -> Frame:
        """Send a frame and return the answer of that kind, without the lock; one call at a time.

        seconds: limit of the wait. Raises ProcessGone, Overdue, GivenUp."""
        with self._lock:
            process = self.process
            self._answers.pop(answer_kind, None)
        if process is None:
            raise ProcessGone("it was ended before", ours=True)
        process.send(frame)
        return self._await(answer_kind, seconds)

    def end(self, only: ModelProcess | None = None) -> None:
        """Kill the process and its children, without the lock.

        Returns after the exit and the call of `on_exit`, or without them: `is_stuck` turns True STUCK_SECONDS
        after this call began. only: no effect if another process runs by now."""
        with self._lock:
            process = self.process
            if process is None or (only is not None and only is not process):
                return
            self._ended_number = self.spawned
            self._end_by = min(self._end_by, time.monotonic() + STUCK_SECONDS)
        process.kill()
        with self._lock:
            self._lock.wait_for(lambda: self.process is not process, timeout=STUCK_SECONDS)

    def raise_if_given_up(self) -> None:
        """Raise GivenUp if the run that waits was stopped. Called without the lock."""
        with self._lock:
            if self.give_up():
                raise GivenUp

    def _await(self, answer_kind: str, seconds: float) -> Frame:
        until = time.monotonic() + seconds
        with self._lock:
            while answer_kind not in self._answers:
                if self.process is None:
                    if self._broken:
                        raise CannotStart(self._broken)
                    raise ProcessGone(self._exit_reason, ours=self._ended_number == self.spawned)
                if self.give_up():
                    raise GivenUp
                left = until - time.monotonic()
                if left <= 0:
                    raise Overdue(f"the model process did not answer {answer_kind!r} in {seconds:.0f} s")
                self._lock.wait(min(left, _SLICE_SECONDS))
            return self._answers.pop(answer_kind)

    def _on_frame(self, number: int, frame: Frame) -> None:
        notification: Notification = None
        with self._lock:
            if number != self.spawned:
                return
            kind: Any = frame.get("said")
            if isinstance(kind, str) and kind in RUN_FRAMES:
                notification = self._on_run_frame(frame)
            elif kind == "broken":
                self._broken = read_why(frame.get("why"))
            elif isinstance(kind, str) and kind in ANSWERS:
                self._answers[kind] = frame
            else:
                raise BadFrame("a frame of unknown kind")
            self._lock.notify_all()
        if notification is not None:
            notification()

    def _on_exit(self, number: int, why: str) -> None:
        with self._lock:
            if number != self.spawned:
                return
            self.process, self._end_by = None, math.inf
            self._exit_reason = why
            notification = self._notify_exit(why)
            self._lock.notify_all()
        if notification is not None:
            notification()
