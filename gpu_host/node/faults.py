"""Faults on order: what a simulated GPU server shall do wrong, and when.

A fault is ``{"fault": kind, …its arguments}``, in a payload or posted to ``/faults`` (module `simulator`).
"""

from __future__ import annotations

import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

KINDS = frozenset(
    {"hang", "drop_reply", "restart", "slow", "late", "idle", "wrong_json", "huge_reply", "fail", "cuda"}
)
"""Besides these, any HTTP status from 300 to 599, as text or number: it is answered and nothing runs."""
PLACES = ("run", "status", "health", "cancel")
_REMEMBERED_JOBS = 10_000


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
