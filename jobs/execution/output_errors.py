"""Why the outputs of a run are not stored yet: another try of the same worker may succeed."""

from __future__ import annotations

from gpus.errors import OutputNotStored


class OutputsUnavailable(OutputNotStored):
    """The store or the database did not answer; another try may succeed.

    is_bounded: a run that has ended waits for some time only; False: as long as its end could not be written
    anyway.
    """

    is_bounded = True


def no_room(why: str) -> OutputsUnavailable:
    """Return the error of a file for which this host has no room now."""
    return OutputsUnavailable(
        f"The worker's temporary folder (TMPDIR) does not take a file of the result: {why}."
    )


class OutputsUnrecorded(OutputsUnavailable):
    """The database did not answer."""

    is_bounded = False
