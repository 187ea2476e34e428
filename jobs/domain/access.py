"""Permissions of a request's principal, and which fields of jobs, errors and events it may read. Pure; the
table is in docs/explanation/security.md, "What a tenant can read".

Messages of GPU servers and model code can contain addresses, paths and source lines. Tenants get a fixed text
by error code instead, except for `bad_input`, whose message is written for the client, and `run_failed`, of
which the setting `DISPATCHER_TENANT_ERRORS` shows the exception's class or its message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from foundation.texts import printable
from gpus.errors import BadInput, OutputInvalid, RunFailed
from jobs.domain.tracebacks import split_message


class Scope(StrEnum):
    """A permission of an API key."""

    SUBMIT = "submit"
    READ = "read"
    """Read jobs, their results and their events."""
    CANCEL = "cancel"
    OPERATE = "operate"
    """Use everything under /admin and all tenants' jobs; for operator keys only."""


ALL_SCOPES = frozenset(Scope)
TENANT_SCOPES = ALL_SCOPES - {Scope.OPERATE}
VIEW_PAYLOAD = "jobs.view_payload"


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated caller: an API key or a staff session.

    tenant_id: tenant of submitted jobs; None for a staff session, which can't submit. name: actor in audit
    entries. user: Django user of a staff session, whose Django permissions apply; None for a key. scopes: of
    a key. models: names of models that the key may submit to; None: all of its tenant. key_name: of an API
    key; several may have the same one.

    The two class attributes are those that Django and DRF expect of a user.
    """

    tenant_id: int | None
    is_operator: bool
    name: str
    user: Any = field(default=None, compare=False)
    scopes: frozenset[str] = ALL_SCOPES
    models: frozenset[str] | None = None
    key_name: str = ""

    is_authenticated = True
    is_anonymous = False

    @property
    def pk(self) -> str:
        return self.name

    def has_perm(self, permission: str) -> bool:
        """Return True if the principal has a Django permission such as ``gpus.change_server``. Operator keys
        have all, tenant keys none."""
        return self.is_operator if self.user is None else bool(self.user.has_perm(permission))


def may_see_payloads(principal: Principal) -> bool:
    """Return True if the principal may read payloads and results: keys with the scope `read`, staff sessions
    with the permission `VIEW_PAYLOAD`."""
    if principal.user is not None:
        return bool(principal.user.has_perm(VIEW_PAYLOAD))
    return Scope.READ in principal.scopes


def may_see_details(principal: Principal) -> bool:
    """Return True if the principal may read messages of GPU servers and model code, tracebacks, and
    evidence."""
    return principal.is_operator


ALL_STREAMS = frozenset({"stdout", "stderr", "log"})
_STREAMS_OF_TENANTS: Mapping[str, frozenset[str]] = {
    "all": ALL_STREAMS,
    "log": frozenset({"log"}),
    "none": frozenset(),
}


def shown_streams(principal: Principal, tenant_logs: str) -> frozenset[str]:
    """Return the streams of jobs' logs that the principal may read. tenant_logs: the setting
    `DISPATCHER_TENANT_LOGS`.

    Standard output, standard error and tracebacks are written without regard to their readers: they are
    for operators, as other texts of model code. Lines of `ctx.log` are meant for the job's reader."""
    if not may_see_payloads(principal):
        return frozenset()
    return ALL_STREAMS if may_see_details(principal) else _STREAMS_OF_TENANTS[tenant_logs]


# -- what tenants read of failures and servers ----------------------------------------------------

