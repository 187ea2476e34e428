"""Starts runs, within the tenant's limits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

from django.conf import settings
from django.db import IntegrityError, connection, transaction
from django.db.models import Exists, OuterRef, QuerySet

from artifacts.uses import add_run_uses
from foundation.database import statements
from foundation.database.row_limits import free_places, lock_limits
from gpus.registry.audit import record
from jobs.callbacks.guard import check_callback_url, refused_origins
from jobs.domain.errors import IdempotencyConflict
from jobs.limits.submit_limits import QueueLimits, admit, limits_of, quota_refusal
from jobs.ports import Ports
from jobs.submission.artifact_refs import confirm_uploads
from jobs.submission.request import KeyedRequest
from workflows.definition.read import read_definition
from workflows.domain.errors import TooManyRuns, UnknownWorkflow
from workflows.domain.plan import Plan
from workflows.execution.model_access import KeyModels, refuse_models, stored_models
from workflows.execution.runs import check_inputs, find_version, new_run
from workflows.models import Node, Run, RunEvent, Version, follower_of, tags_of


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run. replayed: an earlier request with the same key started it."""

    run: Run
    replayed: bool = False


class RunOptions(TypedDict, total=False):
    """How a run is run. priority, tags: of all its jobs. callback_url: gets a signed callback at the end of
    each round."""

    priority: int
    deadline_seconds: float | None
    tags: Collection[str]
    callback_url: str | None


def start_run(
    tenant_id: int,
    name: str,
    inputs: Any,
    *,
    ports: Ports,
    number: int | None = None,
    idempotency_key: KeyedRequest | None = None,
    key_models: KeyModels = None,
    by: str | None = None,
    **options: Unpack[RunOptions],
) -> StartedRun:
    """Start a run of a version, by default the newest.

    inputs: JSON that matches the version's schema. The tenant's limits apply to the run as a whole: its jobs
    need no further tokens or places. key_models: models that the API key may submit to, and the run may use;
    None: all of the tenant's. by: the operator, for the audit. Raises Refused.
    """
    if idempotency_key is not None and (earlier := earlier_run(tenant_id, idempotency_key)) is not None:
        return earlier
    run = make_run(tenant_id, name, inputs, ports=ports, number=number, key_models=key_models, **options)
    return store_run(run, ports=ports, idempotency_key=idempotency_key, by=by)


def make_run(
    tenant_id: int,
    name: str,
    inputs: Any,
    *,
    ports: Ports,
    number: int | None = None,
    key_models: KeyModels = None,
    **options: Unpack[RunOptions],
) -> Run:
    """Make the row of a run, whose inputs and the tenant's limits are checked. Raises Refused."""
    version = find_version(tenant_id, name, number)
    if version is None:
        raise UnknownWorkflow
    plan = read_definition(version.spec)
    return make_run_of(version, plan, inputs, ports=ports, key_models=key_models, **options)


def make_run_of(
    version: Version,
    plan: Plan,
    inputs: Any,
    *,
    ports: Ports,
    key_models: KeyModels,
    **options: Unpack[RunOptions],
) -> Run:
    """Do `make_run` for a version, which may not be stored yet. plan: of it."""
    tenant_id, callback_url = version.workflow.tenant_id, options.get("callback_url")
    if refused := quota_refusal(tenant_id, ports.clock.now(), ports):
        raise refused
    if callback_url:
        check_callback_url(callback_url, refused_origins(ports.registry))
    refuse_models(tenant_id, plan, key_models)
    check_inputs(plan.inputs, inputs, ports)
    if _unfinished_runs(tenant_id).count() >= settings.DISPATCHER.workflow_runs:
        raise _too_many_runs()  # before it costs tokens; `insert_run` decides
    take_tokens(tenant_id, len(plan.nodes), ports)
    confirm_uploads(inputs, tenant_id, ports.clock.now(), ports, "/inputs")
    now = ports.clock.now()
    run = new_run(version, plan, inputs, now=now)
    run.priority, run.tags = options.get("priority", 5), list(dict.fromkeys(options.get("tags", ())))
    run.callback_url = callback_url or ""
    run.key_models = stored_models(key_models)
    if (seconds := options.get("deadline_seconds")) is not None:
        run.deadline_at = now + timedelta(seconds=seconds)
    run.event_seq = 1
    return run


