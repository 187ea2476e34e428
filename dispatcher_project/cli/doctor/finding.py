"""What a check found, and what the checks look through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import Any

from jobs.ports import Ports


class Level(IntEnum):
    """The worst of all findings is the exit status."""

    OK = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """what: as it is. means, todo: for an operator who does not know the code; empty when all is well."""

    level: Level
    check: str
    what: str
    means: str = ""
    todo: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """redis_facts: INFO of the Redis at REDIS_URL, with `time` (seconds since the epoch); raises what is in
    `gpus.leasing.scripts.FAILURES`. consumed: queue → workers, None if the broker does not answer.
    free_bytes: of the disk under a path. web: what the web answers to `/readyz?strict=1`: status and body;
    raises OSError where it does not."""

    ports: Ports
    now: datetime
    redis_facts: Callable[[], Mapping[str, Any]]
    consumed: Callable[[], Mapping[str, list[str]] | None]
    free_bytes: Callable[[Path], int]
    data_folder: Path
    wall_clock: Callable[[], float]
    web: Callable[[], tuple[int, Mapping[str, Any]]]


Check = Callable[[View], Iterator[Finding]]
