"""Who asks, what they may do, and what they may read: one rule for every answer, event and callback. Pure;
the table is docs/explanation/security.md, "What a tenant can read".

Messages of GPU servers and model code name addresses, paths and lines of code, so tenants read a text of ours
by the error's code. The exception is `bad_input`: that text was written for the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gpus.errors import BadInput


class Scope(StrEnum):
    """What a key may do."""

    SUBMIT = "submit"
    READ = "read"
    """Jobs, their results and their events."""
    CANCEL = "cancel"
    OPERATE = "operate"
    """Everything under /admin, and every tenant's jobs; of an operator's key only."""


ALL_SCOPES = frozenset(Scope)
TENANT_SCOPES = ALL_SCOPES - {Scope.OPERATE}
VIEW_PAYLOAD = "jobs.view_payload"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. tenant_id: whose jobs a submit makes; None for a staff session, which can't submit. name: as
    audit entries have it. user: of a staff session, which may do what its Django permissions say. scopes: of
    a key. models: names of those that the key may submit to; None: all of its tenant's.

    The two class attributes are what Django and DRF ask of a user.
    """

    tenant_id: int | None
    is_operator: bool
    name: str
    user: Any = field(default=None, compare=False)
    scopes: frozenset[str] = ALL_SCOPES
    models: frozenset[str] | None = None

    is_authenticated = True
    is_anonymous = False

    @property
    def pk(self) -> str:
        return self.name

    def has_perm(self, permission: str) -> bool:
        """permission: Django's, as in ``gpus.change_server``; an operator's key has all, a tenant's none."""
        return self.is_operator if self.user is None else bool(self.user.has_perm(permission))


def may_see_payloads(principal: Principal) -> bool:
    """Payloads and results: a key that may read, a staff session with the permission."""
    if principal.user is not None:
        return bool(principal.user.has_perm(VIEW_PAYLOAD))
    return Scope.READ in principal.scopes


def may_see_details(principal: Principal) -> bool:
    """Messages of GPU servers and model code, tracebacks, evidence."""
    return principal.is_operator


# -- what a tenant reads of failures and servers --------------------------------------------------

MAX_TEXT = 500
UNKNOWN = "The job failed."
TEXTS: Mapping[str, str] = {
    "bad_input": "The input was rejected.",
    "busy": "The GPU server was busy.",
    "cancelled": "Cancelled on request.",
    "cancelled_by_operator": "Cancelled by an operator.",
    "connect": "The GPU server could not be reached.",
    "credentials_refused": "The GPU server did not accept the dispatcher's credentials.",
    "deadline_exceeded": "The deadline passed before the job was over.",
    "does_not_fit": "The model needs more memory than the GPU has.",
    "gpu_fault": "The GPU failed.",
    "interrupted": "The run was interrupted; the attempt costs no try.",
    "lease_lost": "The run was given up: its worker lost the slot.",
    "lost_at_most_once": "The end of the run is unknown, and its model allows one run only.",
    "max_queued_exceeded": "The job waited for longer than `max_queued_seconds` allows.",
    "model_missing": "The GPU server does not have the model.",
    "out_of_memory": "The model ran out of memory.",
    "poison": "The process that ran the job died several times.",
    "run_failed": "The model failed.",
    "server_error": "The GPU server failed.",
    "server_lost": "The GPU server was lost while it had the job.",
    "start_deadline_exceeded": "The job did not start before its start deadline.",
    "stopped_by_deadline": "The deadline passed while the job ran; the run was stopped.",
    "timeout": "The run took longer than it may.",
}
"""By code."""
_OF_EVENTS = frozenset(
    {
        "job_id",
        "seq",
        "type",
        "at",
        "status",
        "attempt",
        "epoch",
        "round",
        "server",
        "slot",
        "due_at",
        "run_at",
    }
    | {"priority", "before", "error", "part", "progress", "output", "output_hidden", "left_out"}
)
"""Fields of events that tenants read. Not among them: `remote_id` and `evidence`, words of GPU servers."""


def shown_error(code: str, message: str, *, in_full: bool) -> dict[str, str] | None:
    """None without a code. in_full: for operators, as it was stored."""
    if not code:
        return None
    return {"code": code, "message": message if in_full else _text(code, message)}


def shown_evidence(evidence: str, *, in_full: bool) -> str | None:
    """What proved a slot free."""
    return (evidence or None) if in_full else None


def shown_event(data: Mapping[str, Any], *, in_full: bool) -> Mapping[str, Any]:
    """An event's data."""
    if in_full:
        return data
    shown = {name: value for name, value in data.items() if name in _OF_EVENTS}
    error = data.get("error")
    if isinstance(error, Mapping):
        shown["error"] = shown_error(str(error.get("code", "")), str(error.get("message", "")), in_full=False)
    return shown


def _text(code: str, message: str) -> str:
    if code != BadInput.code:
        return TEXTS.get(code, UNKNOWN)
    said = message.partition("\n\n")[0]  # what follows it in an attempt is the traceback
    return "".join(map(_printable, said[:MAX_TEXT].strip())) or TEXTS[code]


def _printable(character: str) -> str:
    """Escaped where a terminal or a log would take it for a command."""
    return character if character.isprintable() else ascii(character)[1:-1]
