"""Handlers as model owners may write them."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

from gpu_host.node.handlers import BadInput, RunContext

begun, release = threading.Event(), threading.Event()


def only_payload(payload: Any) -> Any:
    return {"got": payload}


def with_context(payload: Any, ctx: RunContext) -> Any:
    return {"job": ctx.job_id, "attempt": ctx.attempt_id, "model": ctx.model_name}


def picky(payload: Any) -> Any:
    raise BadInput("not like this")


def broken(payload: Any) -> Any:
    return payload["missing"]


def out_of_memory(payload: Any) -> Any:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")


def not_json(payload: Any) -> Any:
    return {1, 2}


def not_a_number(payload: Any) -> Any:
    return float("nan")


def exits(payload: Any) -> Any:
    if payload == "stay":
        return "stayed"
    raise {"exit": SystemExit(1), "interrupt": KeyboardInterrupt()}[payload]


def says(payload: Any, ctx: RunContext) -> Any:
    """Uses every output of a run and leaves a file; fails on request of its payload."""
    ctx.log("half\ndone", step=1)
    ctx.report(0.5)
    ctx.partial("tok")
    (ctx.output_dir / "image.png").write_bytes(b"png")
    if payload == "fail":
        raise ValueError("deep inside")
    return str(ctx.output_dir)


def saves(payload: Any, ctx: RunContext) -> Any:
    """Saves the text of its payload as a file."""
    return {"file": ctx.save(payload.encode(), name="ä.txt", content_type="text/plain")}


def held(payload: Any, ctx: RunContext) -> Any:
    """Is half done until the test releases it."""
    ctx.report(0.5)
    begun.set()
    release.wait(30)
    return payload


def stubborn(payload: Any) -> Any:
    """Ignores its cancel."""
    release.wait(30)
    return "finished all the same"


not_a_function = 1


class Counting:
    """A class with a load and an unload; its object is the handle."""

    unloads = 0

    def load(self) -> None:
        self.runs = 0

    def run(self, payload: Any, ctx: RunContext) -> Any:
        self.runs += 1
        return {"runs": self.runs, "is_handle": ctx.model is self}

    def unload(self) -> None:
        Counting.unloads += 1


_own = logging.getLogger("a-model")


def prints(payload: Any, ctx: RunContext) -> Any:
    """Writes in every way; goes on once the test releases it, or at once with a payload."""
    print("first")  # noqa: T201
    ctx.log("said", level="warning", step=1)
    sys.stderr.write("to stderr\n")
    _own.error("by logging")
    if payload == "fail":
        raise ValueError("deep inside")
    for number in range(payload["lines"] if payload else 0):
        print(f"line {number}")  # noqa: T201
    while not payload and not release.is_set():
        ctx.wait(0.01)
    print("last", end="")  # noqa: T201
    return "ok"
