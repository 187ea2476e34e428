"""A handler that sleeps instead of computing, and simulates faults; `demo_fleet` serves it.

Payload: ``seconds`` (default: the model's own time), ``echo`` (returned), ``fault`` with its arguments:

=============  ==========================================================================================
an HTTP status  answered at once, nothing runs; ``retry_after``: that header
hang            the run never ends, unless cancelled
drop_reply      the run goes on, the connection is cut before the reply to its POST
restart         the node loses its runs and starts again; ``down_seconds``: refuses connections for so long
slow            the reply with the result is sent in small parts over ``drip_seconds`` (5)
late            the reply comes ``delay_seconds`` (5) late; by ``/faults`` also that of polls, probes, cancels
idle            ``/health`` reports no runs; by ``/faults`` only
wrong_json      the reply with the result is not JSON
huge_reply      the reply with the result has ``reply_bytes`` (64 MiB)
fail, cuda      the run fails; cuda: as a GPU fault
=============  ==========================================================================================

``times``: only for so many requests of the job on this node.

``video`` (an artifact) with ``retag`` (a text): the result has the film with the text in a box at its end.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_host.node.config import NodeConfig
from gpu_host.node.handlers import BadInput, RunContext
from gpu_host.node.server import Node

DEFAULT_SECONDS = {"zimg": 0.5, "flux": 1.0, "trellis": 4.0, "ltx2": 2.5}
_STEPS = 20
_LONGEST_SECONDS = 86_400.0
_LONGEST_TAG = 1000
_PIECE_BYTES = 1024 * 1024


def takes_faults(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a handler whose node applies ``fault`` of payloads and serves ``/faults``."""
    handler.takes_faults = True  # type: ignore[attr-defined]
    return handler


@takes_faults
def run(payload: Any, ctx: RunContext) -> dict[str, Any]:
    """Sleep in steps and report progress; the result has the model, the seconds and the echo."""
    options: Mapping[str, Any] = payload if isinstance(payload, Mapping) else {}
    seconds = _seconds(options, ctx.model_name)
    kind = ctx.fault["fault"] if ctx.fault else None
    if kind == "hang":
        ctx.wait(None)
    steps = _STEPS if seconds > 0.2 else 1
    for step in range(steps):
        ctx.wait(seconds / steps)
        ctx.report((step + 1) / steps, f"step {step + 1} of {steps}")
    if kind == "fail":
        raise RuntimeError("the simulated model failed")
    if kind == "cuda":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    result = {"model": ctx.model_name, "seconds": seconds, "echo": options.get("echo")}
    if "retag" in options:
        result["video"] = _retagged(options.get("video"), options["retag"], ctx)
    return result


def _retagged(video: Any, tag: Any, ctx: RunContext) -> dict[str, Any]:
    """Save a copy of an MP4 with a `free` box behind its last box, which players skip. It is copied in
    pieces, so its size takes no memory."""
    if not isinstance(tag, str) or len(tag) > _LONGEST_TAG:
        raise BadInput(f"retag is a text of up to {_LONGEST_TAG} characters")
    text = tag.encode(errors="replace")
    target = ctx.output_dir / "film.mp4"
    with ctx.open(video) as film, target.open("wb") as copy:
        while piece := film.read(_PIECE_BYTES):
            ctx.check()
            copy.write(piece)
        copy.write(struct.pack(">I4s", 8 + len(text), b"free") + text)
    return ctx.save(target, content_type="video/mp4")


@dataclass(frozen=True, slots=True)
class DemoServer:
    """One server of the demo fleet, as it is registered. model_fields: of the model's configuration."""

    server: str
    model: str
    endpoint: str
    slots: int
    model_fields: Mapping[str, Any]
    node: Node

    def entry(self) -> dict[str, Any]:
        """Return the server as `seed_up` registers it."""
        return {
            "server": self.server,
            "model": self.model,
            "endpoint": self.endpoint,
            "slots": self.slots,
            "model_fields": dict(self.model_fields),
        }


def demo_fleet(
    slots: Mapping[str, int], *, port_base: int = 0, host: str = "127.0.0.1", token: str = ""
) -> list[DemoServer]:
    """Start one node per model, in this process.

    slots: by model. port_base: the first port; 0 takes free ones. token: of all nodes. zimg is sync, the
    others are async. Stop them with `DemoServer.node.stop`."""
    fleet: list[DemoServer] = []
    try:
        for index, (model, count) in enumerate(slots.items()):
            port = port_base and port_base + index
            fleet.append(_demo_server(model, count, port=port, host=host, token=token))
    except OSError:
        for server in fleet:
            server.node.stop()
        raise
    return fleet


def _demo_server(model: str, slots: int, *, port: int, host: str, token: str) -> DemoServer:
    mode = "sync" if model == "zimg" else "async"
    node = Node(
        NodeConfig(
            handlers={model: "gpu_host.node.simulator:run"},
            slots=slots,
            port=port,
            host=host,
            token=token,
            mode=mode,
            keep_runs=200,
            log_runs=2000,
        )
    )
    node.start()
    fields: dict[str, Any] = {
        "model_type": mode,
        "cancel_endpoint_template": "/cancel/{job_id}",
        "max_run_seconds": 120.0,
    }
    if mode == "async":
        fields |= {"poll_endpoint_template": "/status/{id}", "id_field": "job_id", "poll_interval": 0.5}
    return DemoServer(f"{model}-server-1", model, f"{node.url}/{model}/generate", slots, fields, node)


def _seconds(options: Mapping[str, Any], model: str) -> float:
    seconds = options.get("seconds", DEFAULT_SECONDS.get(model, 0.1))
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise BadInput(f"seconds is a number, not {seconds!r}")
    if not 0 <= seconds <= _LONGEST_SECONDS:
        raise BadInput(f"seconds is 0 to {_LONGEST_SECONDS:.0f}, not {seconds!r}")
    return float(seconds)
