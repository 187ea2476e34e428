"""`manage.py prove`: runs a trial."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from verification.proving.children import NoReply
from verification.proving.drain import drain, read_ends, release_rest
from verification.proving.faults.registry import FAULTS
from verification.proving.judge import Finding
from verification.proving.options import HOSTILE, read_options
from verification.proving.phases import BACKLOG_JOBS, MANY_JOBS, FaultResult, play
from verification.proving.report import write_report
from verification.proving.system import CannotProve
from verification.proving.terminal import say
from verification.proving.trial import Trial
from verification.proving.verdict import judge_records, read_records

SOUND, WRONG, ABORTED = 0, 1, 3
_ROUND_JOBS = 60
"""Jobs for one fault of later rounds, even if the planned jobs are used up."""
_SHOWN = 15
_RETRY_SECONDS = 5.0


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 no finding, 1 findings, 2 bad arguments, 3 the trial could not be run."""
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
    except (CannotProve, NoReply, RuntimeError, OSError) as error:
        say(f"prove: {error}")
        return ABORTED
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        say("broken off")
        return ABORTED
    finally:
        if trial is not None:
            trial.close()


def _run(trial: Trial) -> int:
    begun = time.monotonic()
    trial.open()
    options = trial.options
    say(f"{trial.system.url} is on trial: {options.jobs} jobs, seed {options.seed}; {trial.report}")
    results = list(_play_all(trial, begun))
    release_rest(trial)
    trial.load.ask(do="end_schedules")
    say("drain: waiting until everything is over")
    left = drain(trial)
    trial.watch.samples.end()
    left += read_ends(trial)
    if not options.starts_its_own:
        trial.load.ask(do="delete_schedules")
    trial.watch.stop()
    trial.feeder.stop()
    records = read_records(trial)
    outcome = judge_records(trial, records)
    outcome.wrongs += [Finding("left_open", text) for text in left]
    page = write_report(trial, results, records, outcome, seconds=time.monotonic() - begun)
    for one in outcome.wrongs[:_SHOWN]:
        say(f"! {one.kind} {one.job_id} {one.text}")
    bad = [result.name for result in results if result.wrongs]
    totals = outcome.totals
    say(
        f"{totals['jobs_accepted']} jobs accepted, {totals['jobs_by_state']}; {totals['gpu_runs']} GPU runs; "
        f"{sum(totals['runs_of_workflows'].values())} runs of workflows with {totals['jobs_of_runs']} jobs; "
        f"firings of schedules {totals['firings_of_schedules']}; "
        f"{totals['callbacks_arrived']} callbacks; {time.monotonic() - begun:.0f} s"
    )
    say(f"report: {page}")
    if not outcome.wrongs and not bad:
        say("nothing is wrong")
        return SOUND
    say(f"WRONG: {len(outcome.wrongs)} findings in the records, faults: {', '.join(bad) or 'none'}")
    return WRONG


def _play_all(trial: Trial, begun: float) -> Iterator[FaultResult]:
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
            if in_time:  # faults of further rounds need jobs too
                trial.feeder.limit = max(trial.feeder.limit, trial.feeder.released + allowances[name])
            result = play(trial, FAULTS[name](), allowances[name])
            say(result.line())
            yield result
        left = trial.options.jobs - trial.feeder.released
        in_time = time.monotonic() - begun < trial.options.minutes * 60
        if not in_time and not (left > 0 and min(allowances.values()) >= MANY_JOBS):
            return
        allowances = dict.fromkeys(names, max(_ROUND_JOBS, left if left >= MANY_JOBS else 0))
        chance.shuffle(order)


def shares(jobs: int, names: Sequence[str]) -> dict[str, int]:
    """Return the number of jobs for each fault of the first round; a fault that needs a long queue gets most
    of the last quarter.

    With many jobs some are left for further rounds: a fault uses as many as its time allows."""
    reserve = min(BACKLOG_JOBS + BACKLOG_JOBS // 5, jobs // 4)
    share = max(1, (jobs - reserve) // max(1, len(names)))
    return {name: reserve * 5 // 6 if FAULTS[name].backlog else share for name in names}


def _only_load(trial: Trial, begun: float) -> None:
    """Without faults: release the jobs evenly over the minutes, if given."""
    seconds = trial.options.minutes * 60
    while (passed := time.monotonic() - begun) < seconds:
        due = int(trial.options.jobs * passed / seconds) - trial.feeder.released
        if due > 0:
            trial.feeder.release(due)
        time.sleep(0.5)


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Raise again until it is handled: a finaliser may be running, in which Python swallows exceptions."""
    signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
