"""Expressions that select parts of a JSON value: a subset of JMESPath in which no result outgrows its input.

The whole of JMESPath is a bomb: ``[@,@][]`` piped 22 times makes eight million elements of one. So an
expression is parsed by the library, and only nodes that select, compare or measure are accepted. Each of them
visits each value of the input at most once; `foundation.metered_search` counts what that costs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from jmespath.exceptions import (
    IncompleteExpressionError,
    JMESPathError,
    JMESPathTypeError,
    LexerError,
    ParseError,
)
from jmespath.parser import ParsedResult, Parser

from foundation.metered_search import Meter, MeteredInterpreter

_EXAMPLE = "a path looks like images[0].url"
_SHOWN = 40
"""Characters of an expression in a message."""
FUNCTIONS = frozenset(
    [
        "abs",
        "avg",
        "ceil",
        "contains",
        "ends_with",
        "floor",
        "keys",
        "length",
        "max",
        "min",
        "not_null",
        "reverse",
        "sort",
        "starts_with",
        "sum",
        "type",
        "values",
    ]
)
"""Functions whose result is at most as large as their arguments."""
_ADDING = frozenset({"avg", "sum"})
_LARGEST = sys.float_info.max
_TOO_LARGE = "a number is too large"
_SELECTING = frozenset(
    [
        "and_expression",
        "comparator",
        "current",
        "field",
        "filter_projection",
        "flatten",
        "function_expression",
        "identity",
        "index",
        "index_expression",
        "literal",
        "not_expression",
        "or_expression",
        "pipe",
        "projection",
        "slice",
        "subexpression",
        "value_projection",
    ]
)
_REFUSED = {
    "multi_select_list": "a list of selections, [a, b]",
    "multi_select_dict": "an object of selections, {a: b}",
    "key_val_pair": "an object of selections, {a: b}",
    "expref": "an expression reference, &a",
}
_IN_PATHS = frozenset(["field", "identity", "index", "index_expression", "literal", "subexpression"])
_ON_THE_LEFT = frozenset(
    ["filter_projection", "index_expression", "pipe", "projection", "subexpression", "value_projection"]
)
"""Nodes whose first child alone is applied to their own input; the others are applied to its result."""
Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ExpressionLimits:
    """Limits of an expression's text and of its parsed parts. settings: the common beginning of the names of
    their settings, for messages; empty: the limits are no settings."""

    characters: int = 1_000
    parts: int = 100
    depth: int = 30
    settings: str = ""

    def refusal(self, what: str, name: str) -> ExpressionRefused:
        setting = f" ({self.settings}_{name.upper()})" if self.settings else ""
        return ExpressionRefused(f"an expression may {what.format(getattr(self, name))}{setting}")

    def too_deep(self) -> ExpressionRefused:
        return self.refusal("be nested up to {} levels deep", "depth")


DEFAULT_LIMITS = ExpressionLimits()
NO_LIMITS = ExpressionLimits(sys.maxsize, sys.maxsize, sys.maxsize)
"""For an expression that was accepted earlier, perhaps under higher limits."""


class ExpressionRefused(ValueError):
    """The text is not an expression of the subset; the message says why."""


class SearchFailed(ValueError):
    """A function got an argument of a type that it does not take; the message says which."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression.

    names: fields that it reads from the root of its input, such as ``{"fetch"}`` for ``fetch.images[0]``.
    reads_root: True if it also uses the root as a whole, as ``@`` and ``[0]`` do. is_path: it is a path such
    as ``a.b[0]``, which visits no values. adds: True if its result may have a number that is larger than all
    of the input. parts, depth: number of its parsed parts, and their nesting."""

    text: str
    names: frozenset[str]
    reads_root: bool
    is_path: bool
    adds: bool
    parts: int
    depth: int
    _parsed: ParsedResult

    @property
    def is_name(self) -> bool:
        """Whether it is a single name, such as ``fetch``."""
        return bool(self.tree["type"] == "field")

    @property
    def tree(self) -> Node:
        """The parsed expression: nodes with a type, children and, some of them, a value."""
        return self._parsed.parsed  # type: ignore[no-any-return]

    def search(self, value: Any, meter: Meter | None = None) -> Any:
        """Return the selected part of a JSON value; None without a match. meter: of the steps that it may
        take; None: any number. Raises SearchFailed, OutOfSteps."""
        meter = Meter(math.inf) if meter is None else meter
        try:
            found = MeteredInterpreter(meter).visit(self.tree, value)
        except JMESPathTypeError as error:
            raise SearchFailed(_wrong_type(error)) from None
        except JMESPathError as error:
            raise SearchFailed(str(error)) from None
        except TypeError:  # sort and min of a list with numbers and texts
            raise SearchFailed("a function got values that can't be compared") from None
        except OverflowError:  # avg and ceil
            raise SearchFailed(_TOO_LARGE) from None
        if self.adds and not _are_numbers_of_json(found, meter):
            raise SearchFailed(_TOO_LARGE)
        return found


def expression(text: str, limits: ExpressionLimits = DEFAULT_LIMITS) -> Expression:
    """Check and compile an expression. Raises ExpressionRefused."""
    if len(text) > limits.characters:
        raise limits.refusal("have up to {} characters", "characters")
    try:
        found = _compiled(text)
    except RecursionError:
        raise limits.too_deep() from None
    if found.parts > limits.parts:
        raise limits.refusal("have up to {} parts", "parts")
    if found.depth > limits.depth:
        raise limits.too_deep()
    return found


@lru_cache(maxsize=4096)
def _compiled(text: str) -> Expression:
    """Compile an expression of any size. Raises ExpressionRefused, RecursionError."""
    try:
        parsed = Parser().parse(text)
        checked = _check(parsed.parsed)
    except JMESPathError as error:
        raise ExpressionRefused(_why(text, error)) from None
    except (
        ValueError,
        AttributeError,
        TypeError,
    ) as error:  # literals that are not JSON, and defects of the parser
        if isinstance(error, ExpressionRefused):
            raise
        raise ExpressionRefused("not an expression of JMESPath") from None
    found = list(_read_from_root(parsed.parsed))
    return Expression(
        text,
        frozenset(name for name in found if name is not None),
        reads_root=None in found,
        is_path=checked.is_path,
        adds=not checked.functions.isdisjoint(_ADDING),
        parts=checked.parts,
        depth=checked.depth,
        _parsed=parsed,
    )


def _why(text: str, error: JMESPathError) -> str:
    """Return the reason of a parser's error in plain words; its own text names token types."""
    if not text.strip():
        return "an expression can't be empty"
    if isinstance(error, IncompleteExpressionError) or getattr(error, "token_type", None) == "EOF":
        return f"it ends too early: {_EXAMPLE}"
    if not isinstance(error, (ParseError, LexerError)):
        return str(error).splitlines()[0] if str(error) else "not an expression"
    at = error.lex_position
    if "Unclosed" in str(error):
        return f"the quote at character {at + 1} is not closed"
    hint = f'{_EXAMPLE}, and an odd name has quotes: "odd-name"'
    return f"it can't be read from character {at + 1} on, {text[at : at + _SHOWN]!r}: {hint}"


