"""What is known about a job at one moment: what `decide.explain` decides by. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpus.leasing.outlook import Outlook
from jobs.states import JobState


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
    """Those that the model is registered on, as the registry has them. slots: of those that are on."""

    on: int = 0
    draining: int = 0
    off: int = 0
    slots: int = 0

    @property
    def total(self) -> int:
        return self.on + self.draining + self.off


@dataclass(frozen=True, slots=True)
class Snapshot:
    """state: None for a job that is only thought of. due_in_seconds: until it may stand in line. server,
    slot: where it runs. …_paused_seconds: since when; None where nothing is paused."""

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
    system_paused_seconds: float | None = None
    model_paused_seconds: float | None = None
    tenant_paused_seconds: float | None = None
    servers: Servers = field(default_factory=Servers)
    index: Index = Index.WHOLE
    outlook: Outlook = field(default_factory=Outlook)
