"""What people and clients do with workflows: store definitions; start, cancel, pause and restart runs; answer
questions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

from django.conf import settings
from django.db import IntegrityError, connection, transaction
from django.db.models import Exists, F, OuterRef, QuerySet

from artifacts.uses import add_run_uses
from foundation.database import statements
from foundation.database.connections import write_lock
from foundation.database.row_limits import free_places, lock_limits
from foundation.http_api.json_body import pointer_to
from foundation.http_api.problems import FieldError, validation_problem
from foundation.json_text import canonical_json, same_value
from gpus.registry.audit import record
from jobs.callbacks.guard import check_callback_url, refused_origins
from jobs.domain.errors import IdempotencyConflict
from jobs.limits.submit_limits import QueueLimits, admit, limits_of, quota_refusal
from jobs.models import ApiKey, EndNotice
from jobs.ports import Ports
from jobs.submission.artifact_refs import confirm_uploads
from jobs.submission.request import KeyedRequest
from workflows.definition.limits import definition_limits
from workflows.definition.read import read_definition
from workflows.domain.advance import nodes_to_restart
from workflows.domain.errors import (
    AnswerInvalid,
    NothingToRestart,
    NotWaitingForAnswer,
    NotYours,
    OtherRound,
    RunErased,
    RunFinished,
    RunNotFinished,
    TooManyRuns,
    TooManyVersions,
    TooManyWorkflows,
    UnknownNode,
    UnknownWorkflow,
    WaitExpired,
)
from workflows.domain.plan import NodeKind, Plan
from workflows.domain.states import NodeState, RunState
from workflows.domain.template import is_known, literal_of
from workflows.execution.cancelling import cancel_retried, cancel_sub_runs, may_be_cancelled
from workflows.execution.model_access import KeyModels, refuse_models, stored_models
from workflows.execution.notices import due_notice
from workflows.execution.open_limits import refuse_too_many_sub_runs
from workflows.execution.outside import OutsideOfTenant
from workflows.execution.recursion import refuse_recursion
from workflows.execution.retried import refuse_unwanted
from workflows.execution.runs import check_inputs, check_value, find_version, new_run
from workflows.execution.waits import size_of_answer, write_ends
from workflows.models import INLINE_PREFIX, Node, Run, RunEvent, Version, Wait, Workflow, follower_of, tags_of
from workflows.sent_keys import earlier_sent, note_key

RESERVED_NAME = "runs"
"""No workflow can have this name: `POST /workflows/runs` starts inline runs."""

# -- definitions ---------------------------------------------------------------------------------------------


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


# -- runs ----------------------------------------------------------------------------------------------------


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
    _take_tokens(tenant_id, len(plan.nodes), ports)
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
    _refuse_too_many_runs(run.tenant_id)
    _refuse_full_queue(run.tenant_id, now, ports)
    run.save(force_insert=True)
    statements.insert_all(tags_of(run))
    add_run_uses([run.id], run.tenant_id, run.inputs)
    data = {"version": run.version.number}
    RunEvent.objects.create(run=run, seq=1, type="started", at=now, data=data)


def _unfinished_runs(tenant_id: int) -> QuerySet[Run]:
    return Run.objects.filter(tenant_id=tenant_id, finished_at=None, depth=0)


def _refuse_too_many_runs(tenant_id: int) -> None:
    """Raise TooManyRuns if the transaction may not begin one more. The caller opens it."""
    most = settings.DISPATCHER.workflow_runs
    if free_places(f"runs of {tenant_id}", _unfinished_runs(tenant_id), most) <= 0:
        raise _too_many_runs()


def _refuse_full_queue(tenant_id: int, now: datetime, ports: Ports) -> None:
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


def _take_tokens(tenant_id: int, nodes: int, ports: Ports) -> None:
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


def cancel_run(run_id: str, *, ports: Ports, by: str | None = None) -> None:
    """Ask for the cancel of a run; it ends once its jobs have. Idempotent. by: the operator, for the audit.
    Raises RunFinished."""
    now = ports.clock.now()
    running = Run.objects.filter(id=run_id, state=RunState.RUNNING.value)
    with write_lock(1), transaction.atomic():
        asked = may_be_cancelled(running).update(cancel_requested_at=now)
        if not asked and not running.exists():
            raise RunFinished
        record(by, "cancel_run", f"run:{run_id}")
    cancel_retried([run_id, *cancel_sub_runs(run_id, now)], ports)
    ports.wake_followers([follower_of(run_id)])
    ports.announce([run_id])


def pause_run(run_id: str, *, ports: Ports, by: str | None = None) -> None:
    """Start no further nodes of a run and its sub-runs of all levels; jobs and waits under way go on.
    Idempotent. by: the operator, for the audit. Raises RunFinished."""
    with write_lock(1), transaction.atomic():
        paused = _set_paused(run_id, ports.clock.now())
        record(by, "pause_run", f"run:{run_id}")
    ports.announce(paused)


def resume_run(run_id: str, *, ports: Ports, by: str | None = None) -> None:
    """Start nodes of a paused run and of its sub-runs again. Idempotent. by: the operator, for the audit.
    Raises RunFinished."""
    with write_lock(1), transaction.atomic():
        resumed = _set_paused(run_id, None)
        record(by, "resume_run", f"run:{run_id}")
        now = ports.clock.now()
        EndNotice.objects.bulk_create([due_notice(one, now) for one in resumed])
    ports.wake_followers([follower_of(one) for one in resumed])


def _set_paused(run_id: str, at: datetime | None) -> list[str]:
    """Pause or resume a run and its sub-runs of all levels. Return them. Raises RunFinished."""
    running = Run.objects.filter(state=RunState.RUNNING.value)
    level, found = [run_id], list[str]()
    while level:
        # in one order of locks, and a level before the next one: then no step begins further sub-runs there
        rows = running.select_for_update().filter(id__in=level).order_by("id")
        level = list(rows.values_list("id", flat=True))
        # a step under way has read the run as it was: it would use up the notice of a resume
        running.filter(id__in=level).update(paused_at=at, steps=F("steps") + 1)
        found += level
        level = list(running.filter(parent_node__run_id__in=level).values_list("id", flat=True))
    if not found:
        raise RunFinished
    return found


def restart_run(
    run_id: str,
    *,
    ports: Ports,
    keys: Collection[str] | None = None,
    key_models: KeyModels = None,
    by: str | None = None,
) -> Run:
    """Open the next round of a run that has ended: nodes that failed or were cancelled, or the given ones,
    and all nodes after them run again; the others keep their outputs. A map runs only its failed items again.

    key_models: models that the API key may submit to, and the run may use from now on; None: all of the
    tenant's. by: the operator, for the audit. Raises Run.DoesNotExist, RunNotFinished, RunErased,
    UnknownNode, OutputNotWanted, NothingToRestart, ModelNotAllowed, TooManyRuns, and what a start raises for
    quota, rate and queue of the tenant.
    """
    runs = Run.objects.select_related("version")
    run = runs.get(id=run_id)
    plan = read_definition(run.version.spec)
    refuse_models(run.tenant_id, plan, key_models)
    again = _nodes_again(run, plan, keys)
    if refused := quota_refusal(run.tenant_id, ports.clock.now(), ports):
        raise refused
    _take_tokens(run.tenant_id, len(again), ports)
    with transaction.atomic():
        run = runs.select_for_update(of=("self",)).get(id=run_id)
        again = _nodes_again(run, plan, keys)
        if run.depth == 0:
            _refuse_too_many_runs(run.tenant_id)
        else:
            refuse_too_many_sub_runs(run.tenant_id)
        _refuse_full_queue(run.tenant_id, ports.clock.now(), ports)
        run.key_models = stored_models(key_models)
        if plan.on_failure is not None:
            again.add(plan.on_failure.key)
        run.node_states |= dict.fromkeys(again, NodeState.PENDING.value)
        for node in plan.nodes.values():
            if node.key in again and node.map is not None:
                if node.needs & again or node.key in (keys or ()):
                    run.kept_maps.pop(node.key, None)  # its list may be another one now
                else:
                    run.kept_maps.setdefault(node.key, _first_round(run, node.key))
        now = ports.clock.now()
        run.round += 1
        run.steps += 1
        run.event_seq += 1
        run.state, run.finished_at = RunState.RUNNING.value, None
        run.output = run.output_artifact = None
        run.error_code = run.error_message = run.error_node = ""
        run.cancel_requested_at = run.paused_at = run.deadline_at = None
        run.save()
        RunEvent.objects.create(
            run=run,
            seq=run.event_seq,
            type="restarted",
            at=now,
            data={"round": run.round, "nodes": sorted(again)},
        )
        due_notice(run.id, now).save(force_insert=True)
        given = {"nodes": sorted(keys)} if keys else {}
        record(by, "restart_run", f"run:{run_id}", round=run.round, **given)
        ports.reopened([run.id])
    ports.wake_followers([follower_of(run.id)])
    return run


def nodes_of_restart(run: Run, keys: Collection[str] | None) -> list[str]:
    """Return the nodes that `restart_run` would run again, in the order of their needs. Raises Refused."""
    plan = read_definition(run.version.spec)
    again = _nodes_again(run, plan, keys)
    return [key for key in plan.nodes if key in again]


def _nodes_again(run: Run, plan: Plan, keys: Collection[str] | None) -> set[str]:
    """Return the nodes that a restart runs again, of a run that may be restarted. Raises Refused."""
    if run.state == RunState.RUNNING:
        raise RunNotFinished
    if run.erase_requested_at is not None:
        raise RunErased
    if unknown := sorted(set(keys or ()) - plan.nodes.keys()):
        raise UnknownNode(f"There is no node {unknown[0][:64]}.")
    refuse_unwanted(run)
    states = {key: NodeState(state) for key, state in run.node_states.items()}
    again = nodes_to_restart(plan, states, keys)
    if not again and NodeState.PENDING not in states.values():
        raise NothingToRestart
    return again


def _first_round(run: Run, key: str) -> int:
    """Return the round of a map's newest row, with which its children begin."""
    return (
        Node.objects.filter(run=run, key=key).order_by("-round").values_list("round", flat=True).first() or 1
    )


