"""Runs of definitions that come with the request: `POST /workflows/runs`.

An inline definition is a version, too, which never changes, of a workflow that only holds such definitions
(`workflows.models.inline_name`): so it is the newest version of no stored workflow, and neither schedules nor
sub-workflows refer to it. Equal definitions share a version; the sweep `inline_versions` deletes it after its
last run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Unpack

from django.conf import settings

from foundation.database.row_limits import free_places
from foundation.http_api.problems import Problem, validation_problem
from jobs.domain.errors import Refused
from jobs.ports import Ports
from jobs.submission.request import KeyedRequest
from workflows.domain.errors import TooManyVersions
from workflows.execution.model_access import KeyModels, refuse_models
from workflows.models import INLINE_PREFIX, Version, Workflow, inline_name
from workflows.operations.definitions import check_definition, digest_of
from workflows.operations.start import RunOptions, StartedRun, earlier_run, make_run_of, store_run


def start_inline_run(
    tenant_id: int,
    definition: Any,
    inputs: Any,
    *,
    ports: Ports,
    idempotency_key: KeyedRequest | None = None,
    key_models: KeyModels = None,
    by: str | None = None,
    **options: Unpack[RunOptions],
) -> StartedRun:
    """Start a run of a definition, which is checked as one that is stored. The rest is that of
    `workflows.operations.start.start_run`. Raises Problem 422 with pointers below /definition, Refused."""
    if idempotency_key is not None and (earlier := earlier_run(tenant_id, idempotency_key)) is not None:
        return earlier
    given = definition.get("name") if isinstance(definition, dict) else None
    name = inline_name(given if isinstance(given, str) else None)
    with _errors_below("/definition"):
        plan = check_definition(tenant_id, name, definition, ports=ports)
        refuse_models(tenant_id, plan, key_models)
    version = Version(
        workflow=Workflow(tenant_id=tenant_id, name=name),
        spec=definition,
        sha256=digest_of(definition),
        created_at=ports.clock.now(),
    )
    run = make_run_of(version, plan, inputs, ports=ports, key_models=key_models, **options)
    return store_run(
        run, ports=ports, idempotency_key=idempotency_key, by=by, store_version=lambda: _stored(version)
    )


def _stored(version: Version) -> Version:
    """Return the stored version with this content; insert it if there is none. Inside the transaction that
    inserts its run: until then the lock of the workflow keeps the sweep from deleting it. Raises
    TooManyVersions."""
    tenant_id, name = version.workflow.tenant_id, version.workflow.name
    workflow, _ = Workflow.objects.select_for_update().get_or_create(tenant_id=tenant_id, name=name)
    found = workflow.versions.filter(sha256=version.sha256).first()
    if found is not None:
        return found
    versions = Version.objects.filter(workflow__tenant_id=tenant_id, workflow__name__startswith=INLINE_PREFIX)
    most = settings.DISPATCHER.workflow_inline_versions
    if free_places(f"inline versions of {tenant_id}", versions, most) <= 0:
        raise TooManyVersions(
            f"The runs of a tenant may have {most} inline definitions (DISPATCHER_WORKFLOW_INLINE_VERSIONS). "
            "Each stays as long as one of its runs, and equal ones count once: send what changes from run to "
            "run as inputs, or store the definition.",
            pointer="/definition",
        )
    workflow.latest += 1
    workflow.save(update_fields=["latest"])
    version.workflow, version.number = workflow, workflow.latest
    version.save(force_insert=True)
    return version


@contextmanager
def _errors_below(pointer: str) -> Iterator[None]:
    """Let errors name their places in the request. pointer: of the value that is checked."""
    try:
        yield
    except Problem as problem:
        raise validation_problem(
            [replace(error, pointer=pointer + error.pointer) for error in problem.errors]
        ) from None
    except Refused as refused:
        refused.pointer = pointer + (refused.pointer or "")
        raise
