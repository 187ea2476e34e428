"""Telling others, who may fail at it: that must not end what is told of."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any


def quietly(tell: Callable[..., Any]) -> Callable[..., None]:
    """A log on a full disk or a closed pipe loses lines; no run may be lost with them."""

    def told(*arguments: Any, **values: Any) -> None:
        with suppress(Exception):
            tell(*arguments, **values)

    return told
