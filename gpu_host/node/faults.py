"""Faults on order: what a simulated GPU server shall do wrong, and when; those on the wire are carried out
here.

A fault is ``{"fault": kind, …its arguments}``, in a payload or posted to ``/faults`` (module `simulator`).
"""

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
"""Besides these, any HTTP status from 300 to 599, as text or number: it is answered and nothing runs."""
PLACES = ("run", "status", "health", "cancel")
_REMEMBERED_JOBS = 10_000
NOT_JSON = b"<html><body>this is not the answer you expect</body></html>"
_DRIP_SECONDS = 5.0
_DRIP_PIECES = 50
_LATE_SECONDS = 5.0
_HUGE_BYTES = 64 * 1024 * 1024
_CHUNK = 64 * 1024


class BadOrder(ValueError):
    """The fault can't be ordered like this."""


@dataclass(slots=True)
class _ActiveFault:
    """An order posted to the node. left: None for no limit. until: monotonic seconds."""

    fault: Mapping[str, Any]
    on: str
    model: str
    left: int | None
    probability: float
    until: float | None


class FaultPlan:
    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._lock = threading.Lock()
        self._active: list[_ActiveFault] = []
        self._given: OrderedDict[str, int] = OrderedDict()

    def order(self, wish: Mapping[str, Any]) -> None:
        """``{"fault", "on"?: run|status|health|cancel, "model"?, "count"?, "probability"?, "seconds"?}``

        count: for that many requests (1 if nothing else limits it). seconds: for so long from now.
        Raises BadOrder.
        """
        _check_kind(wish.get("fault"))
        on = wish.get("on", "run")
        if on not in PLACES:
            raise BadOrder(f"on is one of {', '.join(PLACES)}, not {on!r}")
        probability, seconds, count = wish.get("probability"), wish.get("seconds"), wish.get("count")
        for name, value in (("probability", probability), ("seconds", seconds), ("count", count)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
                raise BadOrder(f"{name} is a number, not {value!r}")
        if count is None and probability is None and seconds is None:
            count = 1
        standing = _ActiveFault(
            dict(wish),
            on,
            str(wish.get("model", "")),
            None if count is None else int(count),
            1.0 if probability is None else float(probability),
            None if seconds is None else time.monotonic() + float(seconds),
        )
        with self._lock:
            self._active.append(standing)

    def clear(self) -> None:
        with self._lock:
            self._active.clear()

    def active(self) -> list[dict[str, Any]]:
        with self._lock:
            return [{**one.fault, "left": one.left} for one in self._live()]

    def take(self, on: str, *, model: str = "") -> Mapping[str, Any] | None:
        """The fault for this request, used up by it."""
        with self._lock:
            for one in self._live():
                if one.on != on or (one.model and one.model != model) or self._chance() >= one.probability:
                    continue
                if one.left is not None:
                    one.left -= 1
                return one.fault
        return None

    def take_payload(self, payload: Any, job_id: str) -> Mapping[str, Any] | None:
        """The fault that the payload itself asks for; ``times``: for that many requests of the job.
        Raises BadOrder."""
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
    """The HTTP status that the fault is, if it is one."""
    kind = str(fault["fault"])
    return int(kind) if kind.isdigit() else None


def _check_kind(kind: Any) -> None:
    text = str(kind)
    if text in KINDS or (text.isdigit() and 300 <= int(text) <= 599):
        return
    raise BadOrder(f"fault is an HTTP status or one of {', '.join(sorted(KINDS))}, not {kind!r}")


class ServedNode(Protocol):
    """What of a `gpu_host.node.server.Node` its routes use."""

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
    """The order with its fault, and the reply if nothing shall run. Raises BadOrder."""
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
    """The fault as the whole reply. answer: the honest one, which a late server gives in the end."""
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
    return with_result(fault, b'{"status": "error"}', node)


def delay(fault: Mapping[str, Any] | None, node: ServedNode) -> None:
    """Waits, if that is the fault."""
    if fault and fault["fault"] == "late":
        node.stopping.wait(float(fault.get("delay_seconds", _LATE_SECONDS)))


def with_result(
    fault: Mapping[str, Any] | None,
    answer: bytes,
    node: ServedNode,
    on_end: Callable[[bool], None] | None = None,
) -> Reply:
    """The reply that carries a run's end, as its fault wants it."""
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
