"""What the advancer's transactions cost, without the machinery around them.

    python -m benchmarks.workflow_steps                     a run of 1,000 nodes, a map of 10,000 items
    python -m benchmarks.workflow_steps --database sqlite --items 2000

Jobs are ended by writing their rows and notices, as many at once as a busy fleet ends between two wakes; the
advancer, its database and its Valkey are real. Prints the time and CPU of one event in a large run, the time
of the transactions of a map, and what the process's memory grows meanwhile. `bench workflows` runs it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.databases import LOCAL, environment_with
from benchmarks.suite.figures import percentiles

NODES_PER_CHAIN = 10
WARM_UP = 20


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--database", default=os.environ.get("DISPATCHER_TEST_DATABASE_URL", LOCAL),
                        help="URL of a PostgreSQL server, or sqlite")  # fmt: skip
    parser.add_argument("--nodes", type=int, default=1_000, help="of the large run (default 1,000)")
    parser.add_argument("--events", type=int, default=300, help="measured in it (default 300)")
    parser.add_argument("--items", type=int, default=10_000, help="of the map (default 10,000)")
    parser.add_argument("--ended", type=int, default=64, help="children that end at a time (default 64)")
    parser.add_argument("--bombs", type=int, default=1_000, help="due runs of one tenant (default 1,000)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, environment_with(options.database, folder):
        from dispatcher_project.supervisor.embedded import EmbeddedValkey

        with EmbeddedValkey(Path(folder) / "valkey", append_only=False) as valkey:
            os.environ["REDIS_URL"] = valkey.url
            os.environ["BROKER_URL"] = f"redis+socket://{valkey.socket}?virtual_host=0"
            found = _measure(options)
    lines = [f"{name:<42} {one}" for name, one in found.items()]
    print(json.dumps(found) if options.json else "\n".join(lines))


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0, interactive=False)
    stage = Stage()
    return {**_large_run(stage, options), **_map(stage, options), **_bomb(stage, options)}


class Stage:
    """A tenant, a model without a server, and an advancer."""

    def __init__(self) -> None:
        from gpus.models import ModelConfig, Pool
        from jobs.models import Tenant
        from jobs.ports import production_ports
        from workflows.execution.advancer import Advancer

        self.ports = production_ports()
        self.advancer = Advancer(self.ports)
        pool = Pool.objects.create(name="bench")
        ModelConfig.objects.create(name="bench", pool=pool)
        self.tenant = Tenant.objects.create(name="bench")
        self.other = Tenant.objects.create(name="other")
        leases = self.ports.leases("main")
        leases.begin_rebuild("bench")
        while not leases.wipe("bench"):
            pass
        leases.open_generation("bench")
        leases.configure_pool(pool.spec)

    def put(self, name: str, definition: dict[str, Any]) -> None:
        from workflows.operations.definitions import put_definition

        put_definition(self.tenant.pk, name, definition, ports=self.ports)

    def start(self, definition: dict[str, Any], *, other: bool = False) -> str:
        from workflows.operations.definitions import put_definition
        from workflows.operations.start import start_run

        tenant = (self.other if other else self.tenant).pk
        put_definition(tenant, "bench", definition, ports=self.ports)
        return start_run(tenant, "bench", None, ports=self.ports).run.id

    def advance(self, run_id: str) -> None:
        while self.advancer.advance(run_id):
            pass

    def end(self, run_id: str, most: int) -> int:
        """End so many of the run's open jobs, the oldest first; return how many there were."""
        from django.db import transaction

        from jobs.models import EndNotice, Job

        now = self.ports.clock.now()
        jobs = Job.objects.filter(followed_by=f"run:{run_id}", finished_at=None).order_by("id")
        ids = list(jobs.values_list("id", flat=True)[:most])
        with transaction.atomic():
            Job.objects.filter(id__in=ids).update(state="completed", result={"job": 1}, finished_at=now)
            EndNotice.objects.bulk_create(
                EndNotice(followed_by=f"run:{run_id}", ended_id=job_id, state="completed", at=now)
                for job_id in ids
            )
        return len(ids)

    def is_over(self, run_id: str) -> bool:
        from workflows.models import Run

        return Run.objects.filter(id=run_id).exclude(finished_at=None).exists()


def _timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Return the milliseconds of a call by the clock, and of this process's CPU."""
    began, spent = time.perf_counter(), time.process_time()
    work()
    return (time.perf_counter() - began) * 1000, (time.process_time() - spent) * 1000


