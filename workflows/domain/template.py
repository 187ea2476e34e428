"""Templates: JSON values with references, such as ``{"image": {"$ref": "fetch.images[0]"}}``.

A reference is resolved once, when its node starts; what it selects is data and is never interpreted.
``{"$literal": …}`` holds a value that is not interpreted either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from foundation.expressions import (
    NO_LIMITS,
    Expression,
    ExpressionLimits,
    ExpressionRefused,
    SearchFailed,
    expression,
)
from workflows.domain.budget import Budget, Costs, OverBudget
from workflows.domain.values import artifact_of

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
        except OverBudget as error:
            if error.whole is None or not self.expression.is_name:
                raise
            return error.whole
        if found is not None:
            return budget.take(found, len(self.path))
        if self.default is _NO_DEFAULT:
            raise Unresolved(
                f"{self.expression.text} is null or selects nothing, and the reference has no default",
                self.path,
            )
        return self.default


def references(
    template: Any, path: Path = (), limits: ExpressionLimits = NO_LIMITS
) -> Iterator[Reference | TemplateError]:
    """Yield each reference of a template, and an error for each place that is not well-formed. limits: of
    expressions, in a template that is to be stored."""
    if isinstance(template, list):
        for index, part in enumerate(template):
            yield from references(part, (*path, index), limits)
    elif isinstance(template, dict):
        kind = _directive(template)
        if kind is None:
            for name, part in template.items():
                yield from references(part, (*path, name), limits)
        elif kind == REF:
            yield _reference(template, path, limits)
        elif kind != LITERAL:
            yield TemplateError(
                f"{kind[:64]} is not a directive; write {{{LITERAL!r}: …}} around data with such a key", path
            )


def lost_parts(template: Any, path: Path = ()) -> Iterator[TemplateError]:
    """Yield an error for each part of a well-formed template that `resolve` would drop, or return without
    resolving it."""
    if isinstance(template, list):
        for index, part in enumerate(template):
            yield from lost_parts(part, (*path, index))
    elif isinstance(template, dict):
        kind = _directive(template)
        if kind is None:
            for name, part in template.items():
                yield from lost_parts(part, (*path, name))
        elif kind == REF:
            yield from unresolved_parts(template.get(DEFAULT), (*path, DEFAULT))
        elif kind == LITERAL and len(template) > 1:
            other = min(template.keys() - {LITERAL})
            yield TemplateError(f"{LITERAL} has no key beside it, not {other[:64]}", path)


def unresolved_parts(value: Any, path: Path) -> Iterator[TemplateError]:
    """Yield an error for each directive in a value that is taken as it is."""
    if isinstance(value, list):
        for index, part in enumerate(value):
            yield from unresolved_parts(part, (*path, index))
    elif isinstance(value, dict):
        for name in (REF, LITERAL):
            if name in value:
                yield TemplateError(f"a {DEFAULT} is taken as it is: {name} in it is not resolved", path)
                return
        for name, part in value.items():
            yield from unresolved_parts(part, (*path, name))


class _Unknown:
    """The type of `UNKNOWN`, which stands for the value that a reference selects."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Any = _Unknown()


def literal_of(template: Any) -> Any:
    """Return what a template resolves to whatever its references select: UNKNOWN is in place of each."""
    if isinstance(template, list):
        return [literal_of(part) for part in template]
    if not isinstance(template, dict):
        return template
    kind = _directive(template)
    if kind is None:
        return {name: literal_of(part) for name, part in template.items()}
    return template[LITERAL] if kind == LITERAL else UNKNOWN


def artifacts_in(template: Any, path: Path = (), *, is_data: bool = False) -> Iterator[tuple[str, Path]]:
    """Yield the id in each reference to an artifact that a template resolves to whatever its other references
    select, and the place of that reference. is_data: nothing in it is interpreted."""
    if isinstance(template, list):
        for index, part in enumerate(template):
            yield from artifacts_in(part, (*path, index), is_data=is_data)
    elif isinstance(template, dict):
        kind = None if is_data else _directive(template)
        if kind == LITERAL:
            yield from artifacts_in(template[LITERAL], (*path, LITERAL), is_data=True)
        elif kind is None and (found := artifact_of(template)) is not None:
            yield found, path
        elif kind is None:
            for name, part in template.items():
                yield from artifacts_in(part, (*path, name), is_data=is_data)


def is_known(literal: Any) -> bool:
    """Return True if no part of a value of `literal_of` is UNKNOWN."""
    if isinstance(literal, list):
        return all(map(is_known, literal))
    if isinstance(literal, dict):
        return all(map(is_known, literal.values()))
    return literal is not UNKNOWN


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
        found = _reference(template, path, NO_LIMITS)
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


def _reference(value: dict[str, Any], path: Path, limits: ExpressionLimits) -> Reference | TemplateError:
    if unknown := sorted(value.keys() - {REF, DEFAULT}):
        return TemplateError(f"a reference has only {REF} and {DEFAULT}, not {unknown[0][:64]}", path)
    text = value[REF]
    if not isinstance(text, str):
        return TemplateError("a reference is a text, such as fetch.images[0]", (*path, REF))
    try:
        found = expression(text, limits)
    except ExpressionRefused as error:
        return TemplateError(str(error), (*path, REF))
    if found.reads_root:
        return TemplateError("a reference begins with a name: inputs, a node, or in a map item", (*path, REF))
    return Reference(found, path, value.get(DEFAULT, _NO_DEFAULT))
