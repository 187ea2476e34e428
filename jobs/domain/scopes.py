"""What a key may do. Pure."""

from __future__ import annotations

from enum import StrEnum


class Scope(StrEnum):
    SUBMIT = "submit"
    READ = "read"
    """Jobs, their results and their events."""
    CANCEL = "cancel"
    OPERATE = "operate"
    """Everything under /admin, and every tenant's jobs; of an operator's key only."""


ALL = frozenset(Scope)
EVERYBODYS = ALL - {Scope.OPERATE}
