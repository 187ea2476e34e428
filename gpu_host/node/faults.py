"""Faults that a simulated GPU server has on request: which, when, and those of its replies.

A fault is ``{"fault": kind, …its arguments}``, in a payload or posted to ``/faults`` (module `simulator`)."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gpu_host.node.admission import Admission
from gpu_host.node.config import NodeConfig
from gpu_host.node.handlers import Handler
from gpu_host.node.http_server import CUT, Reply, reply_error, reply_json
from gpu_host.node.runs import RunLog, RunOrder

KINDS = frozenset(
    {"hang", "drop_reply", "restart", "slow", "late", "idle", "wrong_json", "huge_reply", "fail", "cuda"}
)
"""Besides these, any HTTP status from 300 to 599 (text or number): the node answers with it and starts no
run.
"""
PLACES = ("run", "status", "health", "cancel")
_REMEMBERED_JOBS = 10_000
NOT_JSON = b"<html><body>this is not the answer you expect</body></html>"
_DRIP_SECONDS = 5.0
_DRIP_PIECES = 50
_LATE_SECONDS = 5.0
_HUGE_BYTES = 64 * 1024 * 1024
_CHUNK = 64 * 1024


class BadFault(ValueError):
    """The fault is not valid; the message says why."""


@dataclass(slots=True)
class _ActiveFault:
    """A fault posted to the node. left: requests it still applies to; None: no limit. until: monotonic
    seconds."""

    fault: Mapping[str, Any]
    on: str
    model: str
    left: int | None
    probability: float
    until: float | None


class FaultPlan:
    """The faults that were posted, and those of payloads. chance: returns a random number, 0 to 1."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._lock = threading.Lock()
        self._active: list[_ActiveFault] = []
        self._given: OrderedDict[str, int] = OrderedDict()

    def add(self, fault: Mapping[str, Any]) -> None:
        """Add ``{"fault", "on"?: run|status|health|cancel, "model"?, "count"?, "probability"?, "seconds"?}``.

        count: for that many requests (1 if nothing else limits it). seconds: for so long from now. Raises
        BadFault."""
        _check_kind(fault.get("fault"))
        on = fault.get("on", "run")
        if on not in PLACES:
            raise BadFault(f"on is one of {', '.join(PLACES)}, not {on!r}")
        probability, seconds, count = fault.get("probability"), fault.get("seconds"), fault.get("count")
        for name, value in (("probability", probability), ("seconds", seconds), ("count", count)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise BadFault(f"{name} is a number, not {value!r}")
        if count is None and probability is None and seconds is None:
            count = 1
        active = _ActiveFault(
            dict(fault),
            on,
            str(fault.get("model", "")),
            None if count is None else int(count),
            1.0 if probability is None else float(probability),
            None if seconds is None else time.monotonic() + float(seconds),
        )
        with self._lock:
            self._active.append(active)

    def clear(self) -> None:
        """Remove all posted faults."""
        with self._lock:
            self._active.clear()

    def active(self) -> list[dict[str, Any]]:
        """Return the posted faults that still apply."""
        with self._lock:
            return [{**one.fault, "left": one.left} for one in self._live()]

    def take(self, on: str, *, model: str = "") -> Mapping[str, Any] | None:
        """Return the fault for this request, and count it as used; None if there is none."""
        with self._lock:
            for one in self._live():
                if one.on != on or (one.model and one.model != model) or self._chance() >= one.probability:
                    continue
                if one.left is not None:
                    one.left -= 1
                return one.fault
        return None

    def take_payload(self, payload: Any, job_id: str) -> Mapping[str, Any] | None:
        """Return the fault that the payload asks for. ``times``: only for that many requests of the job.
        Raises BadFault."""
        if not isinstance(payload, Mapping) or payload.get("fault") is None:
            return None
        _check_kind(payload["fault"])
        times = payload.get("times")
        if isinstance(times, int) and job_id:
            with self._lock:
                given = self._given.get(job_id, 0)
                if given >= times:
                    return None
                self._given[job_id] = given + 1
                while len(self._given) > _REMEMBERED_JOBS:
                    self._given.popitem(last=False)
        return payload

    def _live(self) -> list[_ActiveFault]:
        now = time.monotonic()
        self._active = [
            one
            for one in self._active
            if (one.left is None or one.left > 0) and (one.until is None or now < one.until)
        ]
        return self._active


def status_of(fault: Mapping[str, Any]) -> int | None:
    """Return the HTTP status if the fault is one, else None."""
    kind = str(fault["fault"])
    return int(kind) if kind.isdigit() else None


def _check_kind(kind: Any) -> None:
    text = str(kind)
    if text in KINDS or (text.isdigit() and 300 <= int(text) <= 599):
        return
    raise BadFault(f"fault is an HTTP status or one of {', '.join(sorted(KINDS))}, not {kind!r}")


class ServedNode(Protocol):
    """The part of a `gpu_host.node.server.Node` that its routes use."""

    config: NodeConfig
    simulates: bool
    faults: FaultPlan
    log: RunLog
    admission: Admission
    stopping: threading.Event

    @property
    def models(self) -> list[str]: ...

    def handler_for(self, first_segment: str) -> Handler | None: ...

    def health(self) -> dict[str, Any]: ...

    def restart(self, *, down_seconds: float = 0.0) -> None: ...


def before_run(order: RunOrder, node: ServedNode) -> tuple[RunOrder, Reply | None]:
    """Return the order with its fault, and a reply if no run shall start. Raises BadFault."""
    if not order.handler.simulates:
        return order, None
    fault = node.faults.take_payload(order.payload, order.job_id)
    fault = fault or node.faults.take("run", model=order.handler.model)
    if fault is None:
        return order, None
    if status_of(fault) is not None or fault["fault"] == "restart":
        return order, reply_of(fault, node)
    return dataclasses.replace(order, fault=fault), None


def reply_of(fault: Mapping[str, Any], node: ServedNode, answer: Callable[[], Reply] | None = None) -> Reply:
    """Return the reply of a fault that replaces the whole answer. answer: returns the real one (``late``)."""
    status = status_of(fault)
    if status is not None:
        retry_after = fault.get("retry_after")
        headers = {} if retry_after is None else {"Retry_After": str(retry_after)}
        return reply_error(status, "fault_on_order", str(fault.get("message", f"fault {status}")), **headers)
    kind = fault["fault"]
    if kind == "restart":
        node.restart(down_seconds=float(fault.get("down_seconds", 0.0)))
        return CUT
    if kind == "late" and answer is not None:
        delay(fault, node)
        return answer()
    if kind == "idle":
        return reply_json({**node.health(), "active_jobs": 0, "jobs": []})
    if kind == "drop_reply":
        return CUT
    if kind == "hang":
        return Reply(hold=True)
    return result_reply(fault, b'{"status": "error"}', node)


def delay(fault: Mapping[str, Any] | None, node: ServedNode) -> None:
    """Wait, if the fault is ``late``."""
    if fault and fault["fault"] == "late":
        node.stopping.wait(float(fault.get("delay_seconds", _LATE_SECONDS)))


def result_reply(
    fault: Mapping[str, Any] | None,
    answer: bytes,
    node: ServedNode,
    on_end: Callable[[bool], None] | None = None,
) -> Reply:
    """Return the reply with a run's result, changed by its fault."""
    kind = fault["fault"] if fault else None
    if fault and kind == "slow":
        return Reply(chunks=_drip(answer, float(fault.get("drip_seconds", _DRIP_SECONDS)), node))
    if kind == "wrong_json":
        return Reply(body=NOT_JSON)
    if fault and kind == "huge_reply":
        return Reply(chunks=_huge(int(fault.get("reply_bytes", _HUGE_BYTES))))
    return Reply(body=answer, on_end=on_end)


def _drip(body: bytes, seconds: float, node: ServedNode) -> Iterator[bytes]:
    size = max(1, -(-len(body) // _DRIP_PIECES))
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    for piece in pieces:
        yield piece
        node.stopping.wait(seconds / len(pieces))


def _huge(size: int) -> Iterator[bytes]:
    yield b'{"status": "success", "result": "'
    for _ in range(size // _CHUNK):
        yield b"x" * _CHUNK
    yield b'"}'
