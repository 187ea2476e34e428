"""Stores and checks the definitions of workflows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from foundation.database.row_limits import free_places
from foundation.http_api.json_body import pointer_to
from foundation.http_api.problems import FieldError, validation_problem
from foundation.json_text import canonical_json
from gpus.registry.audit import record
from jobs.models import ApiKey
from jobs.ports import Ports
from workflows.definition.limits import definition_limits
from workflows.definition.read import read_definition
from workflows.domain.errors import TooManyVersions, TooManyWorkflows
from workflows.domain.plan import NodeKind, Plan
from workflows.domain.template import is_known, literal_of
from workflows.execution.model_access import KeyModels, refuse_models
from workflows.execution.outside import OutsideOfTenant
from workflows.execution.recursion import refuse_recursion
from workflows.execution.runs import find_version
from workflows.models import INLINE_PREFIX, Version, Workflow

RESERVED_NAME = "runs"
"""No workflow can have this name: `POST /workflows/runs` starts inline runs."""


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version. is_new: this request made it."""

    version: Version
    is_new: bool


def put_definition(
    tenant_id: int,
    name: str,
    spec: Any,
    *,
    ports: Ports,
    key_models: KeyModels = None,
    by: str | None = None,
) -> StoredVersion:
    """Store a definition as the newest version, unless the newest one has the same content. With the content
    of an earlier version it becomes a new one: so a workflow goes back.

    key_models: models that the API key may submit to; None: all of the tenant's. by: the operator, for the
    audit. Raises Problem 422, ModelNotAllowed, TooManyWorkflows, TooManyVersions.
    """
    if name == RESERVED_NAME:
        text = f"{name} is reserved; give the workflow another name."
        raise validation_problem([FieldError("/name", "reserved_name", text)])
    plan = _read(tenant_id, spec, ports)
    digest = digest_of(spec)
    with transaction.atomic():
        refuse_recursion(tenant_id, name, plan)
        refuse_models(tenant_id, plan, key_models)
        _make(tenant_id, name)
        workflow = Workflow.objects.select_for_update().get(tenant_id=tenant_id, name=name)
        newest = find_version(tenant_id, name, None)
        if newest is not None and newest.sha256 == digest:
            return StoredVersion(newest, is_new=False)
        most = settings.DISPATCHER.workflow_versions
        versions = Version.objects.filter(workflow__tenant_id=tenant_id).exclude(
            workflow__name__startswith=INLINE_PREFIX
        )
        if free_places(f"versions of {tenant_id}", versions, most) <= 0:
            raise TooManyVersions(
                f"The workflows of a tenant may have {most} versions in all. Versions stay as long as the "
                "workflow: send what changes from run to run as inputs, or ask the operator to raise "
                "DISPATCHER_WORKFLOW_VERSIONS."
            )
        workflow.latest += 1
        workflow.save(update_fields=["latest"])
        version = Version.objects.create(
            workflow=workflow,
            number=workflow.latest,
            spec=spec,
            sha256=digest,
            created_at=ports.clock.now(),
        )
        record(by, "put_workflow", f"workflow:{name}", tenant=tenant_id, version=version.number)
    return StoredVersion(version, is_new=True)


def digest_of(spec: Any) -> str:
    """Return the SHA-256 of a definition; equal definitions have the same."""
    return hashlib.sha256(canonical_json(spec).encode()).hexdigest()


def stored_workflows(tenant_id: int | None) -> QuerySet[Workflow]:
    """Select the workflows of a tenant, without those of inline runs. tenant_id: None: of all tenants."""
    rows = Workflow.objects.exclude(name__startswith=INLINE_PREFIX)
    return rows if tenant_id is None else rows.filter(tenant_id=tenant_id)


def check_definition(tenant_id: int, name: str, spec: Any, *, ports: Ports) -> Plan:
    """Return the plan of a definition that the tenant could store under this name. Raises Problem 422."""
    plan = _read(tenant_id, spec, ports)
    with transaction.atomic():
        refuse_recursion(tenant_id, name, plan)
    return plan


def doubts(tenant_id: int, plan: Plan, *, ports: Ports) -> dict[str, str]:
    """Return warnings of a definition, by JSON pointer: sub-workflows that the tenant has not stored, inputs
    that their newest version refuses, and names in `answer_by` that none of its API keys has. They are no
    errors: the tenant may store or make these before it starts a run."""
    return _doubtful_sub_runs(tenant_id, plan, ports) | _unknown_keys(tenant_id, plan)


def _doubtful_sub_runs(tenant_id: int, plan: Plan, ports: Ports) -> dict[str, str]:
    found: dict[str, str] = {}
    outside = OutsideOfTenant(tenant_id, ports)
    for node in plan.all_nodes:
        if node.kind is not NodeKind.WORKFLOW:
            continue
        name, number = node.options["workflow"], node.options.get("version")
        inputs = literal_of(node.settings["inputs"])
        if find_version(tenant_id, name, number) is None:
            what = f"workflow {name}" if number is None else f"version {number} of the workflow {name}"
            found[pointer_to("nodes", node.key, "workflow")] = f"there is no {what} yet"
        elif is_known(inputs) and (refused := outside.refusal_of_inputs(name, number, inputs)) is not None:
            place = pointer_to("nodes", node.key) + (refused.pointer or "")
            found[place] = f"the newest version of {name} refuses this: {refused}"
    return found


def _unknown_keys(tenant_id: int, plan: Plan) -> dict[str, str]:
    known = set(ApiKey.objects.filter(tenant_id=tenant_id, revoked=False).values_list("name", flat=True))
    return {
        pointer_to("nodes", node.key, "human", "answer_by", place): f"the tenant has no API key named {name}"
        for node in plan.all_nodes
        for place, name in enumerate(node.options.get("answer_by", ()))
        if name not in known
    }


def _read(tenant_id: int, spec: Any, ports: Ports) -> Plan:
    return read_definition(spec, limits=definition_limits(), outside=OutsideOfTenant(tenant_id, ports))


def _make(tenant_id: int, name: str) -> None:
    """Make the row of a workflow, unless it exists. Raises TooManyWorkflows."""
    workflows = stored_workflows(tenant_id)
    if workflows.filter(name=name).exists():
        return
    most = settings.DISPATCHER.workflow_definitions
    if free_places(f"workflows of {tenant_id}", workflows, most) <= 0:
        raise TooManyWorkflows(
            f"A tenant may have {most} workflows. Store this definition as a version of one of them, or ask "
            "the operator to raise DISPATCHER_WORKFLOW_DEFINITIONS."
        )
    Workflow.objects.get_or_create(tenant_id=tenant_id, name=name)
