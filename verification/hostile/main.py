"""`manage.py prove --hostile`: runs the attacks one after another."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from verification.hostile.attacks.registry import ATTACKS
from verification.hostile.environment import Environment
from verification.hostile.options import read_options
from verification.hostile.report import write_report
from verification.hostile.trial import AttackResult, QuietBaseline, play
from verification.proving.children import NoReply
from verification.proving.system import CannotProve
from verification.proving.terminal import say

HELD, NOT_HELD, ABORTED = 0, 1, 3
_FIRST_QUIET = 6
"""The first baseline takes this many times the quiet time of later ones."""


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 every attack was held, 1 one was not, 2 bad arguments, 3 the trial could not be run."""
    options = read_options(arguments, tuple(ATTACKS))
    if options.list_only:
        for attack in ATTACKS.values():
            sys.stdout.write(f"{attack.id:<5} {attack.attacker:<20} {attack.title}\n")
        return HELD
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    env: Environment | None = None
    try:
        env = Environment(options)
        return _run(env)
    except (CannotProve, NoReply, OSError) as error:
        say(f"prove --hostile: {error}")
        return ABORTED
    except KeyboardInterrupt:
        say("broken off")
        return ABORTED
    finally:
        if env is not None:
            env.close()


def _run(env: Environment) -> int:
    begun = time.monotonic()
    env.open()
    options = env.options
    say(f"{env.url} is attacked {len(options.attacks)} times, seed {options.seed}; {env.report}")
    quiet = QuietBaseline()
    env.wait_until_calm()
    quiet.measure(env, _FIRST_QUIET * options.quiet_seconds)
    results: list[AttackResult] = []
    for name in options.attacks:
        results.append(play(env, ATTACKS[name](), quiet))
        say(results[-1].line())
    page = write_report(env, results, time.monotonic() - begun)
    say(f"report: {page}")
    bad = [result.id for result in results if result.wrongs]
    played = sum(not result.skipped for result in results)
    say(f"NOT HELD: {', '.join(bad)}" if bad else f"every attack was held ({played} played)")
    return NOT_HELD if bad else HELD


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
