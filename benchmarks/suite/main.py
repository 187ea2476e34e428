"""`manage.py bench`: runs the benchmarks."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import FrameType
from typing import Any

from dispatcher_project.supervisor.data_folder import ROOT
from foundation.program import IN_CHECKOUT, usage_name
from verification.proving.children import NoReply
from verification.proving.terminal import say

from .environment import BenchEnvironment, CannotMeasure
from .gpu import NotDone
from .options import Options, read_options
from .suite import Suite

DONE, MISSED, ABORTED = 0, 1, 3
_RETRY_SECONDS = 5.0


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 measured, 1 a goal was missed and --check given, 2 bad arguments, 3 aborted."""
    options = read_options(arguments)
    os.chdir(ROOT)  # children find their modules from here
    if options.setup is not None:
        return _set_up(options.setup)
    if options.page:
        if not IN_CHECKOUT:
            sys.stderr.write("bench: --page writes into docs/ of a checkout; this is an installed wheel\n")
            return 2
        return _write_docs(options)
    if not sys.platform.startswith("linux"):
        sys.stderr.write("bench: CPU and memory of processes are read from /proc: this needs Linux\n")
        return ABORTED
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, _interrupted)
    env: BenchEnvironment | None = None
    try:
        env = BenchEnvironment(options.database)
        return _measure(Suite(options, env))
    except (CannotMeasure, OSError) as error:
        say(f"bench: {error}")
        return ABORTED
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        say("broken off")
        return ABORTED
    finally:
        if env is not None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the clean-up
            env.close()


def _measure(suite: Suite) -> int:
    from .report import Report

    report = Report.open(suite.options)
    failed: list[str] = []
    for name in suite.options.benchmarks:
        say(f"-- {name}")
        load_before = os.getloadavg()[0]
        try:
            found: Mapping[str, Any] = benchmark(name)(suite)
        except (CannotMeasure, NotDone, NoReply, OSError, ValueError) as error:
            failed.append(name)
            say(f"{name} could not be measured: {error}")
            continue
        report.add(name, found, suite.skipped, load_before)
        report.write()
    sys.stdout.write(report.text() + "\n")
    say(f"report: {report.page_path}")
    if failed:
        return ABORTED
    return MISSED if suite.options.check and report.missed() else DONE


def benchmark(name: str) -> Callable[[Suite], Mapping[str, Any]]:
    """Return the function of the module with this name."""
    found: Callable[[Suite], Mapping[str, Any]] = import_module(
        f"benchmarks.suite.{name.replace('-', '_')}"
    ).measure
    return found


def _set_up(names: Sequence[str]) -> int:
    from .peers import available_peers, set_up

    failed = 0
    for name in names:
        say(f"setting up {name}")
        if why := set_up(available_peers()[name]):
            failed += 1
            say(f"{name} is left out: {why}")
    return int(bool(failed))


def _write_docs(options: Options) -> int:
    from .document import write_docs

    try:
        written = write_docs(options.report)
    except FileNotFoundError:
        sys.stderr.write(
            f"bench: there are no results in {options.report}: run `{usage_name('bench')}` first\n"
        )
        return 2
    for path in written:
        say(f"wrote {path}")
    return DONE


def _interrupted(number: int, frame: FrameType | None) -> None:
    """Raise again until it is handled: a finaliser may be running, in which Python swallows exceptions."""
    signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS)
    raise KeyboardInterrupt
