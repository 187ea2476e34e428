"""Standard streams that the caller has closed (`>&-`, some service managers)."""

from __future__ import annotations

import os
import sys

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_closed_streams() -> None:
    """Open the null device in place of closed standard streams.

    Python sets them to None, which no print of a command expects; and the next file that is opened, a
    database maybe, would get the stream's number, to which child processes write.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is not None:
            continue
        if not _is_open(number):
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
        setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (for as long as the process)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
