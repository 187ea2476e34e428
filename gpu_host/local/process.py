"""A model process as its worker holds it: started, spoken to, ended (`ModelProcess`). Its owner spawns one at
a time, exchanges frames with it, ends and replaces it (`ProcessOwner`)."""

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

from foundation.network import Pace
from gpu_host.handlers.code import Declared
from gpu_host.local.confinement import DEFAULT, Confinement
from gpu_host.local.device import members
from gpu_host.local.frames import (
    ANSWERS,
    MAX_FRAME_BYTES,
    RUN_FRAMES,
    BadFrame,
    Frame,
    Pipe,
    PipeBroken,
    printable,
    read_models,
    read_why,
)
from gpu_host.local.warden import SIGNALLED

_LISTED = re.compile(
    r"""
    (?# the system's)
    PATH | HOME | USER | LOGNAME | SHELL | HOSTNAME | LANG | LANGUAGE | LC_\w+ | TZ | TERM | TMPDIR | TEMP
    | TMP | XDG_\w+ | DBUS_\w+ | SSL_CERT_FILE | SSL_CERT_DIR | REQUESTS_CA_BUNDLE | CURL_CA_BUNDLE
    | LD_LIBRARY_PATH | LD_PRELOAD | DYLD_\w+ | MALLOC_\w+ | PYTHON\w* | VIRTUAL_ENV
    (?# of libraries that models are made with)
    | (CUDA|CUDNN|CUBLAS|NVIDIA|NVCC|NCCL|HIP|HSA|ROCM|ROCR|TRITON|XLA|JAX|TF|TORCH|TORCHINDUCTOR|PYTORCH)_\w+
    | (CUPY|NUMBA|ONNXRUNTIME|ORT|OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|NUMEXPR|TBB|VECLIB|CONDA)_\w+
    | (HF|HUGGINGFACE|TRANSFORMERS|TOKENIZERS|DIFFUSERS|DATASETS|ACCELERATE|SAFETENSORS|VLLM|OLLAMA|LLAMA)_\w+
    (?# what `up` finds its processes by)
    | GPU_DISPATCHER_UP_RUN
    """,
    re.VERBOSE,
)
_CREDENTIAL = re.compile(r"TOKEN(?!IZERS)|SECRET|PASSW|CREDENTIAL|API_?KEY|PRIVATE_KEY|AUTH", re.IGNORECASE)


