"""`python3 -m tests.verification.simulation.player`: plays seeds on request.

A line of JSON on stdin has the arguments of `_play`; another one answers: `{"broken": [laws], "played",
"cost": {}, "steps": []}`. One process for many requests: starting Django costs more than playing. It begins
with a copy of the migrated database of the run of tests, if there is one. So does `manage.py simulate`, which
runs here with the arguments after the word `simulate`.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.supervisor.embedded import die_with_parent

HASH_SEED = "1"
MIGRATED = "MIGRATED_DATABASE"


class Player:
    """The process, as used by a test. without: mechanisms to remove; faults: empty for all. It plays until a
    law breaks, or the one that `law` begins, or until the cost `until` occurs; with_steps: return the steps
    of the last seed."""

    def __init__(self, process: Popen[str]) -> None:
        self._process = process

    def play(
        self,
        seeds: int,
        *,
        first: int = 0,
        without: str = "",
        faults: str = "",
        jobs: int = 24,
        faults_each: int = 12,
        law: str = "",
        until: str = "",
        with_steps: bool = False,
        runs: int = 0,
        schedules: int = 0,
        edited: int = 0,
        files: int = 0,
    ) -> dict[str, Any]:
        asked = {
            "mechanisms": [name for name in without.split(",") if name],
            "faults": [name for name in faults.split(",") if name],
            "first": first, "seeds": seeds, "jobs": jobs, "faults_each": faults_each, "law": law,
            "until": until, "with_steps": with_steps, "runs": runs,
            "schedules": schedules, "edited": edited, "files": files,
        }  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(asked)}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the player died: see its standard error"
        return json.loads(answer)  # type: ignore[no-any-return]


@contextmanager
def started_player(migrated: Path) -> Iterator[Player]:
    """migrated: a migrated database; a file that need not be there."""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "dispatcher_project.settings.simulation"}
    process = Popen(
        [sys.executable, "-m", __name__],
        cwd=ROOT,
        env={
            **environment,
            "PYTHONWARNINGS": "ignore",
            "DISPATCHER_PAGES": "0",
            "PYTHONHASHSEED": HASH_SEED,
            MIGRATED: str(migrated),
        },
        stdin=PIPE,
        stdout=PIPE,
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509  (only this thread forks)
    )
    try:
        yield Player(process)
    finally:
        process.communicate()  # it exits at the end of its standard input


def main() -> None:
    import django

    django.setup()
    from dispatcher_project.celery_transport.gc_tuning import collect_seldom
    from dispatcher_project.supervisor.embedded import EmbeddedValkey
    from verification.simulation.redis_link import connect

    _take_migrated()
    collect_seldom()
    with tempfile.TemporaryDirectory() as folder, EmbeddedValkey(Path(folder), append_only=False) as valkey:
        client = connect(valkey.url)
        for line in sys.stdin:
            sys.stdout.write(f"{json.dumps(_play(client, **json.loads(line)))}\n")
            sys.stdout.flush()


def simulate(arguments: Sequence[str]) -> None:
    from dispatcher_project.cli import main as cli

    run_django = cli._run_django

    def run(argv: list[str]) -> None:
        """With the settings that `manage.py` has chosen."""
        _take_migrated()
        run_django(argv)

    cli._run_django = run
    cli.manage(["manage.py", "simulate", *arguments])


def _take_migrated() -> None:
    from verification.simulation import database

    if (migrated := Path(os.environ[MIGRATED])).exists():
        database._templates[database._EMPTY] = template = sqlite3.connect(migrated)
        template.execute("PRAGMA journal_mode = DELETE")  # no database in memory has another one's WAL


def _play(
    client: Any,
    *,
    mechanisms: list[str],
    faults: list[str],
    first: int,
    seeds: int,
    jobs: int,
    faults_each: int,
    law: str,
    until: str,
    with_steps: bool,
    runs: int,
    schedules: int,
    edited: int,
    files: int,
) -> dict[str, Any]:
    from tests.verification.simulation.sabotage import MECHANISMS, counted_bookings
    from verification.simulation.run import simulate
    from verification.simulation.size import Size

    size = Size(
        jobs=jobs,
        faults=faults_each,
        names=tuple(faults),
        keeps_history=with_steps,
        runs=runs,
        schedules=schedules,
        edited=edited,
        files=files,
    )
    steps: list[str] = []
    cost, broken, played = Counter[str](), list[str](), 0
    with ExitStack() as stack:
        for name in mechanisms:
            stack.enter_context(MECHANISMS[name]())
        stack.enter_context(counted_bookings(cost))
        while not (cost[until] if until else any(one.startswith(law) for one in broken)) and played < seeds:
            verdict = simulate(first + played, client, size)
            broken += [f"{law} (seed {verdict.seed})" for law in verdict.broken]
            played += 1
            cost.update(verdict.cost)
            steps = (
                [f"{at:10.4f} {actor:<12} {what}" for at, actor, what in verdict.history]
                if with_steps
                else []
            )
    return {"broken": broken, "played": played, "cost": cost, "steps": steps}


if __name__ == "__main__":
    if sys.argv[1:2] == ["simulate"]:
        simulate(sys.argv[2:])
    else:
        main()
