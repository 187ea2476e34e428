"""What every fault is: how it is played and mended, whom it hits, and what must hold afterwards."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from verification.proving.front_door import ALWAYS

if TYPE_CHECKING:
    from verification.proving.recovery import Sign
    from verification.proving.state import Live
    from verification.proving.trial import Trial


class Fault:
    """bound_seconds: for the recovery, from when it was mended, or played if it mends itself.

    hold_seconds: how long it lasts. runs_once: whose attempts must not be followed by another one: ``all``
    that ran when it began, ``polled`` ones, or ``none`` of them.
    """

    name: ClassVar[str]
    expected: ClassVar[str]
    bound_seconds: ClassVar[float]
    hold_seconds: ClassVar[float] = 0.0
    mends_itself: ClassVar[bool] = False
    recovers_while_on: ClassVar[bool] = False
    """Whether it must recover before it is mended, counted from when it was played."""
    runs_once: ClassVar[str] = "none"
    front_door: ClassVar[str] = ALWAYS
    """What clients may be answered while it is on (front_door.py)."""
    settle_seconds: ClassVar[float] = 45.0
    """Longest pause before the next fault, while traces of this one remain."""
    longest_run_seconds: ClassVar[float] = 4.0
    """Of the longest run that is answered with its result: it shall outlast the lease where that matters."""
    backlog: ClassVar[bool] = False
    """Whether it wants a long line of waiting jobs."""

    def skip(self, trial: Trial) -> str:
        """Why it can't be played here; empty if it can."""
        return "" if trial.state is not None else "it needs a look into the dispatcher: give --up-json"

    def play(self, trial: Trial) -> None:
        raise NotImplementedError

    def mend(self, trial: Trial) -> None:
        """Ends it. Called once, also if the trial is broken off."""

    def aims_at(self, trial: Trial, live: Live) -> bool:
        """Whether it would hit this attempt if it was played now: it is not, as long as it would hit none."""
        return True

    def hits(self, live: Live) -> bool:
        """Whether this attempt, live when it was played, is affected."""
        return True

    def kills(self, live: Live) -> bool:
        """Whether nobody holds this attempt any more, so that it must be taken over or run again."""
        return False

    def sick_servers(self, trial: Trial) -> Sequence[str]:
        """GPU servers whose slots need not work again."""
        return ()

    def signs(self, trial: Trial) -> Mapping[str, Sign]:
        """What else must work again."""
        return {}

    def is_over(self, trial: Trial) -> bool:
        """Whether nothing of it is left that the next fault could meet."""
        return True

    def wrongs(self, trial: Trial, affected: Sequence[Live]) -> list[str]:
        """What else must hold once it recovered, in words if it does not."""
        return []

    def notes(self, trial: Trial) -> list[str]:
        """What a reader of the report should know besides."""
        return []


def wait(trial: Trial, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        trial.check()
        time.sleep(min(0.1, max(0.0, until - time.monotonic())))