def for_models(environment: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """Which of the worker's environment variables its models' code gets to see. What is not on the list stays
    with the worker: database and broker URLs, keys, tokens, whatever comes next.

    also: further names (`DISPATCHER_MODEL_ENVIRONMENT`), which may be credentials of the models' own
    (``HF_TOKEN``)."""
    named = frozenset(also)
    return {name: value for name, value in environment.items() if name in named or _is_listed(name)}


def _is_listed(name: str) -> bool:
    return _LISTED.fullmatch(name) is not None and _CREDENTIAL.search(name) is None


ROOT = Path(__file__).resolve().parents[2]
KILL_SECONDS = 60.0
"""The driver may take long to give up a process' memory; whoever kills the warden before that would know
nothing of what is left."""
_LOOK_SECONDS = 0.1
WARDEN = Path(__file__).with_name("warden.py")
FRAME_BYTES_PER_SECOND = 64 * 1024 * 1024
OUTPUT_BYTES_PER_SECOND = 4 * 1024 * 1024
"""A model that writes more than this waits for it."""
MAX_LINE_BYTES = 4096
LINES_PER_SECOND = 50


class ModelProcess:
    """Starts at once. hear: every frame, in a thread of this process; gone: once, with why it ended in words,
    after the last frame; output: lines that the models wrote to standard output or error.

    environment: added to what models may see of this process' own. confinement: what it may not do.
    most_bytes: of one frame, asked for each.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        on_frame: Callable[[Frame], None],
        on_exit: Callable[[str], None],
        output: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
        confinement: Confinement = DEFAULT,
        most_bytes: Callable[[], int] = lambda: MAX_FRAME_BYTES,
    ) -> None:
        self._on_frame, self._on_exit, self._output = on_frame, on_exit, output
        ours, theirs = socket.socketpair()
        end_of_life, self._lifeline = os.pipe()
        self._lock = threading.Lock()
        self._unheard = ""
        self._most_bytes = most_bytes
        numbers = [str(theirs.fileno()), str(end_of_life)]
        child = [sys.executable, "-m", "gpu_host.local.child", numbers[0], *paths]
        warden = [sys.executable, "-I", "-S", str(WARDEN), *numbers, confinement.as_text(), *child]
        try:
            self._popen = subprocess.Popen(
                warden,
                pass_fds=(theirs.fileno(), end_of_life),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C is its worker's to carry out
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
        self._printer = threading.Thread(target=self._print, name="model-output", daemon=True)
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
        """A process that does not take it is ended: `gone` says so. Raises ValueError for what is not
        JSON."""
        try:
            self._pipe.send(frame)
        except PipeBroken:
            self.kill(wait=False)

    def kill(self, *, wait: bool = True) -> None:
        """Ends it with all that it started."""
        with self._lock:
            lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            os.close(lifeline)
            self._popen.send_signal(signal.SIGCONT)  # model code may have stopped its warden
        if not wait:
            return
        try:
            self._popen.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:  # its warden was killed, or something does not die
            self._kill_group()
            self._popen.wait()

    def _read(self) -> None:
        pace = Pace(FRAME_BYTES_PER_SECOND, lambda: FRAME_BYTES_PER_SECOND + self._most_bytes())

        def admit(size: int) -> None:
            if size > (most := self._most_bytes()):
                raise PipeBroken(f"a frame of {size} bytes, {most} at most")
            pace.take(size)

        while True:
            try:
                frame = self._pipe.receive(admit)
            except PipeBroken as error:
                if self.is_alive and str(error) != "closed":
                    self._unheard = f"it does not speak the protocol: {error}"
                    self.kill(wait=False)
                return
            try:
                self._on_frame(frame)
            except Exception as error:  # a process that nobody listens to would hold its runs for ever
                self._unheard = f"what it said broke its worker: {type(error).__name__}: {error}"
                self.kill(wait=False)
                return

    def _wait(self) -> None:
        status = self._popen.wait()
        while self._kill_group():  # its GPU is not free before
            time.sleep(_LOOK_SECONDS)
        self._reader.join(1.0)
        self._printer.join(0.2)  # what it wrote last may say why
        self._pipe.close()
        self.kill(wait=False)
        self._on_exit(self._unheard or _exit_text(status))

    def _kill_group(self) -> bool:
        """Of its session, in whatever group: nobody else does once its warden was killed. False: nothing."""
        try:
            left = members(self._popen.pid)
        except OSError:  # no such folder there
            try:
                os.killpg(self._popen.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):  # the latter: what is left is over, but not reaped
                return False
            return True
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return bool(left)

    def _print(self) -> None:
        """Models may write without end: what is too much is counted, not kept."""
        stream = self._popen.stdout
        assert stream is not None
        second, lines, dropped = 0, 0, 0
        pace = Pace(OUTPUT_BYTES_PER_SECOND, lambda: OUTPUT_BYTES_PER_SECOND)
        with stream:
            while line := stream.readline(MAX_LINE_BYTES):
                pace.take(len(line))
                now = int(time.monotonic())
                if now != second:
                    if dropped:
                        self._output(f"… {dropped} lines more")
                    second, lines, dropped = now, 0, 0
                lines += 1
                if lines > LINES_PER_SECOND:
                    dropped += 1
                    continue
                self._output(printable(line.decode(errors="replace").rstrip()))


def _inherited(confinement: Confinement) -> dict[str, str]:
    kept = for_models(os.environ, confinement.environment)
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


def never() -> bool:
    return False


class ProcessGone(Exception):
    """The process ended. The message says why. ours: it was ended by `ProcessOwner.end`."""

    def __init__(self, why: str, *, ours: bool = False) -> None:
        super().__init__(why)
        self.ours = ours


class Overdue(Exception):
    """The process did not answer in time."""


class GivenUp(Exception):
    """The run that asked for this operation was stopped."""


class CannotStart(Exception):
    """The models' code can't be imported, or breaks the contract."""


class ProcessOwner:
    """lock: of all state here and of the classes that use it; notified at every change.

    hear: frames about runs (``ended``, ``heard``); gone: once per process, with why; both with the lock held.
    What they return is called without it: others who are told may be slow.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        lock: threading.Condition,
        on_frame: Callable[[Frame], Notification],
        on_exit: Callable[[str], Notification],
        output: Callable[[str], None],
        environment: Mapping[str, str],
        confinement: Confinement = DEFAULT,
        most_bytes: Callable[[], int] = lambda: MAX_FRAME_BYTES,
    ) -> None:
        self.process: ModelProcess | None = None
        self.models: dict[str, Declared] = {}
        self.spawned = 0
        self._paths, self._lock, self._environment = paths, lock, environment
        self._confinement, self._most_bytes = confinement, most_bytes
        self._on_run_frame, self._notify_exit, self._output = on_frame, on_exit, output
        self.give_up: Callable[[], bool] = never
        """Called with the lock held while an answer is awaited; True: stop waiting."""
        self._answers: dict[str, Frame] = {}
        self._broken = ""
        self._last_words = "it was never started"
        self._ended = 0
        self._end_by = math.inf

    @property
    def session(self) -> int | None:
        process = self.process  # asked without the lock
        return None if process is None else process.session

    @property
    def is_ending(self) -> bool:
        """Return True if the process was killed and has not exited yet: no run begins, no process is
        spawned."""
        return self.process is not None and self._ended == self.spawned

    @property
    def is_stuck(self) -> bool:
        """Return True if a killed process should have exited by now: one that hangs in the driver can't be
        killed."""
        return self.is_ending and time.monotonic() >= self._end_by

    def spawn(self) -> None:
        """Without the lock. Raises CannotStart, ProcessGone, Overdue, GivenUp."""
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
                most_bytes=self._most_bytes,
            )
        ready = self._await("ready", SPAWN_SECONDS)
        try:
            models = read_models(ready.get("models"))
        except BadFrame as error:
            self.end()
            raise CannotStart(f"its process does not say which they are: {error}") from error
        with self._lock:
            self.models = models

    def ask(self, frame: Frame, said: str, seconds: float) -> Frame:
        """Without the lock; one question at a time. Raises ProcessGone, Overdue, GivenUp."""
        with self._lock:
            process = self.process
            self._answers.pop(said, None)
        if process is None:
            raise ProcessGone("it was ended before", ours=True)
        process.send(frame)
        return self._await(said, seconds)

    def end(self, only: ModelProcess | None = None) -> None:
        """Kill the process and its children, without the lock; return once they have exited and `on_exit` was
        called, or after `STUCK_SECONDS` more: then it `is_stuck`. only: do nothing if the process is another
        one by now."""
        with self._lock:
            process = self.process
            if process is None or (only is not None and only is not process):
                return
            self._ended = self.spawned
            self._end_by = min(self._end_by, time.monotonic() + STUCK_SECONDS)
        process.kill()
        with self._lock:
            self._lock.wait_for(lambda: self.process is not process, timeout=STUCK_SECONDS)

    def raise_if_given_up(self) -> None:
        """Without the lock. Raises GivenUp."""
        with self._lock:
            if self.give_up():
                raise GivenUp

    def _await(self, said: str, seconds: float) -> Frame:
        until = time.monotonic() + seconds
        with self._lock:
            while said not in self._answers:
                if self.process is None:
                    if self._broken:
                        raise CannotStart(self._broken)
                    raise ProcessGone(self._last_words, ours=self._ended == self.spawned)
                if self.give_up():
                    raise GivenUp
                left = until - time.monotonic()
                if left <= 0:
                    raise Overdue(f"the model process did not say {said!r} in {seconds:.0f} s")
                self._lock.wait(min(left, _SLICE_SECONDS))
            return self._answers.pop(said)

    def _on_frame(self, number: int, frame: Frame) -> None:
        tell: Notification = None
        with self._lock:
            if number != self.spawned:
                return
            said: Any = frame.get("said")
            if isinstance(said, str) and said in RUN_FRAMES:
                tell = self._on_run_frame(frame)
            elif said == "broken":
                self._broken = read_why(frame.get("why"))
            elif isinstance(said, str) and said in ANSWERS:
                self._answers[said] = frame
            else:
                raise BadFrame("a frame of no kind")
            self._lock.notify_all()
        if tell is not None:
            tell()

    def _on_exit(self, number: int, why: str) -> None:
        with self._lock:
            if number != self.spawned:
                return
            self.process, self._end_by = None, math.inf
            self._last_words = why
            tell = self._notify_exit(why)
            self._lock.notify_all()
        if tell is not None:
            tell()