MAX_TEXT = 500
UNKNOWN = "The job failed."
TEXTS: Mapping[str, str] = {
    "bad_input": "The input was rejected.",
    "busy": "The GPU server was busy.",
    "cancelled": "Cancelled on request.",
    "cancelled_by_operator": "Cancelled by an operator.",
    "connect": "The GPU server could not be reached.",
    "credentials_refused": "The GPU server did not accept the dispatcher's credentials.",
    "deadline_exceeded": "The deadline passed before the job ended.",
    "does_not_fit": "The model needs more memory than the GPU has.",
    "gpu_fault": "The GPU failed.",
    "interrupted": "The run was interrupted; the attempt is not charged.",
    "lease_lost": "The run was abandoned, because its worker lost the slot.",
    "lost_at_most_once": "The end of the run is unknown, and its model allows one run only.",
    "max_queued_exceeded": "The job waited for longer than `max_queued_seconds` allows.",
    "model_missing": "The GPU server does not have the model.",
    "output_invalid": "The result of the run is not what its model declares.",
    "output_not_stored": "The outputs of the run could not be stored.",
    "output_refused": "The outputs of the run exceed the tenant's quota or the limits of a run.",
    "out_of_memory": "The model ran out of memory.",
    "poison": "The process that ran the job died several times.",
    "run_failed": "The model failed.",
    "server_error": "The GPU server failed.",
    "server_lost": "The GPU server was lost while it had the job.",
    "start_deadline_exceeded": "The job did not start before its start deadline.",
    "stopped_by_deadline": "The deadline passed while the job ran; the run was stopped.",
    "timeout": "The run exceeded its time limit.",
}
"""Messages for tenants, by error code."""
_CLASS = re.compile(r"([A-Z][A-Za-z0-9]{0,55}(?:Error|Exception)):")
"""Name of an exception's class, as model code's errors begin."""
_PLACES = re.compile(
    r"\w+://\S+|(?:[A-Za-z]:)?[/\\][^\s'\",;)]+|~/\S*|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?|\b[\w.-]+:\d{2,5}\b"
)
"""URLs, paths and addresses in a message."""
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
    | {"priority", "before", "error", "part", "progress", "text", "output", "output_hidden", "left_out"}
    | {"lines", "lines_hidden"}
)
"""Fields of events that tenants read; not `remote_id` and `evidence`, which come from GPU servers."""


def shown_error(
    code: str, message: str, *, in_full: bool, tenant_errors: str = "code"
) -> dict[str, str] | None:
    """Return an error's code and message for a reader; None without a code. in_full: the stored message, for
    operators. tenant_errors: the setting `DISPATCHER_TENANT_ERRORS`."""
    if not code:
        return None
    return {"code": code, "message": message if in_full else _text(code, message, tenant_errors)}


def shown_evidence(evidence: str, *, in_full: bool) -> str | None:
    """Return the evidence that a slot is free; only operators may read it."""
    return (evidence or None) if in_full else None


def shown_event(
    data: Mapping[str, Any],
    *,
    in_full: bool,
    streams: frozenset[str] = frozenset(),
    tenant_errors: str = "code",
) -> Mapping[str, Any]:
    """Return the fields of an event's data that the reader may see. streams: of log lines. tenant_errors: the
    setting `DISPATCHER_TENANT_ERRORS`."""
    if "lines" in data:
        lines = [line for line in data["lines"] if line.get("stream") in streams]
        hidden = len(data["lines"]) - len(lines)
        data = {**data, "lines": lines, **({"lines_hidden": hidden} if hidden else {})}
    if in_full:
        return data
    shown = {name: value for name, value in data.items() if name in _OF_EVENTS}
    error = data.get("error")
    if isinstance(error, Mapping):
        code, message = str(error.get("code", "")), str(error.get("message", ""))
        shown["error"] = shown_error(code, message, in_full=False, tenant_errors=tenant_errors)
    return shown


def _text(code: str, message: str, tenant_errors: str) -> str:
    fixed = TEXTS.get(code, UNKNOWN)
    text, _ = split_message(message)
    if code in (BadInput.code, OutputInvalid.code):
        return printable(text[:MAX_TEXT].strip()) or fixed
    if code != RunFailed.code or tenant_errors == "code":
        return fixed
    if tenant_errors == "message":
        line = _PLACES.sub("…", text.partition("\n")[0][:MAX_TEXT])
        return printable(line.strip()) or fixed
    named = _CLASS.match(text)
    return f"The model failed with {named[1]}." if named else fixed
