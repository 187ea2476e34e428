"""The facts about a job at one moment, which `decide.explain` reads, and the type of a reason. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpus.leasing.values import QueueStatus
from jobs.domain.errors import Refused
from jobs.domain.quota import Quota
from jobs.domain.states import JobState


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job waits. code: stable. message: for people. change: what to do. evidence: the facts that it was
    decided by."""

    code: str
    message: str
    change: str
    evidence: dict[str, Any] = field(default_factory=dict)


class Later(StrEnum):
    """Why a job is not due yet."""

    RETRY = "retry"
    RUN_AT = "run_at"


class Index(StrEnum):
    """State of the queue's index in Redis."""

    WHOLE = "whole"
    REBUILDING = "rebuilding"
    AWAY = "away"
    """Redis does not answer."""


@dataclass(frozen=True, slots=True)
class Servers:
    """The model's servers in the registry.

    on, draining, off: number of servers by desired state. slots: of the servers that are on. unfit: servers
    that are on but have no slots, failed their last health check, or are too small. too_small: servers that
    are on and healthy but have less GPU memory than the model needs. missing_runner: the model's type if its
    runner is not installed and no pinned server has the model; else empty.
    """

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
        """Number of servers that can run the model according to the registry."""
        return self.on - self.unfit if self.slots else 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Facts about one job.

    state: None: not submitted yet. refusals: errors that a submit would get. due_in_seconds: until the job is
    queued. waited_seconds: since its earliest start. queued_seconds: since it was last queued. server, slot:
    where it runs. …_paused_seconds: duration of a pause; None: not paused. quota: None: no quota, or not
    read.
    """

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
    queue_status: QueueStatus = field(default_factory=QueueStatus)
