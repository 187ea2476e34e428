"""Well-behaved and misbehaving models. Sizes in MiB, small enough for any machine."""

# ruff: noqa: T201  (models print)

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpu_host.handlers import BadInput, Cancelled, OutOfMemory, RunContext, TransientGpuError
from gpu_host.handlers.code import ModelCode
from gpu_host.local.frames import Pipe
from tests.gpu_host.local.unspeakable import Mute, Unspeakable, broken

_MIB = 1024 * 1024
_leaked: list[bytearray] = []
_kept: list[RunContext] = []


def filled(mib: int) -> bytearray:
    """Return memory with every page written."""
    return bytearray(b"x") * (mib * _MIB)


class Sized:
    """Uses a fixed amount of memory while it is loaded."""

    mib = 150
    vram_mb = 200

    def load(self) -> None:
        self.weights = filled(self.mib)

    def run(self, payload: Any, ctx: RunContext) -> Any:
        until = payload.get("until") if isinstance(payload, dict) else None
        while until and not Path(until).exists():
            ctx.wait(0.02)
        return {"model": ctx.model_name, "pid": os.getpid(), "echo": payload}


class A(Sized):
    pass


class B(Sized):
    pass


class C(Sized):
    pass


class Keeps(Sized):
    """Frees nothing when it is unloaded, which is as soon as it is idle."""

    warm_seconds = 0

    def unload(self) -> None:
        _leaked.append(self.weights)


class LargeRuns(Sized):
    """Needs far more to run than to be loaded."""

    vram_mb = 800


class KeepsContext(Sized):
    """Keeps the context of its run, as an author's cache might."""

    warm_seconds = 0

    def run(self, payload: Any, ctx: RunContext) -> Any:
        _kept.append(ctx)
        return None


class Huge(Sized):
    vram_mb = 50_000_000


class Understated(Sized):
    """Has less memory than it needs while another model is loaded, whatever it declared."""

    vram_mb = 10

    def load(self) -> None:
        if any(one.handle is not None for one in _loaded()):
            raise OutOfMemory("too little is left")
        self.weights = b""


def _loaded() -> list[Any]:
    """The other models of this process."""
    return [one for one in gc.get_objects() if isinstance(one, ModelCode) and one.name == "a"]


class Leaks:
    """Loses memory with every run."""

    vram_mb = 50

    def run(self, payload: Any, ctx: RunContext) -> Any:
        _leaked.append(filled(payload["mib"]))
        return os.getpid()


class Twice:
    """Runs twice at a time."""

    at_once = 2
    vram_mb = 10

    def run(self, payload: Any, ctx: RunContext) -> Any:
        Path(payload["here"]).touch()
        while not Path(payload["until"]).exists():
            ctx.wait(0.02)
        return payload["here"]


class Pair:
    """Prints its name while two runs go on."""

    at_once = 2
    vram_mb = 10

    def run(self, payload: Any, ctx: RunContext) -> Any:
        Path(payload["here"]).touch()
        while not Path(payload["other"]).exists():
            ctx.wait(0.02)
        print(f"I am {payload['name']}")
        os.write(1, b"whose line is this\n")
        Path(payload["here"] + ".said").touch()
        while not Path(payload["other"] + ".said").exists():
            ctx.wait(0.02)


class Deaf:
    """Two runs at a time, and ignores cancels."""

    at_once = 2
    vram_mb = 10

    def run(self, payload: Any, ctx: RunContext) -> Any:
        if payload:
            Path(payload["here"]).touch()
            while not Path(payload.get("until", "")).is_file():
                time.sleep(0.02)
            if payload.get("crash"):
                ctypes.string_at(0)
            return os.getpid()
        while True:
            time.sleep(0.05)


class BadLoad:
    vram_mb = 10

    def load(self) -> None:
        raise ValueError("no weights")

    def run(self, payload: Any, ctx: RunContext) -> Any:
        return None


class LateFault:
    """Loses its GPU after its run; the library reports it when memory is freed."""

    vram_mb = 10
    warm_seconds = 0

    def run(self, payload: Any, ctx: RunContext) -> Any:
        cuda = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, empty_cache=broken)
        sys.modules["torch"] = SimpleNamespace(cuda=cuda)  # type: ignore[assignment]