def is_true(value: Any) -> bool:
    """Return the truth of a result by JMESPath's rule: null, false and empty values are false; 0 is true."""
    return not (value is None or value is False or value in ("", [], {}))


def _are_numbers_of_json(found: Any, meter: Meter) -> bool:
    """Return True if each number in a result is one that a JSON text may have (`foundation.json_text`).
    Raises OutOfSteps."""
    waiting = [found]
    while waiting:
        one = waiting.pop()
        meter.take(3)
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            waiting += one.values()
        elif isinstance(one, int | float) and not -_LARGEST <= one <= _LARGEST:
            return False
    return True


@dataclass(slots=True)
class _Checked:
    """Findings of the check of a parsed expression. functions: names of those that the expression calls."""

    is_path: bool = True
    parts: int = 0
    depth: int = 0
    functions: set[str] = field(default_factory=set)


def _check(root: Node) -> _Checked:
    """Check each node of a parsed expression, without recursion."""
    found, open_nodes = _Checked(), [(root, 1)]
    while open_nodes:
        node, depth = open_nodes.pop()
        found.parts += 1
        found.depth = max(found.depth, depth)
        kind = node["type"]
        if kind not in _SELECTING:
            raise ExpressionRefused(f"{_REFUSED.get(kind, kind)} is not supported")
        _CHECKS.get(kind, _accept)(node)
        found.is_path = found.is_path and kind in _IN_PATHS
        if kind == "function_expression":
            found.functions.add(node["value"])
        if kind != "slice":
            open_nodes += ((child, depth + 1) for child in node["children"])
    return found


def _wrong_type(error: JMESPathTypeError) -> str:
    """Return the text of an error, without a value that is long: all of the input may be in it."""
    value = error.current_value
    if isinstance(value, list | dict):
        error.current_value = "a list" if isinstance(value, list) else "an object"
    elif isinstance(value, str):
        error.current_value = value[:_SHOWN]
    return str(error)


def _accept(node: Node) -> None:
    """Accept a node that needs no check of its own."""


def _check_function(node: Node) -> None:
    if node["value"] not in FUNCTIONS:
        raise ExpressionRefused(
            f"{node['value']}() is not supported; supported: {', '.join(sorted(FUNCTIONS))}"
        )


def _check_slice(node: Node) -> None:
    if node["children"][2] == 0:
        raise ExpressionRefused("the step of a slice can't be 0")


def _check_literal(node: Node) -> None:
    # a list in a filter would be searched once for each element of the input
    value = node["value"]
    if isinstance(value, list | dict):
        raise ExpressionRefused("a literal must be a number, a string, true, false or null")
    if isinstance(value, float) and not math.isfinite(value):
        raise ExpressionRefused("a number must be finite")
    if isinstance(value, str) and any(one == "\0" or "\ud800" <= one <= "\udfff" for one in value):
        raise ExpressionRefused("a text must have no NUL and no half of a surrogate pair: neither is stored")


_CHECKS = {"function_expression": _check_function, "slice": _check_slice, "literal": _check_literal}


def _read_from_root(node: Node) -> Iterator[str | None]:
    """Yield the fields that a node reads from the root of the input; None where it uses the root itself."""
    kind, children = node["type"], node["children"]
    if kind == "field":
        yield node["value"]
    elif kind in ("current", "identity"):
        yield None
    elif kind == "literal":
        return
    elif kind == "index":
        yield None
    else:
        for child in children[:1] if kind in _ON_THE_LEFT else children:
            yield from _read_from_root(child)
