"""Waits after the last fault until all accepted jobs have ended, and reports those that do not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from verification.proving.terminal import say

if TYPE_CHECKING:
    from verification.proving.trial import Trial

STUCK_SECONDS = 150.0
"""The drain ends after this time without a change."""
CALLBACK_SECONDS = 420.0
"""After two failed tries the third follows five minutes later."""
_SETTLE_SECONDS = 90.0
_LINE_JOBS = 1000
_SAY_SECONDS = 15.0


def release_rest(trial: Trial) -> None:
    """Release the rest of the jobs as the queue gets shorter."""
    said = time.monotonic()
    while True:
        left = trial.options.jobs - trial.feeder.released
        if left <= 0:
            return
        trial.check()
        waiting = trial.feeder.waiting_now()
        if waiting is None or waiting < _LINE_JOBS // 2:
            trial.feeder.release(min(_LINE_JOBS, left))
        if time.monotonic() - said > _SAY_SECONDS:
            said = time.monotonic()
            say(f"load: {trial.feeder.released} of {trial.options.jobs} jobs sent")
        time.sleep(0.5)


def drain(trial: Trial) -> list[str]:
    """Wait until nothing changes any more; return the jobs that were still open."""
    if trial.state is None:
        return _drain_from_outside(trial)
    open_jobs = _wait_until_stable(trial)
    left = [f"{open_jobs} jobs are not over"] if open_jobs else []
    until = time.monotonic() + CALLBACK_SECONDS
    said = 0.0
    while (pending := trial.state.pending_callbacks()) is None or pending[0]:
        if time.monotonic() > until:
            left.append(f"{pending[0] if pending else 'unknown'} callbacks are not delivered")
            break
        if pending and time.monotonic() - said > _SAY_SECONDS:
            said = time.monotonic()
            due = max(0.0, pending[1] - time.time())
            say(f"drain: {pending[0]} callbacks to come, the last in {due:.0f} s")
        time.sleep(0.5)
    until = time.monotonic() + _SETTLE_SECONDS
    while (slots := _unsettled(trial)) and time.monotonic() < until:
        time.sleep(0.5)
    return [*left, *slots]


def read_ends(trial: Trial) -> list[str]:
    """Let every client read how its jobs ended."""
    counts = trial.load.ask(do="fates")
    until = time.monotonic() + 60.0 + trial.options.jobs / 50
    while counts["fates"] == "asking":
        if time.monotonic() > until:
            return ["the clients could not read how their jobs ended in time"]
        time.sleep(0.5)
        counts = trial.load.ask(do="say")
    return (
        []
        if counts["fates"] == "reported"
        else [f"the clients could not read how their jobs ended: {counts}"]
    )


def _wait_until_stable(trial: Trial) -> int:
    """Return the number of unfinished jobs, once it is 0 or has not changed for a long time."""
    assert trial.state is not None
    last, since, said = -1, time.monotonic(), time.monotonic()
    while True:
        trial.check()
        counts = trial.feeder.counts()
        coming = counts["released"] - counts["accepted"] - counts["given_up"]
        coming += counts["runs_released"] - counts["runs_over"] + counts["schedules_open"]
        unfinished, runs = trial.state.unfinished(), trial.state.live_runs()
        now = time.monotonic()
        if unfinished is not None and runs is not None and unfinished + runs + coming != last:
            last, since = unfinished + runs + coming, now
        if last == 0 or now - since > STUCK_SECONDS:
            return last
        if now - said > _SAY_SECONDS:
            said = now
            say(f"drain: {last} jobs to go")
        time.sleep(0.5)


def _unsettled(trial: Trial) -> list[str]:
    """Return leases and quarantines that outlive their jobs."""
    assert trial.state is not None
    views = trial.state.slot_views([gpu.name for gpu in trial.fleet.gpus])
    if views is None:
        return ["the leases can't be read"]
    return [
        f"slot {slot} is {view.state} after the drain" for slot, view in views.items() if view.state != "free"
    ]


def _drain_from_outside(trial: Trial) -> list[str]:
    """Let the clients poll until all their jobs have ended."""
    until = time.monotonic() + STUCK_SECONDS + trial.options.jobs / 5
    while time.monotonic() < until:
        counts = trial.feeder.counts()
        is_sent = counts["released"] <= counts["accepted"] + counts["given_up"]
        if is_sent and not counts["schedules_open"] and not trial.feeder.waiting_now():
            trial.signs.read()
            if not trial.signs.running:
                return []
        time.sleep(1.0)
    return ["the jobs did not end in time"]
