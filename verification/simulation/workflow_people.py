"""The people of the simulated world: they answer, pause, cancel, restart and erase runs at random moments."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from django.db import DatabaseError

from jobs.domain.errors import Refused
from jobs.domain.states import JobState
from jobs.models import Job
from jobs.operations.jobs import retry_dead_letter
from jobs.ports import Ports
from verification.simulation.scheduler import START
from verification.simulation.workflow_definitions import WAITS
from verification.simulation.world import World
from workflows.domain.plan import NodeKind
from workflows.domain.states import RunState
from workflows.models import Run, Wait
from workflows.operations.answers import answer_wait
from workflows.operations.control import cancel_run, pause_run, resume_run
from workflows.operations.erase import erase_run_data
from workflows.operations.restart import restart_run
from workflows.operations.signals import send_signal

TRIES = 4
"""Of a request whose answer is lost."""


class People:
    """They answer waits; until they are calm they also pause, cancel, restart and erase runs, and retry dead
    letters. taken: who gave which answers that were accepted, by the wait's node. erased: runs whose erasure
    was accepted."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self.are_calm = False
        self.taken: dict[str, list[tuple[str, Any]]] = {}
        self.erased: set[str] = set()
        self._world, self._chance = world, chance
        world.scheduler.spawn(world.outside, self._act)

    def _act(self) -> None:
        world, chance = self._world, self._chance
        while True:
            world.scheduler.sleep(chance.uniform(0.2, 3.0))
            acts: list[Callable[[], None]] = [self._answer, self._answer, self._signal]
            if not self.are_calm:
                acts += [self._cancel, self._pause, self._restart, self._restart, self._retry, self._erase]
            act = chance.choice(acts)
            try:
                act()
            except (ConnectionError, DatabaseError, Refused, Run.DoesNotExist) as error:
                world.scheduler.note("people", f"{act.__name__} failed: {error}")

    def _pick(self, found: Any) -> Any:
        rows = list(found[:40])
        return self._chance.choice(rows) if rows else None

    def _answer(self) -> None:
        """Two people answer one wait at once, or right when it expires."""
        waits = Wait.objects.filter(kind=NodeKind.HUMAN.value, answered_at=None)
        wait = self._pick(waits.select_related("node__run").order_by("node_id"))
        if wait is None:
            return
        world = self._world
        left = (wait.due_at - START).total_seconds() - world.scheduler.now if wait.due_at else math.inf
        if self._chance.random() < 0.4 and 0.0 < left < 30.0:
            world.scheduler.sleep(left - self._chance.uniform(0.0, 0.01))
        for by in ("ann", "bob"):
            answer = self._chance.choice(wait.options.get("choose_from", ["yes", "no"]))
            world.scheduler.spawn(world.outside, partial(self._answer_one, wait, answer, by))

    def _answer_one(self, wait: Wait, answer: Any, by: str) -> None:
        run, key = wait.node.run, wait.node.key

        def answered(ports: Ports) -> None:
            answer_wait(run, key, answer, by=by, ports=ports)

        if self._ask(answered):
            self.taken.setdefault(wait.node_id, []).append((by, answer))

    def _signal(self) -> None:
        tenant, body = self._chance.choice(self._world.tenants), {"n": self._chance.randrange(9)}
        self._ask(lambda ports: send_signal(tenant, "go", body, ports=ports))

    def _ask(self, request: Callable[[Ports], object]) -> bool:
        """Send a request, again if its answer is lost; return True if it was accepted, and not before a
        database that has forgotten it since."""
        for _ in range(TRIES):
            asked_at = self._world.scheduler.now
            try:
                self._world.web.call(request)
            except (ConnectionError, DatabaseError):
                self._world.scheduler.sleep(self._chance.uniform(0.1, 3.0))
            except (Refused, Run.DoesNotExist):
                return False
            else:
                return not self._world.forgotten.since(asked_at)
        return False

    def _cancel(self) -> None:
        if self._chance.random() < 0.5:
            return
        run_id = self._pick(Run.objects.filter(finished_at=None).order_by("id").values_list("id", flat=True))
        if run_id is not None:
            self._world.scheduler.sleep(self._chance.uniform(0.0, 2.0))
            self._world.web.call(lambda ports: cancel_run(run_id, ports=ports))

    def _pause(self) -> None:
        run_id = self._pick(Run.objects.filter(finished_at=None).order_by("id").values_list("id", flat=True))
        if run_id is None:
            return

        def switch(pauses: bool, ports: Ports) -> None:
            with suppress(Refused):  # it has ended
                (pause_run if pauses else resume_run)(run_id, ports=ports)

        self._world.operate(partial(switch, True))
        self._world.scheduler.sleep(self._chance.uniform(0.1, 8.0))
        self._world.operate(partial(switch, False))

    def _restart(self) -> None:
        """Restart what failed, or any node, of a run or sub-run that has ended; none that ends only with its
        parent."""
        over = Run.objects.exclude(state=RunState.RUNNING.value).exclude(version__workflow__name=WAITS)
        run = self._pick(over.order_by("id"))
        if run is None or run.round > 3:
            return
        keys = None
        if run.state == RunState.COMPLETED or self._chance.random() < 0.3:
            keys = [self._chance.choice(sorted(set(run.node_states) - {"mail"}))]
        self._world.web.call(lambda ports: restart_run(run.id, ports=ports, keys=keys))

    def _erase(self) -> None:
        """Erase the data of any run: refused while it or a sub-run is under way, and of a sub-run."""
        run_id = self._pick(Run.objects.order_by("id").values_list("id", flat=True))
        if run_id is None or self._chance.random() < 0.6:
            return
        if self._ask(lambda ports: erase_run_data(run_id, ports=ports)):
            self.erased.add(run_id)

    def _retry(self) -> None:
        """Retry a dead letter of a run, while its end may be on its way."""
        dead = Job.objects.filter(state=JobState.FAILED.value).exclude(followed_by=None).order_by("id")
        job_id = self._pick(dead.values_list("id", flat=True))
        if job_id is not None:
            self._world.web.call(lambda ports: retry_dead_letter(job_id, ports=ports))
