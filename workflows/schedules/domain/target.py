"""The target of a schedule: a template of a submit or of a run's start, with references to the firing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from foundation.expressions import ExpressionLimits
from workflows.domain.template import Path, Reference, TemplateError, lost_parts, references, resolve

DUE_AT, LAST = "due_at", "last"
NAMES = frozenset({DUE_AT, LAST})
"""Names with which a reference of a schedule may begin."""
SUBMIT, WORKFLOW = "submit", "workflow"
_TEMPLATES = {SUBMIT: "payload", WORKFLOW: "inputs"}


def template_of(target: Mapping[str, Any]) -> tuple[Path, Any]:
    """Return the path and the value of the part of a target that may have references."""
    kind = SUBMIT if SUBMIT in target else WORKFLOW
    part = _TEMPLATES[kind]
    return (kind, part), target[kind].get(part)


def template_errors(target: Mapping[str, Any], limits: ExpressionLimits) -> Iterator[TemplateError]:
    """Yield the errors of a target's references. limits: of their expressions."""
    path, template = template_of(target)
    yield from lost_parts(template, path)
    for found in references(template, path, limits):
        if isinstance(found, TemplateError):
            yield found
        elif unknown := sorted(found.expression.names - NAMES):
            yield TemplateError(
                f"{unknown[0][:64]} is unknown; a reference begins with {' or '.join(sorted(NAMES))}",
                (*found.path, "$ref"),
            )


def names_used(target: Mapping[str, Any]) -> frozenset[str]:
    """Return the names with which the references of a target begin."""
    _, template = template_of(target)
    found: set[str] = set()
    for reference in references(template):
        if isinstance(reference, Reference):
            found |= reference.expression.names
    return frozenset(found)


def resolved(target: Mapping[str, Any], scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of the submit or of the run, with its references resolved. Raises Unresolved."""
    path, template = template_of(target)
    kind, part = str(path[0]), str(path[1])
    if part not in target[kind]:
        return dict(target[kind])
    return {**target[kind], part: resolve(template, scope, path)}
