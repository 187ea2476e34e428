"""`manage.py prove --hostile`: the order of a trial."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from verification.hostile.attacks.registry import ATTACKS
from verification.hostile.ground import Ground
from verification.hostile.options import read_options
from verification.hostile.report import write_report
from verification.hostile.trial import Quiet, Story, play
from verification.proving.children import Silent
from verification.proving.system import CannotProve
from verification.proving.terminal import say

HELD, NOT_HELD, BROKEN_OFF = 0, 1, 3
_FIRST_QUIET = 6
"""Times the quiet time before each attack."""


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 every attack was held, 1 one was not, 2 bad arguments, 3 the trial could not be held."""
    options = read_options(arguments, tuple(ATTACKS))
    if options.list_only:
        for attack in ATTACKS.values():
            sys.stdout.write(f"{attack.id:<5} {attack.who:<20} {attack.title}\n")
        return HELD
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    ground: Ground | None = None
    try:
        ground = Ground(options)
        return _run(ground)
    except (CannotProve, Silent, OSError) as error:
        say(f"prove --hostile: {error}")
        return BROKEN_OFF
    except KeyboardInterrupt:
        say("broken off")
        return BROKEN_OFF
    finally:
        if ground is not None:
            ground.close()


def _run(ground: Ground) -> int:
    begun = time.monotonic()
    ground.open()
    options = ground.options
    say(f"{ground.url} is attacked {len(options.attacks)} times, seed {options.seed}; {ground.report}")
    quiet = Quiet()
    ground.wait_until_calm()
    quiet.measure(ground, _FIRST_QUIET * options.quiet_seconds)
    stories: list[Story] = []
    for name in options.attacks:
        stories.append(play(ground, ATTACKS[name](), quiet))
        say(stories[-1].line())
    page = write_report(ground, stories, time.monotonic() - begun)
    say(f"report: {page}")
    bad = [story.id for story in stories if story.wrongs]
    played = sum(not story.skipped for story in stories)
    say(f"NOT HELD: {', '.join(bad)}" if bad else f"every attack was held ({played} played)")
    return NOT_HELD if bad else HELD


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
