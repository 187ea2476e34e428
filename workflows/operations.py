"""What people and clients do with workflows: store definitions; start, cancel, pause and restart runs; answer
waits."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction

from foundation.database.connections import write_lock
from foundation.json_text import canonical_json
from jobs.domain.errors import IdempotencyConflict, Refused
from jobs.limits.submit_limits import limits_of, quota_refusal
from jobs.models import EndNotice
from jobs.ports import Ports
from jobs.submission.request import Allowed, CheckBudget, check_payload
from workflows.definition.read import Limits, read_definition
from workflows.domain.advance import nodes_to_restart
from workflows.domain.plan import NodeKind
from workflows.domain.states import NodeState, RunState
from workflows.execution.advancer import find_version, new_run
from workflows.execution.cancelling import cancel_sub_runs
from workflows.models import Node, Run, RunEvent, Version, Wait, Workflow, follower_of


class UnknownWorkflow(Refused):
    """There is no such workflow, or no such version of it."""

    code = "unknown_workflow"
    status = 404


class UnknownNode(Refused):
    """The run has no such node."""

    code = "unknown_node"
    status = 422


class TooManyRuns(Refused):
    """The tenant has as many unfinished runs as it may have."""

    code = "too_many_runs"
    status = 429
    retry_after_seconds = 5.0


class InputsTooLarge(Refused):
    """The inputs are too large."""

    code = "inputs_too_large"
    status = 413


class RunNotFinished(Refused):
    """The run is still under way; it can be restarted once it has ended."""

    code = "run_not_finished"
    status = 409


class RunFinished(Refused):
    """The run has ended."""

    code = "run_finished"
    status = 409


class NotWaitingForAnswer(Refused):
    """The node does not wait for an answer (any more)."""

    code = "not_waiting"
    status = 409


class WaitExpired(Refused):
    """The time for an answer is over."""

    code = "wait_expired"
    status = 410


class AnswerInvalid(Refused):
    """The answer is none of the choices, or does not match the form."""

    code = "answer_invalid"
    status = 422


# -- definitions ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version. is_new: it was not stored before."""

    version: Version
    is_new: bool


def put_definition(tenant_id: int, name: str, spec: Any, *, ports: Ports) -> StoredVersion:
    """Store a definition as the newest version, unless the newest one has the same content.

    Raises Problem 422.
    """
    allowed = Allowed(limits_of(tenant_id, ports).allowed_models, None)
    read_definition(
        spec,
        limits=Limits(settings.DISPATCHER.workflow_bytes, settings.DISPATCHER.workflow_nodes),
        has_model=lambda model: ports.registry.model_spec(model) is not None and allowed.covers(model),
    )
    digest = hashlib.sha256(canonical_json(spec).encode()).hexdigest()
    with transaction.atomic():
        workflow, _ = Workflow.objects.get_or_create(tenant_id=tenant_id, name=name)
        workflow = Workflow.objects.select_for_update().get(pk=workflow.pk)
        known = Version.objects.select_related("workflow").filter(workflow=workflow, sha256=digest).first()
        if known is not None:
            return StoredVersion(known, is_new=False)
        workflow.latest += 1
        workflow.save(update_fields=["latest"])
        version = Version.objects.create(
            workflow=workflow,
            number=workflow.latest,
            spec=spec,
            sha256=digest,
            created_at=ports.clock.now(),
        )
    return StoredVersion(version, is_new=True)


