"""New runs: the version that they pin, the check of their inputs, and their row."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.conf import settings

from foundation.ids import new_id
from foundation.json_text import canonical_json
from jobs.domain.errors import Refused
from jobs.ports import Ports
from jobs.submission.request import CheckBudget, check_payload
from workflows.domain.errors import InputsTooLarge
from workflows.domain.plan import Plan
from workflows.domain.states import NodeState
from workflows.models import Run, Version


def check_inputs(schema: Any, inputs: Any, ports: Ports, checks: CheckBudget | None = None) -> None:
    """Check the inputs of a run. schema: of the version. checks: None: a budget of their own. Raises
    Refused."""
    most = settings.DISPATCHER.workflow_input_bytes
    if len(canonical_json(inputs).encode()) > most:
        raise InputsTooLarge(
            f"The inputs of a run may have up to {most} bytes (DISPATCHER_WORKFLOW_INPUT_BYTES). "
            "Upload larger data as an artifact and refer to it.",
            pointer="/inputs",
        )
    check_value(schema, inputs, ports, "/inputs", checks)


def check_value(
    schema: Any, value: Any, ports: Ports, pointer: str, checks: CheckBudget | None = None
) -> None:
    """Check a value against a JSON Schema. pointer: of the value in the request. Raises Refused."""
    checks = CheckBudget() if checks is None else checks
    try:
        check_payload(schema, value, canonical_json(value).encode(), checks, ports.schema_processes)
    except Refused as refused:
        refused.pointer = pointer + (refused.pointer or "").removeprefix("/payload")
        raise


def find_version(tenant_id: int, name: str, number: int | None) -> Version | None:
    """Return a version of a tenant's workflow; the newest if no number is given."""
    found = Version.objects.select_related("workflow").filter(
        workflow__tenant_id=tenant_id, workflow__name=name
    )
    return found.order_by("-number").first() if number is None else found.filter(number=number).first()


def new_run(version: Version, plan: Plan, inputs: Any, *, now: datetime) -> Run:
    """Make the row of a run whose nodes are all pending."""
    return Run(
        id=new_id(now.timestamp()),
        version=version,
        tenant_id=version.workflow.tenant_id,
        inputs=inputs,
        node_states={node.key: NodeState.PENDING.value for node in plan.all_nodes},
        place_us=int(now.timestamp() * 1_000_000),
        created_at=now,
    )
