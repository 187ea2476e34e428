"""What is known about a job at one moment: what `decide.explain` decides by; and what a reason is. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpus.leasing.values import Outlook
from jobs.domain.errors import Refused
from jobs.domain.quota import Quota
from jobs.domain.states import JobState


@dataclass(frozen=True, slots=True)
class Reason:
    """code: stable. evidence: what it was decided by. change: what would change it."""

    code: str
    message: str
    change: str
    evidence: dict[str, Any] = field(default_factory=dict)


class Later(StrEnum):
    """Why a job is not due yet."""

    RETRY = "retry"
    RUN_AT = "run_at"


class Index(StrEnum):
    WHOLE = "whole"
    REBUILDING = "rebuilding"
    AWAY = "away"
    """Redis does not answer."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Those that the model is registered on, as the registry has them. slots: of those that are on; unfit: of
    those, they that have none, failed their last look at their health or are too small; too_small: of those
    that are on and healthy, they whose GPU has less memory than the model needs; missing_runner: the model's
    type, where no runner of it is installed and no pinned server has the model."""

    on: int = 0
    draining: int = 0
    off: int = 0
    slots: int = 0
    unfit: int = 0
    too_small: int = 0
    too_small_why: str = ""
    missing_runner: str = ""

    @property
    def total(self) -> int:
        return self.on + self.draining + self.off

    @property
    def fit(self) -> int:
        """Could run it, for all the registry knows."""
        return self.on - self.unfit if self.slots else 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """state: None for a job that is only thought of. refusals: what a submit of that one would be refused
    with. due_in_seconds: until it may stand in line. waited_seconds: since it was to start. queued_seconds:
    since it came into the line last. server, slot: where it runs. …_paused_seconds: since when; None where
    nothing is paused. quota: where it is known."""

    state: JobState | None
    model: str
    error_code: str = ""
    cancel_requested: bool = False
    server: str = ""
    slot: int = 0
    attempts: int = 0
    due_in_seconds: float | None = None
    later: Later = Later.RETRY
    waited_seconds: float = 0.0
    queued_seconds: float = 0.0
    system_paused_seconds: float | None = None
    model_paused_seconds: float | None = None
    tenant_paused_seconds: float | None = None
    refusals: tuple[Refused, ...] = ()
    quota: Quota | None = None
    servers: Servers = field(default_factory=Servers)
    index: Index = Index.WHOLE
    outlook: Outlook = field(default_factory=Outlook)
