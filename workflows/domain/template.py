"""Templates: JSON values with references, such as ``{"image": {"$ref": "fetch.images[0]"}}``.

A reference is resolved once, when its node starts; what it selects is data and is never interpreted.
``{"$literal": …}`` holds a value that is not interpreted either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from foundation.expressions import Expression, ExpressionRefused, SearchFailed, expression
from workflows.domain.budget import Budget, Costs, OverBudget

REF, DEFAULT, LITERAL = "$ref", "default", "$literal"
DATA_DIRECTIVES = frozenset({"$artifact"})
"""Keys with a ``$`` that belong to the data: a reference to an artifact."""
Path = tuple[object, ...]
_NO_DEFAULT: Any = object()
UNRESOLVED_REF = "unresolved_ref"


class TemplateError(ValueError):
    """A template that is not well-formed. path: the place in the template."""

    def __init__(self, why: str, path: Path) -> None:
        super().__init__(why)
        self.path = path


class Unresolved(ValueError):
    """A reference that selects nothing and has no default, or costs too much. path: the place in the
    template. code: of the node that fails."""

    def __init__(self, why: str, path: Path, code: str = UNRESOLVED_REF) -> None:
        super().__init__(why)
        self.path = path
        self.code = code


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference. path: the place in the template."""

    expression: Expression
    path: Path
    default: Any = _NO_DEFAULT

    @property
    def has_default(self) -> bool:
        return self.default is not _NO_DEFAULT

    def resolve(self, scope: Mapping[str, Any], budget: Budget) -> Any:
        """Return the part of the scope that it selects, or its default. Raises OverBudget, Unresolved."""
        try:
            found = budget.search(self.expression, scope)
        except SearchFailed as error:
            raise Unresolved(f"{self.expression.text}: {error}", self.path) from None
        if found is not None:
            return budget.take(found, len(self.path))
        if self.default is _NO_DEFAULT:
            raise Unresolved(
                f"{self.expression.text} selects nothing, and the reference has no default", self.path
            )
        return self.default


def references(template: Any, path: Path = ()) -> Iterator[Reference | TemplateError]:
    """Yield each reference of a template, and an error for each place that is not well-formed."""
    if isinstance(template, list):
        for index, part in enumerate(template):
            yield from references(part, (*path, index))
    elif isinstance(template, dict):
        kind = _directive(template)
        if kind is None:
            for name, part in template.items():
                yield from references(part, (*path, name))
        elif kind == REF:
            yield _reference(template, path)
        elif kind != LITERAL:
            yield TemplateError(
                f"{kind[:64]} is not a directive; write {{{LITERAL!r}: …}} around data with such a key", path
            )


def resolve(template: Any, scope: Mapping[str, Any], path: Path = (), *, budget: Budget | None = None) -> Any:
    """Return the template with its references resolved.

    template: one in which `references` found no error. scope: the values that references begin with, by name.
    budget: what they may cost; by default as much as those of one node. Raises Unresolved.
    """
    budget = Costs().budget() if budget is None else budget
    if isinstance(template, list):
        return [resolve(part, scope, (*path, index), budget=budget) for index, part in enumerate(template)]
    if not isinstance(template, dict):
        return template
    kind = _directive(template)
    if kind == LITERAL:
        return template[LITERAL]
    if kind == REF:
        found = _reference(template, path)
        if isinstance(found, TemplateError):
            raise found
        try:
            return found.resolve(scope, budget)
        except OverBudget as error:
            raise Unresolved(str(error), path, error.code) from None
    return {name: resolve(part, scope, (*path, name), budget=budget) for name, part in template.items()}


def _directive(value: dict[str, Any]) -> str | None:
    """Return the key that makes an object a directive; None for data."""
    for name in value:
        if name.startswith("$") and name not in DATA_DIRECTIVES:
            return REF if REF in value else name
    return None


def _reference(value: dict[str, Any], path: Path) -> Reference | TemplateError:
    if unknown := sorted(value.keys() - {REF, DEFAULT}):
        return TemplateError(f"a reference has only {REF} and {DEFAULT}, not {unknown[0][:64]}", path)
    text = value[REF]
    if not isinstance(text, str):
        return TemplateError("a reference is a text, such as fetch.images[0]", (*path, REF))
    try:
        found = expression(text)
    except ExpressionRefused as error:
        return TemplateError(str(error), (*path, REF))
    if found.reads_root:
        return TemplateError("a reference begins with a name: inputs, a node, or in a map item", (*path, REF))
    return Reference(found, path, value.get(DEFAULT, _NO_DEFAULT))
