"""What a run answers to a step, and what others may ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpus.errors import GpuError
from jobs.domain.errors import STOPPED_BY_DEADLINE
from jobs.domain.retry import Ending


class DeadlineExceeded(GpuError):
    """The job's deadline passed while it ran."""

    code = STOPPED_BY_DEADLINE
    counts = False
    retryable = False


class Order(StrEnum):
    """What others ask of a run. The first of these that is set wins, in this order."""

    LOST = "lost"
    """The lease is somebody else's."""
    STOP = "stop"
    """The start was refused by the database: nothing of this run may count."""
    OVER = "over"
    """Its attempt was ended elsewhere, as lost: its result would be refused."""
    CANCEL = "cancel"
    INTERRUPT = "interrupt"
    """The grace of a deploy is over, or the operator switched the server off."""
    HAND_OVER = "hand_over"


@dataclass(frozen=True, slots=True)
class Wait:
    """Call `step` again after this long, or at once when woken."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Remote:
    """The server accepted the run: commit this id, then go on stepping."""

    remote_id: str


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Somebody else goes on with the remote id; nothing ended."""


@dataclass(frozen=True, slots=True)
class Over:
    """The attempt's end. evidence: what proved the slot free, where something did. usage: see `Finished`.
    refused_url: where nothing listened when the connection had broken."""

    ending: Ending
    result: Any = None
    evidence: str = ""
    usage: Mapping[str, Any] | None = None
    refused_url: str = ""


Step = Wait | Remote | HandedOver | Over