# -- runs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunKey:
    """An Idempotency-Key. fingerprint: of the request (`jobs.submission.request.fingerprint`)."""

    key: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run. replayed: an earlier request with the same key started it."""

    run: Run
    replayed: bool = False


def start_run(
    tenant_id: int,
    name: str,
    inputs: Any,
    *,
    ports: Ports,
    number: int | None = None,
    priority: int = 5,
    deadline_seconds: float | None = None,
    tags: Collection[str] = (),
    key: RunKey | None = None,
) -> StartedRun:
    """Start a run of a version, by default the newest.

    inputs: JSON that matches the version's schema. Raises Refused.
    """
    if key is not None and (earlier := _earlier_run(tenant_id, key)) is not None:
        return earlier
    version = find_version(tenant_id, name, number)
    if version is None:
        raise UnknownWorkflow
    if refused := quota_refusal(tenant_id, ports.clock.now(), ports):
        raise refused
    plan = read_definition(version.spec)
    _check_inputs(plan.inputs, inputs, ports)
    unfinished = Run.objects.filter(tenant_id=tenant_id, finished_at=None, depth=0)
    most = settings.DISPATCHER.workflow_runs
    if unfinished.count() >= most:
        raise TooManyRuns(f"A tenant may have {most} unfinished runs.")
    now = ports.clock.now()
    run = new_run(version, plan, inputs, now=now)
    run.priority, run.tags = priority, list(dict.fromkeys(tags))
    if deadline_seconds is not None:
        run.deadline_at = now + timedelta(seconds=deadline_seconds)
    if key is not None:
        run.idempotency_key, run.fingerprint = key.key, key.fingerprint
    run.event_seq = 1
    try:
        with transaction.atomic():
            run.save(force_insert=True)
            RunEvent.objects.create(run=run, seq=1, type="started", at=now, data={"version": version.number})
    except IntegrityError:
        if key is None or (earlier := _earlier_run(tenant_id, key)) is None:
            raise
        return earlier  # another request with this key was faster
    ports.wake_followers([follower_of(run.id)])
    return StartedRun(run)


def _earlier_run(tenant_id: int, key: RunKey) -> StartedRun | None:
    """Return the run that a request with this key started. Raises IdempotencyConflict for another request."""
    runs = Run.objects.select_related("version__workflow")
    run = runs.filter(tenant_id=tenant_id, idempotency_key=key.key).first()
    if run is None:
        return None
    if run.fingerprint != key.fingerprint:
        raise IdempotencyConflict
    return StartedRun(run, replayed=True)


def _check_inputs(schema: Any, inputs: Any, ports: Ports) -> None:
    text = canonical_json(inputs).encode()
    most = settings.DISPATCHER.workflow_input_bytes
    if len(text) > most:
        raise InputsTooLarge(f"The inputs of a run may have up to {most} bytes.", pointer="/inputs")
    _check(schema, inputs, text, ports, "/inputs")


def _check(schema: Any, value: Any, text: bytes, ports: Ports, pointer: str) -> None:
    try:
        check_payload(schema, value, text, CheckBudget(), ports.schema_processes)
    except Refused as refused:
        refused.pointer = pointer + (refused.pointer or "").removeprefix("/payload")
        raise


def cancel_run(run_id: str, *, ports: Ports) -> None:
    """Ask for the cancel of a run; it ends once its jobs have. Idempotent. Raises RunFinished."""
    now = ports.clock.now()
    running = Run.objects.filter(id=run_id, state=RunState.RUNNING.value)
    if not running.filter(cancel_requested_at=None).update(cancel_requested_at=now) and not running.exists():
        raise RunFinished
    cancel_sub_runs(run_id, now)
    ports.wake_followers([follower_of(run_id)])


def pause_run(run_id: str, *, ports: Ports) -> None:
    """Start no further nodes of a run; nodes under way go on. Idempotent. Raises RunFinished."""
    _set_paused(run_id, ports.clock.now())


def resume_run(run_id: str, *, ports: Ports) -> None:
    """Start nodes of a paused run again. Idempotent. Raises RunFinished."""
    _set_paused(run_id, None)
    ports.wake_followers([follower_of(run_id)])


def _set_paused(run_id: str, at: Any) -> None:
    if not Run.objects.filter(id=run_id, state=RunState.RUNNING.value).update(paused_at=at):
        raise RunFinished


def restart_run(run_id: str, *, ports: Ports, keys: Collection[str] | None = None) -> Run:
    """Open the next round of a run that has ended: nodes that failed or were cancelled, or the given ones,
    and all nodes after them run again; the others keep their outputs. A map runs only its failed items again.

    Raises Run.DoesNotExist, RunNotFinished, UnknownNode.
    """
    with transaction.atomic():
        run = Run.objects.select_for_update().select_related("version").get(id=run_id)
        if run.state == RunState.RUNNING:
            raise RunNotFinished
        plan = read_definition(run.version.spec)
        if unknown := sorted(set(keys or ()) - plan.nodes.keys()):
            raise UnknownNode(f"There is no node {unknown[0][:64]}.")
        states = {key: NodeState(state) for key, state in run.node_states.items()}
        again = nodes_to_restart(plan, states, keys)
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
        run.state, run.finished_at, run.output = RunState.RUNNING.value, None, None
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
    ports.wake_followers([follower_of(run.id)])
    return run


def _first_round(run: Run, key: str) -> int:
    """Return the round of a map's newest row, with which its children begin."""
    return (
        Node.objects.filter(run=run, key=key).order_by("-round").values_list("round", flat=True).first() or 1
    )


