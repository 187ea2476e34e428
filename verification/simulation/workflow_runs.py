"""Runs of workflows in the simulated world, and the clients that start them, with a ledger."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from django.db import DatabaseError

from artifacts.refs import REF
from jobs.domain.errors import QuotaExhausted, Refused
from jobs.domain.states import FINAL_JOB_STATES
from jobs.models import Job
from jobs.operations.erase import is_erased
from jobs.ports import Ports
from jobs.submission.request import KeyedRequest
from verification.simulation.files import upload
from verification.simulation.scheduler import START
from verification.simulation.size import Size
from verification.simulation.workflow_definitions import DEFINITIONS, SUB_WORKFLOWS, changed
from verification.simulation.workflow_people import People
from verification.simulation.world import WARM_UP_SECONDS, World
from workflows.definition.read import read_definition
from workflows.domain.advance import failed_node
from workflows.domain.plan import RunningOnFailure
from workflows.domain.states import NodeState
from workflows.execution.retried import postponed_of_ended_runs
from workflows.models import MapFile, Node, Run, Version, Wait, Workflow, follower_of
from workflows.operations.definitions import put_definition
from workflows.operations.start import start_run

STUCK_SECONDS = 60.0
RETRY_SECONDS = 10.0
CALLBACK_SHARE = 0.4
LIST_SHARE, LONG_SHARE = 0.5, 0.5
"""Of the wide runs: those whose list is an artifact of JSON lines, and those whose output is long."""
LONG_CHARS = 150_000
"""Of the result of an item: two are more than stays in the row of a map or run."""
LINES = "application/jsonl"
_FINAL_JOBS = [state.value for state in FINAL_JOB_STATES]


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
    deadline_seconds: float | None = None
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
        self._since: dict[str, float] = {}
        self._versions = 1
        self._lengthen()
        if not self.orders:
            return
        self._put_definitions()
        world.advancers.start()
        for order in self.orders:
            world.scheduler.spawn(world.outside, partial(self._start, order))
        self._people = People(world, self._chance)
        forgotten = world.on_forgotten

        def on_forgotten() -> None:
            forgotten()
            self._start_again()

        world.on_forgotten = on_forgotten
        world.advancers.change_definition = self._change_definition

    def heal(self) -> None:
        """End the disturbances of runs; from now on waits are answered."""
        self._is_calm = True
        if self.orders:
            self._people.are_calm = True

    def is_over(self) -> bool:
        """Return True if each run was started and has ended."""
        return all(order.run_ids for order in self.orders) and not (
            self.orders and (Run.objects.filter(finished_at=None).exists() or postponed_of_ended_runs(1))
        )

    def job_count(self) -> int:
        """Return the number of jobs of runs."""
        return Job.objects.exclude(followed_by=None).count() if self.orders else 0

    def check(self) -> None:
        """Once nothing disturbs it, a run in which nothing is under way must go on soon, and one that cancels
        what runs beside a failure must have done so."""
        if not self.orders or not self._is_calm or self.broken:
            return
        now = self._world.scheduler.now
        found = {*self._stuck(), *self._uncancelled()}
        self._since = {what: self._since.get(what, now) for what in found}
        self.broken += [
            f"{what}, seen since {since:.1f}"
            for what, since in sorted(self._since.items())
            if now - since > STUCK_SECONDS
        ]

    def _stuck(self) -> Iterator[str]:
        """Yield the running runs without a job, wait or sub-run under way."""
        now = START + timedelta(seconds=self._world.scheduler.now)
        for run in Run.objects.filter(finished_at=None, paused_at=None).order_by("id"):
            jobs = Job.objects.filter(followed_by=follower_of(run.id)).exclude(state__in=_FINAL_JOBS)
            waits = Wait.objects.filter(node__run=run, answered_at=None).exclude(due_at__lt=now)
            children = Run.objects.filter(parent_node__run=run, finished_at=None)
            if not (jobs.exists() or waits.exists() or children.exists()):
                yield f"stuck: nothing of run {run.id} is under way"

    def _uncancelled(self) -> Iterator[str]:
        """Yield the runs that are to end, because of a cancel or of a failure that cancels the rest, with a
        part under way that was not cancelled."""
        for run in Run.objects.select_related("version").filter(finished_at=None).order_by("id"):
            plan = read_definition(run.version.spec)
            failed = failed_node(plan, {key: NodeState(state) for key, state in run.node_states.items()})
            is_failing = failed is not None and plan.running_on_failure is RunningOnFailure.CANCEL
            if not is_failing and run.cancel_requested_at is None:
                continue
            nodes = Node.objects.filter(run=run, finished_at=None)
            if plan.on_failure is not None:
                nodes = nodes.exclude(base=plan.on_failure.key)
            ids = nodes.exclude(job_id=None).values("job_id")
            jobs = Job.objects.filter(id__in=ids, cancel_requested_at=None).exclude(state__in=_FINAL_JOBS)
            waits = Wait.objects.filter(node__in=nodes, answered_at=None)
            children = Run.objects.filter(parent_node__in=nodes, finished_at=None, cancel_requested_at=None)
            if jobs.exists() or waits.exists() or children.exists():
                yield f"uncancelled: run {run.id} is to end, and a part of it goes on"

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
        for node_id, answers in self._people.taken.items() if self.orders else ():
            wait = Wait.objects.filter(node_id=node_id).first()
            if wait is None or self._world.forgotten.spans:
                continue
            first, *others = answers  # the same person may give the same answer again
            if any(one != first for one in others) or (
                wait.answer != first[1] and not is_erased(wait.answer)
            ):
                yield f"answered: {answers} were all taken by the wait {node_id}, which has {wait.answer}"
        if self.orders and not self._world.forgotten.spans:
            kept = Run.objects.filter(id__in=self._people.erased, erase_requested_at=None)
            yield from (f"erased: run {run.id} was, and is not" for run in kept)

    # -- definitions -----------------------------------------------------------------------------------

    def _put_definitions(self) -> None:
        """They are there from the start, like the fleet."""
        for tenant in self._world.tenants:
            for name, spec in (DEFINITIONS | SUB_WORKFLOWS).items():
                workflow = Workflow.objects.create(tenant_id=tenant, name=name, latest=1)
                Version.objects.create(workflow=workflow, number=1, spec=spec, sha256=name, created_at=START)

    def _change_definition(self) -> None:
        """Store another version of each workflow of a tenant, while runs of older ones are under way."""
        tenant, self._versions = self._chance.choice(self._world.tenants), self._versions + 1
        for name in sorted(DEFINITIONS):
            spec = changed(DEFINITIONS[name], self._versions)

            def put(ports: Ports, name: str = name, spec: Any = spec) -> None:
                put_definition(tenant, name, spec, ports=ports)

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
            at=WARM_UP_SECONDS + chance.random() * max(size.submit_seconds, size.fault_seconds),
            callback_url="",
            deadline_seconds=chance.choice([None] * 6 + [4.0, 12.0, 40.0]),
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
        key = KeyedRequest(order.key, f"{order.tenant} {order.key}"[:64])
        again = 0.2
        while not order.run_ids:
            asked_at = world.scheduler.now
            try:
                started = world.web.call(
                    lambda ports: start_run(
                        order.tenant,
                        order.workflow,
                        order.inputs,
                        ports=ports,
                        idempotency_key=key,
                        callback_url=order.callback_url,
                        deadline_seconds=order.deadline_seconds,
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
