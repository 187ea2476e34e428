"""The types of `doctor`: a finding, and the view of the system that checks read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import Any

from jobs.ports import Ports


class Level(IntEnum):
    """Severity of a finding; the highest is the exit status."""

    OK = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check, for an operator who does not know the code.

    Args:
        summary: the state.
        consequence, advice: empty when all is well.
    """

    level: Level
    check: str
    summary: str
    consequence: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """The sources that checks read.

    Args:
        redis_facts: INFO of the Redis at REDIS_URL, with `time` (seconds since the epoch); raises
            `gpus.leasing.scripts.FAILURES`.
        consumed: queue → workers; None if the broker does not answer.
        free_bytes: of the disk under a path.
        web: status and body of the web's `/readyz?strict=1`; raises OSError.
    """

    ports: Ports
    now: datetime
    redis_facts: Callable[[], Mapping[str, Any]]
    consumed: Callable[[], Mapping[str, list[str]] | None]
    free_bytes: Callable[[Path], int]
    data_folder: Path
    wall_clock: Callable[[], float]
    web: Callable[[], tuple[int, Mapping[str, Any]]]


Check = Callable[[View], Iterator[Finding]]
