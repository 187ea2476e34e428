"""A model process as its worker holds it: started, spoken to, ended."""

from __future__ import annotations

import contextlib
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

from foundation.network import Pace
from gpu_host.local.confinement import DEFAULT, Confinement
from gpu_host.local.device import members
from gpu_host.local.frames import MAX_FRAME_BYTES, Frame, Pipe, PipeBroken, printable
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
