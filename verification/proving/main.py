"""`manage.py prove`: the order of a trial."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from verification.proving.children import Silent
from verification.proving.drain import ask_fates, drain, release_rest
from verification.proving.faults.registry import FAULTS
from verification.proving.judge import Wrong
from verification.proving.options import HOSTILE, read_options
from verification.proving.phases import BACKLOG_JOBS, EAGER_JOBS, Story, play
from verification.proving.report import write_report
from verification.proving.system import CannotProve
from verification.proving.terminal import say
from verification.proving.trial import Trial
from verification.proving.verdict import judged, read_records

SOUND, WRONG, BROKEN_OFF = 0, 1, 3
_ROUND_JOBS = 60
"""What one fault may use up in later rounds, also when the jobs are used up already."""
_SHOWN = 15
_AGAIN_SECONDS = 5.0


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 nothing is wrong, 1 something is, 2 bad arguments, 3 the trial could not be held."""
    if HOSTILE in arguments:
        from verification.hostile.main import main as attack

        return attack(arguments)
    options = read_options(arguments, tuple(FAULTS))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, _interrupted)
    trial: Trial | None = None
    try:
        trial = Trial(options)
        return _run(trial)
    except (CannotProve, Silent, RuntimeError, OSError) as error:
        say(f"prove: {error}")
        return BROKEN_OFF
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        say("broken off")
        return BROKEN_OFF
    finally:
        if trial is not None:
            trial.close()


def _run(trial: Trial) -> int:
    begun = time.monotonic()
    trial.open()
    options = trial.options
    say(f"{trial.system.url} is on trial: {options.jobs} jobs, seed {options.seed}; {trial.report}")
    stories = list(_play_all(trial, begun))
    release_rest(trial)
    say("drain: waiting until everything is over")
    left = drain(trial)
    trial.watch.samples.end()
    left += ask_fates(trial)
    trial.watch.stop()
    trial.feeder.stop()
    records = read_records(trial)
    outcome = judged(trial, records)
    outcome.wrongs += [Wrong("left_open", text) for text in left]
    page = write_report(trial, stories, records, outcome, seconds=time.monotonic() - begun)
    for one in outcome.wrongs[:_SHOWN]:
        say(f"! {one.kind} {one.job_id} {one.text}")
    bad = [story.name for story in stories if story.wrongs]
    totals = outcome.totals
    say(
        f"{totals['jobs_accepted']} jobs accepted, {totals['jobs_by_state']}; {totals['gpu_runs']} GPU runs; "
        f"{totals['callbacks_arrived']} callbacks; {time.monotonic() - begun:.0f} s"
    )
    say(f"report: {page}")
    if not outcome.wrongs and not bad:
        say("nothing is wrong")
        return SOUND
    say(f"WRONG: {len(outcome.wrongs)} findings in the records, faults: {', '.join(bad) or 'none'}")
    return WRONG


def _play_all(trial: Trial, begun: float) -> Iterator[Story]:
    names = tuple(FAULTS) if trial.options.faults is None else trial.options.faults
    if not names:
        _only_load(trial, begun)
        return
    chance = random.Random(trial.options.seed)
    order = list(names)
    allowances = shares(trial.options.jobs, names)
    in_time = False
    while True:
        for name in order:
            if in_time:  # its faults need jobs, also when all are used up
                trial.feeder.limit = max(trial.feeder.limit, trial.feeder.released + allowances[name])
            story = play(trial, FAULTS[name](), allowances[name])
            say(story.line())
            yield story
        left = trial.options.jobs - trial.feeder.released
        in_time = time.monotonic() - begun < trial.options.minutes * 60
        if not in_time and not (left > 0 and min(allowances.values()) >= EAGER_JOBS):
            return
        allowances = dict.fromkeys(names, max(_ROUND_JOBS, left if left >= EAGER_JOBS else 0))
        chance.shuffle(order)


def shares(jobs: int, names: Sequence[str]) -> dict[str, int]:
    """How many jobs each fault of the first round may use up; one that wants a long line gets most of a last
    quarter. Many jobs last for further rounds: a fault uses up what its time allows."""
    reserve = min(BACKLOG_JOBS + BACKLOG_JOBS // 5, jobs // 4)
    share = max(1, (jobs - reserve) // max(1, len(names)))
    return {name: reserve * 5 // 6 if FAULTS[name].backlog else share for name in names}


def _only_load(trial: Trial, begun: float) -> None:
    """Evenly over the minutes, if some were given."""
    seconds = trial.options.minutes * 60
    while (passed := time.monotonic() - begun) < seconds:
        due = int(trial.options.jobs * passed / seconds) - trial.feeder.released
        if due > 0:
            trial.feeder.release(due)
        time.sleep(0.5)


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Raised again until somebody hears of it: a finaliser may be what runs now, and Python
    swallows what is raised in one."""
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
