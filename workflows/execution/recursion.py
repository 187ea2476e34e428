"""Refuses definitions that contain each other: their runs would end only at the greatest depth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from foundation.http_api.json_body import pointer_to
from foundation.http_api.problems import FieldError, validation_problem
from jobs.models import Tenant
from workflows.domain.plan import NodeKind, Plan
from workflows.models import Version

RECURSION, TOO_MANY = "recursion", "too_many"
CHAIN_SHOWN = 10
"""Names of workflows in the text of the error."""


@dataclass(frozen=True, slots=True)
class _Used:
    """A version of a workflow that a definition contains. number: None for the newest."""

    name: str
    number: int | None


def refuse_recursion(tenant_id: int, name: str, plan: Plan) -> None:
    """Check that a definition that is to be stored does not contain itself, through whatever workflows of the
    tenant. Raises Problem 422.

    A workflow that is not stored yet is checked when it is. Runs in a transaction: of two requests that would
    store workflows that contain each other, the second one sees the first.
    """
    parts = dict[_Used, str]()
    for node in plan.all_nodes:
        if node.kind is NodeKind.WORKFLOW:
            parts.setdefault(_Used(node.options["workflow"], node.options.get("version")), node.key)
    if not parts:
        return
    Tenant.objects.select_for_update(no_key=True).get(pk=tenant_id)
    versions = Version.objects.filter(workflow__tenant_id=tenant_id)
    last = versions.filter(workflow__name=name).order_by("-number").values_list("number", flat=True).first()
    own = {_Used(name, None), _Used(name, (last or 0) + 1)}
    came_from: dict[_Used, _Used | None] = dict.fromkeys(parts)
    level = list(parts)
    while level:
        for used in level:
            if used in own:
                _refuse(_chain(came_from, used), parts, name)
        if len(came_from) > (most := settings.DISPATCHER.workflow_contained):
            raise validation_problem([
                FieldError(
                    pointer_to("nodes"),
                    TOO_MANY,
                    f"A definition may contain up to {most} workflows, on all levels. Start some of them as "
                    "runs of their own, or ask the operator to raise DISPATCHER_WORKFLOW_CONTAINED.",
                )
            ])  # fmt: skip
        found: list[_Used] = []
        for used in level:
            for further in _parts_of(tenant_id, used):
                if further not in came_from:
                    came_from[further] = used
                    found.append(further)
        level = found


def _parts_of(tenant_id: int, used: _Used) -> Iterator[_Used]:
    """Yield the workflows that a stored version contains; none if there is no such version."""
    rows = Version.objects.filter(workflow__tenant_id=tenant_id, workflow__name=used.name)
    rows = rows.order_by("-number") if used.number is None else rows.filter(number=used.number)
    spec = rows.values_list("spec", flat=True).first()
    nodes: dict[str, Any] = {} if spec is None else spec["nodes"]
    for node in nodes.values():
        if node.get("workflow") is not None:
            yield _Used(node["workflow"], node.get("version"))


def _chain(came_from: dict[_Used, _Used | None], last: _Used) -> list[_Used]:
    """Return the workflows on the way to the last one."""
    found: list[_Used] = []
    place: _Used | None = last
    while place is not None:
        found.append(place)
        place = came_from[place]
    return found[::-1]


def _refuse(chain: list[_Used], parts: dict[_Used, str], name: str) -> None:
    raise validation_problem([
        FieldError(
            pointer_to("nodes", parts[chain[0]], "workflow"),
            RECURSION,
            f"The workflow {name} would contain itself: {_shown([name, *(one.name for one in chain)])}. Its "
            "runs would never end. Use a map for what repeats.",
        )
    ])  # fmt: skip


def _shown(names: Iterable[str]) -> str:
    found = list(names)
    if len(found) > CHAIN_SHOWN:
        found = [*found[: CHAIN_SHOWN - 1], "…", found[-1]]
    return " → ".join(found)
