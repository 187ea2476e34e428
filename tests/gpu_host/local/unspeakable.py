"""Results and errors that can't be sent: an error without a message, a result that raises while it is
encoded."""

from __future__ import annotations

from typing import Any


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unspeakable(dict[str, int]):
    def items(self) -> Any:
        raise OSError("nothing to say")


def broken(*arguments: Any) -> None:
    raise RuntimeError("can't be sent")