# -- waits ---------------------------------------------------------------------------------------------------


def may_answer(wait: Wait, key_name: str | None) -> bool:
    """Return True if an API key of this name may answer a question; None: an operator, who may answer all."""
    named = wait.options.get("answer_by")
    return named is None or key_name is None or key_name in named


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer that was taken. replayed: that of an earlier request with the same key."""

    replayed: bool = False


def answer_wait(
    run: Run,
    key: str,
    answer: Any,
    *,
    by: str,
    ports: Ports,
    key_name: str | None = None,
    round_number: int | None = None,
    idempotency_key: KeyedRequest | None = None,
) -> Answered:
    """Answer a human node of a run. key: of the node, such as ``best`` or ``best[3]``.

    Exactly one of several concurrent answers is taken; the same one again by the same actor changes nothing,
    so that it can be sent again when its response was lost. by: the actor. key_name: of the API key; None: an
    operator, whose answer is audited. round_number: of the node whose question it answers; None: the newest.
    idempotency_key: a request that is repeated with it answers no further question. Raises UnknownNode,
    NotYours, NotWaitingForAnswer, OtherRound, WaitExpired, AnswerInvalid, AnswerTooLarge,
    ArtifactStoreUnavailable, TooManySignals, IdempotencyConflict.
    """
    if idempotency_key is not None and earlier_sent(run.tenant_id, idempotency_key) is not None:
        return Answered(replayed=True)
    wait, newest_round = _asked_wait(run, key, round_number)
    if not may_answer(wait, key_name):
        raise NotYours
    if wait.answered_at is None and wait.node.round == newest_round:
        _check_answer(wait, answer, ports)
        confirm_uploads(answer, run.tenant_id, ports.clock.now(), ports, "/answer")
        try:
            is_audited = key_name is None
            if _take_answer(
                run, wait, answer, by=by, is_audited=is_audited, idempotency_key=idempotency_key, ports=ports
            ):
                return Answered()
        except IntegrityError:
            if idempotency_key is None or earlier_sent(run.tenant_id, idempotency_key) is None:
                raise
            return Answered(replayed=True)  # another request with this key was faster
        wait.refresh_from_db()
    if wait.answered_by == by[:200] and same_value(wait.answer, answer):
        return Answered()
    if wait.node.round != newest_round:
        raise OtherRound(
            f"The answer is for round {wait.node.round} of the node, which was restarted since: it is in "
            f"round {newest_round}.",
            pointer="/round",
        )
    raise NotWaitingForAnswer


def _asked_wait(run: Run, key: str, round_number: int | None) -> tuple[Wait, int]:
    """Return the wait of a human node in a round, and the node's newest round. round_number: None: the newest
    round. Raises UnknownNode, NotWaitingForAnswer, OtherRound."""
    nodes = Node.objects.filter(run=run, key=key).order_by("-round")
    newest = nodes.values_list("round", flat=True).first()
    if newest is None:
        raise UnknownNode(f"The run has no node {key[:80]}. {_open_questions(run)}")
    waits = Wait.objects.select_related("node").filter(
        node__run=run, node__key=key, kind=NodeKind.HUMAN.value
    )
    wait = waits.filter(node__round=newest if round_number is None else round_number).first()
    if wait is not None:
        return wait, newest
    if round_number not in (None, newest):
        raise OtherRound(
            f"The node has no question in that round; it is in round {newest}.", pointer="/round"
        )
    raise NotWaitingForAnswer


def _check_answer(wait: Wait, answer: Any, ports: Ports) -> None:
    """Check an answer to an open question. Raises WaitExpired, AnswerInvalid, AnswerTooLarge."""
    if wait.due_at is not None and wait.due_at <= ports.clock.now():
        raise WaitExpired
    size_of_answer(answer, "/answer")
    if "choose_from" in wait.options:
        if not any(same_value(answer, one) for one in wait.options["choose_from"]):
            choices = ", ".join(canonical_json(one)[:60] for one in wait.options["choose_from"][:10])
            more = ", …" if len(wait.options["choose_from"]) > 10 else ""
            raise AnswerInvalid(f"The answer is none of the choices: {choices}{more}.", pointer="/answer")
    else:
        check_value(wait.options["form"], answer, ports, "/answer")


def _take_answer(
    run: Run,
    wait: Wait,
    answer: Any,
    *,
    by: str,
    is_audited: bool,
    idempotency_key: KeyedRequest | None,
    ports: Ports,
) -> bool:
    """End a wait by an answer; False if it has ended. Raises IntegrityError if another request with the key
    was faster, TooManySignals."""
    now = ports.clock.now()
    with write_lock(1), transaction.atomic():
        followers = write_ends([wait], NodeState.COMPLETED, answer, by=by, now=now)
        if followers and idempotency_key is not None:
            sent = note_key(run.tenant_id, idempotency_key, now)
            sent.taken = 1
            sent.save(update_fields=["taken"])
        if followers:
            add_run_uses([run.id], run.tenant_id, answer)
        if followers and is_audited:
            record(by, "answer_wait", f"run:{wait.node.run_id}", node=wait.node.key)
    ports.wake_followers(followers)
    return bool(followers)


def _open_questions(run: Run) -> str:
    """Return which nodes of a run wait for an answer, as a sentence."""
    open_ones = Wait.objects.filter(node__run=run, kind=NodeKind.HUMAN.value, answered_at=None)
    keys = list(open_ones.order_by("pk").values_list("node__key", flat=True)[:6])
    if not keys:
        return "No node waits for an answer."
    more = ", …" if len(keys) > 5 else ""
    return f"These wait for an answer: {', '.join(keys[:5])}{more}."