def store_run(
    run: Run,
    *,
    ports: Ports,
    idempotency_key: KeyedRequest | None = None,
    by: str | None = None,
    store_version: Callable[[], Version] | None = None,
) -> StartedRun:
    """Insert a new run, and send its hint. store_version: stores the run's version in the same transaction,
    and returns it; None: the version is stored already. Raises Refused."""
    if idempotency_key is not None:
        run.idempotency_key, run.fingerprint = idempotency_key.key, idempotency_key.fingerprint
    try:
        with transaction.atomic():
            if store_version is not None:
                run.version = store_version()
            insert_run(run, ports)
            name, number = run.version.workflow.name, run.version.number
            record(by, "start_run", f"run:{run.id}", workflow=name, version=number)
    except IntegrityError:
        if idempotency_key is None or (earlier := earlier_run(run.tenant_id, idempotency_key)) is None:
            raise
        return earlier  # another request with this key was faster
    ports.wake_followers([follower_of(run.id)])
    return StartedRun(run)


def insert_run(run: Run, ports: Ports) -> None:
    """Insert a run with its first event; the caller opens the transaction, and sends the hint after it.
    Raises Refused if the tenant's queue is full, or it has too many runs."""
    now = run.created_at
    refuse_too_many_runs(run.tenant_id)
    refuse_full_queue(run.tenant_id, now, ports)
    run.save(force_insert=True)
    statements.insert_all(tags_of(run))
    add_run_uses([run.id], run.tenant_id, run.inputs)
    data = {"version": run.version.number}
    RunEvent.objects.create(run=run, seq=1, type="started", at=now, data=data)


def _unfinished_runs(tenant_id: int) -> QuerySet[Run]:
    return Run.objects.filter(tenant_id=tenant_id, finished_at=None, depth=0)


def refuse_too_many_runs(tenant_id: int) -> None:
    """Raise TooManyRuns if the transaction may not begin one more. The caller opens it."""
    most = settings.DISPATCHER.workflow_runs
    if free_places(f"runs of {tenant_id}", _unfinished_runs(tenant_id), most) <= 0:
        raise _too_many_runs()


def refuse_full_queue(tenant_id: int, now: datetime, ports: Ports) -> None:
    """Raise TenantQueueFull if the tenant's `max_queued` leaves no place for a run, which takes one until its
    first step makes its jobs. Inside the transaction that inserts or restarts the run."""
    others = 0
    if limits_of(tenant_id, ports).max_queued is not None:
        if connection.vendor == "postgresql":
            lock_limits([f"runs not begun of {tenant_id}"])
        has_begun = Node.objects.filter(run=OuterRef("id"), round=OuterRef("round"))
        others = _unfinished_runs(tenant_id).exclude(Exists(has_begun)).count()
    if full := QueueLimits(now, [(tenant_id, "")], ports).refusal(tenant_id, "", others=others):
        raise full


def _too_many_runs() -> TooManyRuns:
    return TooManyRuns(
        f"A tenant may have {settings.DISPATCHER.workflow_runs} unfinished runs (DISPATCHER_WORKFLOW_RUNS). "
        "Start this one when another has ended, or cancel some: GET /runs?status=running lists them."
    )


def take_tokens(tenant_id: int, nodes: int, ports: Ports) -> None:
    """Take the tokens of a run from the tenant's rate limit, once for all its jobs: one, and one for each
    node of the definition, at most the burst. Raises RateLimited."""
    refused = admit(tenant_id, min(1 + nodes, limits_of(tenant_id, ports).burst), ports).refused
    if refused is not None:
        raise refused


def earlier_run(tenant_id: int, idempotency_key: KeyedRequest) -> StartedRun | None:
    """Return the run that a request with this key started. Raises IdempotencyConflict for another request."""
    runs = Run.objects.select_related("version__workflow")
    run = runs.filter(tenant_id=tenant_id, idempotency_key=idempotency_key.key).first()
    if run is None:
        return None
    if run.fingerprint != idempotency_key.fingerprint:
        raise IdempotencyConflict
    return StartedRun(run, replayed=True)
