"""Runs of workflows in the simulated world: their clients with a ledger, and the people who answer, pause,
cancel and restart them at random moments."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import DatabaseError

from artifacts.refs import REF
from jobs.domain.errors import QuotaExhausted, Refused
from jobs.domain.states import FINAL_JOB_STATES, JobState
from jobs.models import Job
from jobs.operations.jobs import retry_dead_letter
from jobs.ports import Ports
from verification.simulation.files import upload
from verification.simulation.scheduler import START
from verification.simulation.size import Size
from verification.simulation.world import WARM_UP_SECONDS, World
from workflows import operations
from workflows.domain.plan import NodeKind
from workflows.domain.states import NodeState, RunState
from workflows.execution.retried import postponed_of_ended_runs
from workflows.models import MapFile, Node, Run, Version, Wait, Workflow, follower_of
from workflows.signals import send_signal

STUCK_SECONDS = 60.0
RETRY_SECONDS = 10.0
CALLBACK_SHARE = 0.4
LIST_SHARE, LONG_SHARE = 0.5, 0.5
"""Of the wide runs: those whose list is an artifact of JSON lines, and those whose output is long."""
LONG_CHARS = 150_000
"""Of the result of an item: two are more than stays in the row of a map or run."""
LINES = "application/jsonl"
_FINAL_JOBS = [state.value for state in FINAL_JOB_STATES]


def _job(model: str, seconds: float = 0.5, **payload: Any) -> dict[str, Any]:
    return {"model": model, "payload": {"seconds": seconds, "fails": 0.0, **payload}, "max_retries": 3}


def _ref(expression: str, **more: Any) -> dict[str, Any]:
    return {"$ref": expression, **more}


CHILD: dict[str, Any] = {
    "nodes": {
        "pause": {"timer": {"seconds": _ref("inputs.seconds")}},
        "work": {**_job("tiny", got=_ref("inputs.got")), "needs": ["pause"]},
    },
    "output": {"got": _ref("work.attempt")},
}
DEFINITIONS: dict[str, dict[str, Any]] = {
    "chain": {
        "nodes": {
            "a": _job("zimg", number=_ref("inputs.number")),
            "b": {**_job("ltx2", a=_ref("a.attempt")), "near": "a"},
            "c": {
                **_job("tiny", fails=_ref("inputs.fails"), b=_ref("b.attempt"), a=_ref("a.server")),
                "near": "a",
            },
            "d": {**_job("tiny", c=_ref("c.attempt")), "when": "inputs.number > `3`"},
            "e": {**_job("tiny", d=_ref("d.attempt", default="skipped")), "needs": ["c"], "near": "c"},
        },
        "output": {"c": _ref("c.attempt")},
    },
    "wide": {
        "nodes": {
            "list": _job("tiny", number=_ref("inputs.number")),
            "many": {
                **_job(
                    "zimg",
                    fails=_ref("inputs.fails"),
                    item=_ref("item"),
                    from_=_ref("list.attempt"),
                    result_chars=_ref("inputs.chars", default=0),
                ),
                "map": {"over": _ref("inputs.items"), "max_parallel": 2, "fail_at": 0.6},
                "near": "list",
            },
            "none": {**_job("tiny"), "map": {"count": 0}, "needs": ["list"]},
            "join": {**_job("tiny", all=_ref("many[*].attempt")), "needs": ["none"]},
        },
        "output": {"joined": _ref("join.attempt"), "texts": _ref("many[*].text", default=[])},
        "on_failure": {"running": "cancel", "node": "mail"},
    },
    "asks": {
        "nodes": {
            "a": _job("tiny"),
            "best": {
                "human": {
                    "title": "Which?",
                    "choose_from": _ref("inputs.items"),
                    "expires_seconds": 12,
                    "on_expiry": "default",
                    "default": "expired",
                },
                "needs": ["a"],
            },
            "sign": {"signal": {"name": "go", "expires_seconds": 20, "on_expiry": "skip"}},
            "b": {**_job("zimg", best=_ref("best"), sign=_ref("sign", default=0)), "needs": ["sign"]},
        },
        "output": _ref("best"),
    },
    "nested": {
        "nodes": {
            "a": _job("ltx2", fails=_ref("inputs.fails")),
            "sub": {"workflow": "child", "inputs": {"got": _ref("a.attempt"), "seconds": 2}},
            "subs": {
                "workflow": "child",
                "inputs": {"got": _ref("index"), "seconds": _ref("index")},
                "map": {"count": 2, "max_parallel": 1},
                "needs": ["a"],
            },
            "last": {
                **_job("tiny", sub=_ref("sub.got", default=0), subs=_ref("subs[*].got", default=[])),
                "needs_rule": "all_done",
            },
        },
        "output": {"last": _ref("last.attempt")},
    },
}
DEFINITIONS["wide"]["nodes"]["mail"] = _job("tiny", error=_ref("error.node", default=""))


def changed(definition: dict[str, Any], number: int) -> dict[str, Any]:
    """Return another version of a definition: its first node gets one value more."""
    first, *_ = definition["nodes"]
    node = definition["nodes"][first]
    payload = {**node.get("payload", {}), "version": number}
    return {**definition, "nodes": {**definition["nodes"], first: {**node, "payload": payload}}}


@dataclass(slots=True)
class RunOrder:
    """A run that a client starts. lines: JSON lines that it uploads, for the list of its map; empty: the list
    is in the inputs. run_ids: all ids that it got for its key; more than one is a defect."""

    key: str
    tenant: int
    workflow: str
    inputs: dict[str, Any]
    at: float
    callback_url: str
    lines: bytes = b""
    run_ids: set[str] = field(default_factory=set)


class WorkflowRuns:
    """The runs of a world. broken: violated laws."""

    def __init__(self, world: World, size: Size) -> None:
        self.broken: list[str] = []
        self._world = world
        self._chance = random.Random(f"{world.seed} runs of workflows")
        self.orders = [self._order(number, size) for number in range(size.runs)]
        self._is_calm = False
        self._waiting_since: dict[str, float] = {}
        self._taken: dict[str, list[Any]] = {}
        self._versions = 1
        self._lengthen()
        if not self.orders:
            return
        self._put_definitions()
        world.advancers.start()
        for order in self.orders:
            world.scheduler.spawn(world.outside, partial(self._start, order))
        world.scheduler.spawn(world.outside, self._people)
        forgotten = world.on_forgotten

        def on_forgotten() -> None:
            forgotten()
            self._start_again()

        world.on_forgotten = on_forgotten
        world.advancers.change_definition = self._change_definition

    def heal(self) -> None:
        """From now on nobody disturbs the runs; waits are answered."""
        self._is_calm = True

    def is_over(self) -> bool:
        """Return True if each run was started and has ended."""
        return all(order.run_ids for order in self.orders) and not (
            self.orders and (Run.objects.filter(finished_at=None).exists() or postponed_of_ended_runs(1))
        )

    def job_count(self) -> int:
        """Return the number of jobs of runs."""
        return Job.objects.exclude(followed_by=None).count() if self.orders else 0

    def check(self) -> None:
        """A run in which nothing is under way must go on soon, once nothing disturbs it."""
        if not self.orders or not self._is_calm:
            return
        now = self._world.scheduler.now
        waiting = set(self._waiting())
        self._waiting_since = {run_id: self._waiting_since.get(run_id, now) for run_id in waiting}
        for run_id, since in self._waiting_since.items():
            if now - since > STUCK_SECONDS and not self.broken:
                self.broken.append(f"stuck: nothing of run {run_id} is under way, seen since {since:.1f}")

    def _waiting(self) -> Iterator[str]:
        """Yield the running runs without a job, wait or sub-run under way."""
        now = START + timedelta(seconds=self._world.scheduler.now)
        for run in Run.objects.filter(finished_at=None, paused_at=None).order_by("id"):
            jobs = Job.objects.filter(followed_by=follower_of(run.id)).exclude(state__in=_FINAL_JOBS)
            waits = Wait.objects.filter(node__run=run, answered_at=None).exclude(due_at__lt=now)
            children = Run.objects.filter(parent_node__run=run, finished_at=None)
            if not (jobs.exists() or waits.exists() or children.exists()):
                yield run.id

    def judge(self) -> Iterator[str]:
        """Yield violations at the end, beside those of the laws over the rows."""
        known = set(Run.objects.values_list("id", flat=True)) if self.orders else set()
        for order in self.orders:
            if len(order.run_ids) != 1:
                yield f"{order.key} has the runs {sorted(order.run_ids)} instead of one"
            yield from (f"run {one} was accepted and is not there" for one in order.run_ids - known)
        for run in Run.objects.filter(finished_at=None) if self.orders else ():
            yield f"lost: run {run.id} is {run.state} in the end: {run.node_states}"
        for run in Run.objects.filter(error_code="stalled") if self.orders else ():
            yield f"stalled: run {run.id}: {run.error_message}"
        for node_id, answers in self._taken.items():
            wait = Wait.objects.filter(node_id=node_id).first()
            if wait is None or self._world.forgotten.spans:
                continue
            if len(answers) != 1 or wait.answer != answers[0]:
                yield f"answered: {answers} were all taken by the wait {node_id}, which has {wait.answer}"

    # -- definitions -----------------------------------------------------------------------------------

    def _put_definitions(self) -> None:
        """They are there from the start, like the fleet."""
        for tenant in self._world.tenants:
            for name, spec in {**DEFINITIONS, "child": CHILD}.items():
                workflow = Workflow.objects.create(tenant_id=tenant, name=name, latest=1)
                Version.objects.create(workflow=workflow, number=1, spec=spec, sha256=name, created_at=START)

    def _change_definition(self) -> None:
        """Store another version of each workflow of a tenant, while runs of older ones are under way."""
        tenant, self._versions = self._chance.choice(self._world.tenants), self._versions + 1
        for name in sorted(DEFINITIONS):
            spec = changed(DEFINITIONS[name], self._versions)

            def put(ports: Ports, name: str = name, spec: Any = spec) -> None:
                operations.put_definition(tenant, name, spec, ports=ports)

            self._world.operate(put, retry_seconds=20.0)

    # -- clients ---------------------------------------------------------------------------------------

    def _order(self, number: int, size: Size) -> RunOrder:
        chance = self._chance
        order = RunOrder(
            key=f"run-{number}",
            tenant=chance.choice(self._world.tenants),
            workflow=chance.choice(sorted(DEFINITIONS)),
            inputs={
                "number": number,
                "fails": chance.choice([0.0, 0.0, 0.6]),
                "items": [chance.randrange(100) for _ in range(chance.randint(1, 4))],
            },
            at=WARM_UP_SECONDS + chance.random() * size.submit_seconds,
            callback_url="",
        )
        if chance.random() < CALLBACK_SHARE:
            order.callback_url = chance.choice(self._world.receivers.urls(order.tenant))
        return order

    def _lengthen(self) -> None:
        """Give some wide runs a list that is an artifact, and results that make their outputs long. By other
        chances than the orders, which stay those that they were."""
        chance = random.Random(f"{self._world.seed} long values of runs")
        for order in self.orders:
            if order.workflow != "wide":
                continue
            if chance.random() < LIST_SHARE:
                order.lines = b"".join(b"%d\n\n" % item for item in order.inputs["items"])
            if chance.random() < LONG_SHARE:
                order.inputs["chars"] = LONG_CHARS

    def _start(self, order: RunOrder) -> None:
        world = self._world
        world.scheduler.sleep(max(0.0, order.at - world.scheduler.now))
        if order.lines:
            order.inputs["items"] = {REF: upload(world, order.tenant, order.lines, order.key, LINES)}
        key = operations.RunKey(order.key, f"{order.tenant} {order.key}"[:64])
        again = 0.2
        while not order.run_ids:
            asked_at = world.scheduler.now
            try:
                started = world.web.call(
                    lambda ports: operations.start_run(
                        order.tenant,
                        order.workflow,
                        order.inputs,
                        ports=ports,
                        key=key,
                        callback_url=order.callback_url,
                    )
                )
                if not world.forgotten.since(asked_at):
                    order.run_ids.add(started.run.id)
            except QuotaExhausted as error:
                world.scheduler.sleep(min(error.retry_after_seconds or 0.0, RETRY_SECONDS))
            except (ConnectionError, DatabaseError, Refused) as error:
                world.scheduler.note(order.key, f"start failed: {error}")
                world.scheduler.sleep(again)
                again = min(again * 2.0, 5.0)

    def _start_again(self) -> None:
        """Start the runs again that the database has lost since they were accepted."""
        known = set(Run.objects.values_list("id", flat=True))
        for order in self.orders:
            if order.run_ids - known:
                order.run_ids &= known
                order.at = 0.0
                self._world.scheduler.spawn(self._world.outside, partial(self._start, order))

    # -- people ----------------------------------------------------------------------------------------

    def _people(self) -> None:
        """Answer waits; until the world is calm also pause, cancel and restart runs, and retry dead
        letters."""
        world, chance = self._world, self._chance
        while True:
            world.scheduler.sleep(chance.uniform(0.2, 3.0))
            acts: list[Callable[[], None]] = [self._answer, self._answer, self._signal]
            if not self._is_calm:
                acts += [self._cancel, self._pause, self._restart, self._restart, self._retry]
            act = chance.choice(acts)
            try:
                act()
            except (ConnectionError, DatabaseError, Refused, Run.DoesNotExist) as error:
                world.scheduler.note("people", f"{act.__name__} failed: {error}")

    def _pick(self, found: Any) -> Any:
        rows = list(found[:20])
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
            answer = self._chance.choice(wait.options["choose_from"])
            world.scheduler.spawn(world.outside, partial(self._answer_one, wait, answer, by))

    def _answer_one(self, wait: Wait, answer: Any, by: str) -> None:
        run, key = wait.node.run, wait.node.key
        with suppress(ConnectionError, DatabaseError, Refused):
            self._world.web.call(lambda ports: operations.answer_wait(run, key, answer, by=by, ports=ports))
            self._taken.setdefault(wait.node_id, []).append(answer)

    def _signal(self) -> None:
        tenant, body = self._chance.choice(self._world.tenants), {"n": self._chance.randrange(9)}
        self._world.web.call(lambda ports: send_signal(tenant, "go", body, ports=ports))

    def _cancel(self) -> None:
        if self._chance.random() < 0.5:
            return
        run_id = self._pick(Run.objects.filter(finished_at=None).order_by("id").values_list("id", flat=True))
        if run_id is not None:
            self._world.scheduler.sleep(self._chance.uniform(0.0, 2.0))
            self._world.web.call(lambda ports: operations.cancel_run(run_id, ports=ports))

    def _pause(self) -> None:
        run_id = self._pick(Run.objects.filter(finished_at=None).order_by("id").values_list("id", flat=True))
        if run_id is None:
            return

        def switch(pauses: bool, ports: Ports) -> None:
            with suppress(Refused):  # it has ended
                (operations.pause_run if pauses else operations.resume_run)(run_id, ports=ports)

        self._world.operate(partial(switch, True))
        self._world.scheduler.sleep(self._chance.uniform(0.1, 8.0))
        self._world.operate(partial(switch, False))

    def _restart(self) -> None:
        """Restart what failed, or any node; also one whose run may still be under way."""
        run = self._pick(Run.objects.filter(depth=0).exclude(state=RunState.RUNNING.value).order_by("id"))
        if run is None or run.round > 3:
            return
        keys = None
        if run.state == RunState.COMPLETED or self._chance.random() < 0.3:
            keys = [self._chance.choice(sorted(set(run.node_states) - {"mail"}))]
        self._world.web.call(lambda ports: operations.restart_run(run.id, ports=ports, keys=keys))

    def _retry(self) -> None:
        """Retry a dead letter of a run, while its end may be on its way."""
        dead = Job.objects.filter(state=JobState.FAILED.value).exclude(followed_by=None).order_by("id")
        job_id = self._pick(dead.values_list("id", flat=True))
        if job_id is not None:
            self._world.web.call(lambda ports: retry_dead_letter(job_id, ports=ports))


def cost_of(runs: WorkflowRuns) -> dict[str, int]:
    """Return what the runs came to, for the command's last line."""
    if not runs.orders:
        return {"runs": 0, "nodes": 0, "maps_of_files": 0, "long_outputs": 0}
    return {
        "runs": Run.objects.count(),
        "nodes": Node.objects.count(),
        "nodes_completed": Node.objects.filter(state=NodeState.COMPLETED.value).count(),
        "maps_of_files": MapFile.objects.count(),
        "long_outputs": Node.objects.exclude(output_artifact=None).count()
        + Run.objects.exclude(output_artifact=None).count(),
    }