def _large_run(stage: Stage, options: argparse.Namespace) -> dict[str, Any]:
    """Chains beside each other; one job ends at a time, and the next one of its chain starts."""
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    nodes: dict[str, Any] = {}
    for number in range(options.nodes):
        chain, place = divmod(number, NODES_PER_CHAIN)
        payload = {"job": {"$ref": f"c{chain}_{place - 1}.job"}} if place else {"job": number}
        nodes[f"c{chain}_{place}"] = {"model": "bench", "payload": payload}
    run_id = stage.start({"nodes": nodes})
    stage.advance(run_id)
    walls, cpus = [], []
    for number in range(WARM_UP + options.events):
        if not stage.end(run_id, 1):
            break
        wall, cpu = _timed(lambda: stage.advancer.advance(run_id))
        if number >= WARM_UP:
            walls.append(wall)
            cpus.append(cpu)
    stage.end(run_id, 1)
    with CaptureQueriesContext(connection) as queries:
        stage.advancer.advance(run_id)
    return {
        "event in a large run: CPU ms": percentiles(cpus),
        "event in a large run: ms": percentiles(walls),
        "event in a large run: statements": len(queries),
    }


def _map(stage: Stage, options: argparse.Namespace) -> dict[str, Any]:
    """A map whose children end `options.ended` at a time, with a join."""
    child = {"map": {"count": options.items}, "model": "bench", "payload": {"job": {"$ref": "index"}}}
    join = {"model": "bench", "payload": {"job": {"$ref": "length(all)"}}}
    run_id = stage.start({"nodes": {"all": child, "join": join}})
    stage.advance(run_id)
    walls, spent, memory = [], time.process_time(), list[float]()
    began, ended = time.perf_counter(), 0
    while not stage.is_over(run_id):
        ended += stage.end(run_id, options.ended)
        more = True
        while more:
            at = time.perf_counter()
            more = stage.advancer.advance(run_id)
            walls.append((time.perf_counter() - at) * 1000)
        if len(walls) % 20 == 0:
            gc.collect()
            memory.append(_resident_mb())
    took, cpu = time.perf_counter() - began, time.process_time() - spent
    return {
        "map: transaction ms": percentiles(walls),
        "map: children per second of the advancer": round(ended * 1000 / sum(walls)),
        "map: children per second with their ends": round(ended / took),
        "map: CPU ms per child": round(cpu * 1000 / ended, 3),
        "map: memory grows MB": round(max(memory) - memory[len(memory) // 5], 1) if memory else None,
        "peak MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def _bomb(stage: Stage, options: argparse.Namespace) -> dict[str, Any]:
    """A thousand due runs with maps of sub-workflows that have maps of sub-workflows, and beside them runs of
    another tenant: the time from their start until their only job is queued."""
    from django.db import close_old_connections

    from jobs.models import Job
    from workflows.execution.due_runs import DueRuns
    from workflows.models import Run

    stage.put("inner", {"nodes": {"one": {"model": "bench"}}})
    stage.put("middle", {"nodes": {"inner": {"workflow": "inner", "map": {"count": 50}}}})
    outer = {"nodes": {"middle": {"workflow": "middle", "map": {"count": 50}}}}
    bombs = [stage.start(outer) for _ in range(options.bombs)]
    due = DueRuns(stage.advancer, threads=1)
    stage.ports = stage.advancer.ports = replace(
        stage.ports, wake_followers=lambda names: due.add(name.partition(":")[2] for name in names)
    )

    def explode() -> None:
        due.wake(bombs)
        close_old_connections()

    thread = threading.Thread(target=explode, daemon=True)
    thread.start()
    took, ahead = [], []
    light = {"nodes": {"one": {"model": "bench"}}}
    for _ in range(20):
        time.sleep(0.1)
        ahead.append(len(due.queue))
        began = time.perf_counter()
        run_id = stage.start(light, other=True)
        while not Job.objects.filter(followed_by=f"run:{run_id}").exists():
            time.sleep(0.002)
        took.append((time.perf_counter() - began) * 1000)
    due.drain()
    thread.join()
    steps = sum(Run.objects.filter(tenant=stage.tenant).values_list("steps", flat=True))
    return {
        "beside a bomb: start to queued ms": percentiles(took),
        "beside a bomb: runs ahead of it": percentiles(ahead),
        "beside a bomb: steps in all": steps,
    }


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1024 / 1024


if __name__ == "__main__":
    main()
