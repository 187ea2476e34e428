"""Carries out the faults that are seen on the wire; those inside a run are the simulator's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpu_host.node.faults import status_of
from gpu_host.node.runs import RunOrder
from gpu_host.node.served import ServedNode
from gpu_host.node.wire import CUT, Reply, reply_error, reply_json

NOT_JSON = b"<html><body>this is not the answer you expect</body></html>"
_DRIP_SECONDS = 5.0
_DRIP_PIECES = 50
_LATE_SECONDS = 5.0
_HUGE_BYTES = 64 * 1024 * 1024
_CHUNK = 64 * 1024


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
