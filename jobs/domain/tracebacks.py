"""Splits a stored error into message and traceback, and leaves out the dispatcher's own frames. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FRAME = re.compile(r'  File "(?P<path>.*)", line \d+')
_OWN = re.compile(
    r"(^|[/\\])(gpu_host[/\\](handlers|llm_servers|local|node)|gpus[/\\]runners|foundation)[/\\][^/\\]+\.py$"
)
_MODELS = re.compile(r"[/\\]gpu_host[/\\](local[/\\](check|demo)_models|node[/\\]demo)\.py$")
"""Model code that comes with the dispatcher: shown as a user's."""


def split_message(stored: str) -> tuple[str, str]:
    """The message of an attempt's error, and its traceback or an empty text."""
    message, _, trace = stored.partition("\n\n")
    return message, trace


@dataclass(frozen=True, slots=True)
class Traceback:
    """The traceback of an attempt's error. shown: without the dispatcher's own frames, as far as others are
    left."""

    whole: str
    shown: str

    @property
    def is_cut(self) -> bool:
        """True if frames are left out of `shown`."""
        return self.shown != self.whole


def traceback_in(stored: str) -> Traceback | None:
    """Return the traceback in an attempt's stored error; None without one."""
    trace = split_message(stored)[1]
    return Traceback(trace, without_own_frames(trace)) if trace else None


def without_own_frames(trace: str) -> str:
    """A traceback without the dispatcher's own frames, each with its source lines; unchanged if no frame
    would be left.

    The stored text is the end of a traceback, so its first frame may lack its first line."""
    kept: list[str] = []
    is_own, seen = False, 0
    for line in trace.split("\n"):
        frame = _FRAME.match(line)
        if frame:
            path = frame["path"]
            is_own = bool(_OWN.search(path)) and not _MODELS.search(path)
            seen += not is_own
        elif not line.startswith("    "):
            is_own = False  # of a frame, only its source lines are indented deeper
        if not is_own:
            kept.append(line)
    return "\n".join(kept) if seen else trace