class Wild:
    """Does what `do` in its payload says."""

    vram_mb = 10

    def run(self, payload: Any, ctx: RunContext) -> Any:
        return getattr(self, payload["do"])(payload, ctx)

    def echo(self, payload: Any, ctx: RunContext) -> Any:
        return os.getpid()

    def reports(self, payload: Any, ctx: RunContext) -> Any:
        ctx.report(0.5)
        ctx.log("half", step=1)
        ctx.partial("tok")
        (ctx.output_dir / "image.png").write_bytes(b"png")
        ctx.report(1.0, "saved\n")
        return [ctx.job_id, ctx.attempt_id, str(ctx.output_dir)]

    def saves(self, payload: Any, ctx: RunContext) -> Any:
        """Bytes, a file elsewhere, one in the run's folder by `save` and one by its path."""
        elsewhere = Path(os.environ["TEST_FOLDER"]) / "elsewhere.bin"
        elsewhere.write_bytes(b"elsewhere")
        (ctx.output_dir / "here.png").write_bytes(b"here")
        (ctx.output_dir / "sub").mkdir()
        (ctx.output_dir / "sub" / "named.png").write_bytes(b"named")
        return {
            "bytes": ctx.save(b"bytes", name=payload["name"], content_type="image/x-test"),
            "files": [ctx.save(elsewhere), ctx.save(ctx.output_dir / "here.png")],
            "path": str(ctx.output_dir / "sub" / "named.png"),
            "folder": str(ctx.output_dir),
            "missing": str(ctx.output_dir / "missing.png"),
        }

    def crashes(self, payload: Any, ctx: RunContext) -> Any:
        ctypes.string_at(0)

    def exits(self, payload: Any, ctx: RunContext) -> Any:
        os._exit(3)

    def is_killed(self, payload: Any, ctx: RunContext) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def raises(self, payload: Any, ctx: RunContext) -> Any:
        raise {
            "input": BadInput("no prompt"),
            "transient": TransientGpuError("again"),
            "memory": OutOfMemory("too large"),
            "sticky": RuntimeError("CUDA error: an illegal memory access was encountered"),
            "exit": SystemExit(1),
        }.get(payload["what"]) or ValueError(payload["what"])

    def hangs(self, payload: Any, ctx: RunContext) -> Any:
        """Ignores its cancel."""
        if "here" in payload:
            Path(payload["here"]).touch()
        while True:
            time.sleep(0.05)

    def waits(self, payload: Any, ctx: RunContext) -> Any:
        """Stops after its cancel."""
        Path(payload["here"]).touch()
        ctx.wait(None)

    def garbage(self, payload: Any, ctx: RunContext) -> Any:
        sys.stdout.write("\x00\x00\x00\x05hello garbage\n")
        sys.stdout.flush()
        os.write(1, os.urandom(2000) + b"\n")
        os.write(2, b"to stderr\n" * 200)
        return "clean"

    def prints(self, payload: Any, ctx: RunContext) -> Any:
        """All ways to write a line."""
        print("loading", "weights")
        print("to stderr", file=sys.stderr)
        for percent in (10, 50, 100):
            sys.stderr.write(f"\r{percent}%")
        sys.stderr.write("\n")
        ctx.log("said", level="warning", size=[1, 2])
        thread = threading.Thread(target=print, args=("by a helper",))
        thread.start()
        thread.join()
        os.write(1, b"past python\n")
        subprocess.run([sys.executable, "-c", "print('by a child')"], check=True)
        context = multiprocessing.get_context("fork")
        child = context.Process(target=print, args=("by a fork",), kwargs={"flush": True})
        child.start()
        child.join()
        sys.stdout.write("without an end")
        return child.exitcode

    def dies_with_words(self, payload: Any, ctx: RunContext) -> Any:
        os.write(2, b"glibc: corrupted list\n")
        os._exit(3)

    def logs_later(self, payload: Any, ctx: RunContext) -> Any:
        """Log from a thread that outlives the run."""

        def later() -> None:
            while not Path(payload["go"]).exists():
                time.sleep(0.01)
            ctx.log("too late")
            Path(payload["said"]).touch()

        threading.Thread(target=later, daemon=True).start()

    def floods(self, payload: Any, ctx: RunContext) -> Any:
        """Many lines, and one of 50 MB."""
        for number in range(payload["lines"]):
            print(f"line {number}")
        print("x" * 50_000_000)
        return "done"

    def environment(self, payload: Any, ctx: RunContext) -> Any:
        return sorted(os.environ)

    def not_json(self, payload: Any, ctx: RunContext) -> Any:
        return {1, 2}

    def mute(self, payload: Any, ctx: RunContext) -> Any:
        raise Mute

    def end_mute(self, payload: Any, ctx: RunContext) -> Any:
        return Unspeakable({"a": 1})

    def spoil(self, payload: Any, ctx: RunContext) -> Any:
        """The process can't send the end of this run."""
        Pipe.send = broken  # type: ignore[method-assign]

    def cancels_itself(self, payload: Any, ctx: RunContext) -> Any:
        raise Cancelled

    def forks(self, payload: Any, ctx: RunContext) -> Any:
        """One child that returns from here, and one that leaves its session and stays."""
        if os.fork() == 0:
            return "from the fork"
        pid = os.fork()
        if pid == 0:
            os.setsid()
            Path(payload["here"]).write_text(str(os.getpid()))
            time.sleep(600)
            os._exit(0)  # it ends in any case, even without its warden
        while not Path(payload["here"]).exists() or not Path(payload["here"]).read_text():
            time.sleep(0.01)
        if payload.get("then"):
            return getattr(self, payload["then"])(payload, ctx)
        return "from the parent"


class SlowLoad(BadLoad):
    def load(self) -> None:
        wait_in("loading")


def wait_in(name: str) -> None:
    """Says that it is there, and waits for ``go``."""
    folder = Path(os.environ["TEST_FOLDER"])
    (folder / name).touch()
    while not (folder / "go").exists():
        time.sleep(0.02)


class BadLoadCrashes(BadLoad):
    def load(self) -> None:
        ctypes.string_at(0)


MODELS = {
    "bad_load_crashes": BadLoadCrashes,
    "slow_load": SlowLoad,
    "large_runs": LargeRuns,
    "a": A,
    "b": B,
    "c": C,
    "keeps": Keeps,
    "huge": Huge,
    "leaks": Leaks,
    "understated": Understated,
    "keeps_context": KeepsContext,
    "twice": Twice,
    "pair": Pair,
    "bad_load": BadLoad,
    "wild": Wild,
    "deaf": Deaf,
    "late_fault": LateFault,
}
