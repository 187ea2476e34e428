"""Why a node failed, in words that each reader of its run may see: the run's error quotes them, in the API,
in callbacks and to the node of a parent run."""

from __future__ import annotations

from django.conf import settings

from foundation.texts import printable
from jobs.domain.access import shown_error
from workflows.models import Node

MAX_REASON = 500
"""Most characters of a reason."""


def reason_of(node: Node) -> str:
    """Return the code and the message of a node's error; "" without a code.

    The text of a job's error may come from its GPU server or from model code: it is the one that tenants
    read (`jobs.domain.access`). All other texts are our own.
    """
    error = shown_error(
        node.code,
        node.detail,
        in_full=node.job_id is None,
        tenant_errors=settings.DISPATCHER.tenant_errors,
    )
    if error is None:
        return ""
    message = printable(" ".join(error["message"].split()))
    reason = f"{error['code']}: {message}" if message else error["code"]
    return reason if len(reason) <= MAX_REASON else f"{reason[: MAX_REASON - 1]}…"
