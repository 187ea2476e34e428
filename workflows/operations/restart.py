"""Restarts a finished run from chosen nodes."""

from __future__ import annotations

from collections.abc import Collection

from django.db import transaction

from gpus.registry.audit import record
from jobs.limits.submit_limits import quota_refusal
from jobs.ports import Ports
from workflows.definition.read import read_definition
from workflows.domain.advance import nodes_to_restart
from workflows.domain.errors import NothingToRestart, RunErased, RunNotFinished, UnknownNode
from workflows.domain.plan import Plan
from workflows.domain.states import NodeState, RunState
from workflows.execution.model_access import KeyModels, refuse_models, stored_models
from workflows.execution.notices import due_notice
from workflows.execution.open_limits import refuse_too_many_sub_runs
from workflows.execution.retried import refuse_unwanted
from workflows.models import Node, Run, RunEvent, follower_of
from workflows.operations.start import refuse_full_queue, refuse_too_many_runs, take_tokens


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
    take_tokens(run.tenant_id, len(again), ports)
    with transaction.atomic():
        run = runs.select_for_update(of=("self",)).get(id=run_id)
        again = _nodes_again(run, plan, keys)
        if run.depth == 0:
            refuse_too_many_runs(run.tenant_id)
        else:
            refuse_too_many_sub_runs(run.tenant_id)
        refuse_full_queue(run.tenant_id, ports.clock.now(), ports)
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
