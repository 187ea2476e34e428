"""A parser of foreign bytes, and the errors it may raise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st


@dataclass(frozen=True, slots=True)
class Parser:
    """call: parses one input of `inputs`. raises: the declared errors."""

    name: str
    call: Callable[[Any], object]
    inputs: st.SearchStrategy[Any]
    raises: tuple[type[BaseException], ...] = field(default=())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=5), values, max_size=4),
    max_leaves=10,
)


def objects(*names: str, values: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[dict[str, Any]]:
    """JSON objects whose members have names that the parser looks for."""
    return st.dictionaries(st.sampled_from(names), JSON if values is None else values | JSON, max_size=8)