SIGNAL_BATCH = 500
"""Waits that one transaction of a signal ends."""


# -- waits ---------------------------------------------------------------------------------------------------


def answer_wait(run: Run, key: str, answer: Any, *, by: str, ports: Ports) -> None:
    """Answer a human node of a run. key: of the node, such as ``best`` or ``best[3]``.

    Exactly one of several concurrent answers is taken. Raises UnknownNode, NotWaitingForAnswer, WaitExpired,
    AnswerInvalid.
    """
    node = Node.objects.filter(run=run, key=key).order_by("-round").first()
    if node is None:
        raise UnknownNode(f"The run has no node {key[:80]}.")
    wait = Wait.objects.filter(node=node, kind=NodeKind.HUMAN.value).first()
    if wait is None or wait.answered_at is not None:
        raise NotWaitingForAnswer
    if wait.due_at is not None and wait.due_at <= ports.clock.now():
        raise WaitExpired
    if "choose_from" in wait.options:
        # as JSON: Python takes true for 1
        if canonical_json(answer) not in map(canonical_json, wait.options["choose_from"]):
            raise AnswerInvalid("The answer is none of the choices.", pointer="/answer")
    else:
        _check(wait.options["form"], answer, canonical_json(answer).encode(), ports, "/answer")
    if not end_wait(wait, run.id, NodeState.COMPLETED, answer, by=by, ports=ports):
        raise NotWaitingForAnswer


def send_signal(tenant_id: int, name: str, body: Any, *, ports: Ports, run_id: str | None = None) -> int:
    """Give a signal to all waits of the tenant's runs for it, or of one run; return how many there were.

    Waits whose schema the body does not match are left. Raises AnswerInvalid if that is all of them.
    """
    waits = Wait.objects.select_related("node").filter(
        kind=NodeKind.SIGNAL.value, signal=name, answered_at=None, node__run__tenant_id=tenant_id
    )
    if run_id is not None:
        waits = waits.filter(node__run_id=run_id)
    text, taken, refusal = canonical_json(body).encode(), 0, None
    matching: list[Wait] = []
    for wait in waits.order_by("node_id"):
        try:
            _check(wait.options.get("body_schema", True), body, text, ports, "")
        except Refused as error:
            refusal = error
            continue
        matching.append(wait)
    for first in range(0, len(matching), SIGNAL_BATCH):
        taken += _end_waits(matching[first : first + SIGNAL_BATCH], body, ports)
    if refusal is not None and not taken:
        raise refusal
    return taken


def _end_waits(waits: Sequence[Wait], body: Any, ports: Ports) -> int:
    """Give a signal to these waits, unless they have ended, in one transaction; return to how many."""
    now = ports.clock.now()
    by_id = {wait.node_id: wait for wait in waits}
    with write_lock(len(waits)), transaction.atomic():
        still = Wait.objects.select_for_update().filter(node_id__in=by_id, answered_at=None)
        taken = list(still.order_by("node_id").values_list("node_id", flat=True))
        Wait.objects.filter(node_id__in=taken).update(answer=body, answered_at=now, answered_by="signal")
        EndNotice.objects.bulk_create(
            EndNotice(
                followed_by=follower_of(by_id[node_id].node.run_id),
                ended_id=node_id,
                state=NodeState.COMPLETED.value,
                at=now,
            )
            for node_id in taken
        )
    ports.wake_followers(sorted({follower_of(by_id[node_id].node.run_id) for node_id in taken}))
    return len(taken)


def end_wait(wait: Wait, run_id: str, state: NodeState, answer: Any, *, by: str, ports: Ports) -> bool:
    """End a wait, unless it has ended, and give its run a notice. Return False if it had."""
    now = ports.clock.now()
    with write_lock(1), transaction.atomic():
        mine = Wait.objects.filter(node_id=wait.node_id, answered_at=None)
        if not mine.update(answer=answer, answered_at=now, answered_by=by[:200]):
            return False
        EndNotice.objects.create(
            followed_by=follower_of(run_id), ended_id=wait.node_id, state=state.value, at=now
        )
    ports.wake_followers([follower_of(run_id)])
    return True
