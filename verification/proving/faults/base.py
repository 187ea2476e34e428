"""The base of every fault: its start and repair, its effect, and the conditions afterwards."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from verification.proving.submit_answers import ALWAYS

if TYPE_CHECKING:
    from verification.proving.recovery import Sign
    from verification.proving.state import Live
    from verification.proving.trial import Trial


class Fault:
    """A fault. bound_seconds: limit of the recovery, from its repair, or from its start if it repairs itself.
    hold_seconds: how long it lasts. runs_once: attempts that must not be followed by another one: ``all``
    that ran when it began, ``polled`` ones, or ``none``."""

    name: ClassVar[str]
    expected: ClassVar[str]
    bound_seconds: ClassVar[float]
    hold_seconds: ClassVar[float] = 0.0
    mends_itself: ClassVar[bool] = False
    recovers_while_on: ClassVar[bool] = False
    """Whether it must recover before its repair, counted from its start."""
    runs_once: ClassVar[str] = "none"
    submit_answers: ClassVar[str] = ALWAYS
    """The answers that clients may get while it lasts (submit_answers.py)."""
    settle_seconds: ClassVar[float] = 45.0
    """Longest pause before the next fault, while traces of this one remain."""
    longest_run_seconds: ClassVar[float] = 4.0
    """The longest synchronous run; longer than a lease where that matters."""
    jobs_with_files: ClassVar[int] = 0
    """Jobs with a file that are submitted right before it, and as many more while it lasts."""
    backlog: ClassVar[bool] = False
    """Whether it needs a long queue of waiting jobs."""

    def skip(self, trial: Trial) -> str:
        """Return why it can't be played here; empty if it can."""
        return "" if trial.state is not None else "it needs access to the dispatcher's stores: give --up-json"

    def play(self, trial: Trial) -> None:
        """Start the fault."""
        raise NotImplementedError

    def mend(self, trial: Trial) -> None:
        """Repair it. Called once, also if the trial is aborted."""

    def aims_at(self, trial: Trial, live: Live) -> bool:
        """Return True if it would affect this attempt if played now; it is not played while it would affect
        none."""
        return True

    def affects(self, live: Live) -> bool:
        """Return True if this attempt, live when it was played, is affected."""
        return True

    def kills(self, live: Live) -> bool:
        """Return True if the attempt has lost its worker, so that it must be adopted or run again."""
        return False

    def excluded_servers(self, trial: Trial) -> Sequence[str]:
        """Return GPU servers whose slots need not work again."""
        return ()

    def signs(self, trial: Trial) -> Mapping[str, Sign]:
        """Return further signs of recovery, by name."""
        return {}

    def is_over(self, trial: Trial) -> bool:
        """Return True if no trace is left that could disturb the next fault."""
        return True

    def wrongs(self, trial: Trial, affected: Sequence[Live]) -> list[str]:
        """Return findings after its recovery."""
        return []

    def notes(self, trial: Trial) -> list[str]:
        """Return remarks for the report."""
        return []


def wait(trial: Trial, seconds: float) -> None:
    """Sleep, but end at once if a record of the trial fails."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        trial.check()
        time.sleep(min(0.1, max(0.0, until - time.monotonic())))
