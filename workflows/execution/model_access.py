"""Which models a run may use: those of the API key that started it.

A run and its sub-runs keep the models that the key has at the start (`Run.key_models`): a workflow whose
newest version changes later can't reach others. The tenant's own list is read when a node starts."""

from __future__ import annotations

from typing import Any

from foundation.http_api.json_body import pointer_to
from jobs.domain.errors import ModelNotAllowed
from workflows.domain.plan import NodeKind, Plan
from workflows.models import Run, Version

KeyModels = frozenset[str] | None
"""Models that an API key may submit to; None: all of its tenant's."""


def stored_models(models: KeyModels) -> list[str] | None:
    """Return the value of a column `key_models`."""
    return None if models is None else sorted(models)


def models_of(stored: list[str] | None) -> KeyModels:
    """Return the models in a column `key_models`."""
    return None if stored is None else frozenset(stored)


def common_models(first: KeyModels, second: KeyModels) -> KeyModels:
    """Return the models that both keys may submit to."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


def may_use(run: Run, model: str) -> bool:
    """Return True unless the key that started a run may not submit to the model."""
    return run.key_models is None or model in run.key_models


def refuse_models(tenant_id: int, plan: Plan, models: KeyModels) -> None:
    """Check that a key may submit to the models of a plan and of the workflows that it contains, on all
    levels, in the versions that a run would use now. One that is not stored yet is checked at its nodes.

    Raises ModelNotAllowed with a pointer to the node of the plan.
    """
    if models is None:
        return
    level = list[tuple[str, str, int | None]]()
    for node in plan.all_nodes:
        pointer = pointer_to("nodes", node.key, node.kind.value)
        if node.kind is NodeKind.MODEL and node.options["model"] not in models:
            raise _refusal(node.options["model"], f"the node {node.key}", pointer)
        if node.kind is NodeKind.WORKFLOW:
            level.append((pointer, node.options["workflow"], node.options.get("version")))
    seen = set[tuple[str, int | None]]()
    while level:
        further = list[tuple[str, str, int | None]]()
        for pointer, name, number in level:
            if (name, number) in seen:
                continue
            seen.add((name, number))
            for key, node in _stored_nodes(tenant_id, name, number).items():
                model, contained = node.get("model"), node.get("workflow")
                if model is not None and model not in models:
                    raise _refusal(model, f"the node {key} of the workflow {name}", pointer)
                if contained is not None:
                    further.append((pointer, contained, node.get("version")))
        level = further


def _stored_nodes(tenant_id: int, name: str, number: int | None) -> dict[str, Any]:
    """Return the nodes of a stored version; none if there is no such version."""
    rows = Version.objects.filter(workflow__tenant_id=tenant_id, workflow__name=name)
    rows = rows.order_by("-number") if number is None else rows.filter(number=number)
    spec = rows.values_list("spec", flat=True).first()
    return {} if spec is None else spec["nodes"]


def _refusal(model: str, node: str, pointer: str) -> ModelNotAllowed:
    return ModelNotAllowed(f"This key may not submit to {model!r}, which {node} names.", pointer=pointer)
