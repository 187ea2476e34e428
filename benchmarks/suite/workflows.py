"""Workflows of no-op nodes on eight slots: chains, the edge between two nodes, a map with its join, its
cancel, and the cost of a step; Celery's canvas and Procrastinate on the same GPU server in the same run.

Chains and map begin behind the GPU server's gate, so that starting them costs no contender time. The edge is
measured on an idle fleet: from the end of a node's run to the request of the next one. Other jobs are
submitted and run beside the map, and beside as many plain jobs: the ratio shows what the workflow adds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from dispatcher_project.supervisor.data_folder import ROOT
from verification.proving.children import NoReply
from verification.proving.memory import resident_bytes
from verification.proving.terminal import say

from .contenders import DISPATCHER, Dispatcher, Scripted
from .cpu import cpu_seconds
from .environment import CannotMeasure
from .figures import medians, percentiles
from .gpu import NotDone
from .peers import WORKFLOW_PEERS
from .rows import query
from .slot_log import Run
from .suite import Suite

SLOTS, LENGTH, CHAINS, EDGE_CHAINS, ITEMS, CANCELLED_ITEMS = 8, 5, 200, 40, 10_000, 100_000
NODE_SECONDS, PAUSE_SECONDS, WAIT_SECONDS = 0.001, 0.3, 60.0
OTHER_JOBS, OTHER_SECONDS = 100, 0.05


def measure(suite: Suite) -> dict[str, Any]:
    """``{"contenders": {name: {"chains": …, "edge": …, "map": …}}, "others", "cancel", "steps"}``."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    others: dict[str, Any] = {}
    cancel: dict[str, Any] = {}
    items = suite.options.jobs or ITEMS
    for number in range(suite.options.rounds):
        for contender in _contenders(suite):
            try:
                contender.start(SLOTS)
                contender.warm_up()
                for name, part in (("chains", _chains), ("edge", _edge), ("map", _map)):
                    one = part(suite, contender, items)
                    found[contender.name][name].append(one)
                    say(f"round {number + 1}  {contender.name:<22} {name:<7} {_short(one)}")
                if isinstance(contender, Ours) and not others:
                    others = _beside(suite, contender, items)
                    cancel = _cancel(suite, contender)
            except (CannotMeasure, NotDone, NoReply, ValueError) as error:
                if contender.name == DISPATCHER:
                    raise
                suite.skip(contender.name, str(error))
            finally:
                contender.stop()
    contenders = {
        contender: {name: {"rounds": rounds, "median": medians(rounds)} for name, rounds in parts.items()}
        for contender, parts in found.items()
    }
    return {
        "slots": SLOTS,
        "items": items,
        "contenders": contenders,
        "others": others,
        "cancel": cancel,
        "steps": _steps(suite, items),
        "wrong": _wrongs(contenders),
    }


class Contender(Protocol):
    name: str

    def start(self, slots: int) -> None: ...
    def warm_up(self) -> None: ...
    def check(self) -> None: ...
    def own_pids(self) -> list[int]: ...
    def database_pids(self) -> list[int]: ...
    def stop(self) -> None: ...

    def fill_graphs(self, **graphs: Any) -> None:
        """Start the chains, one every `pause` seconds, and the map."""
        ...


class Ours(Dispatcher):
    """The dispatcher with two workflows."""

    def start(self, slots: int = 0, **more: Any) -> None:
        super().start(slots, **more)
        chain: dict[str, Any] = {}
        for place in range(LENGTH):
            payload = {"job": {"$ref": f"inputs.jobs[{place}]"}, "seconds": NODE_SECONDS}
            needs = [f"n{place - 1}"] if place else None
            chain[f"n{place}"] = {"model": "bench", "payload": payload, "needs": needs}
        self.ask("PUT", "/workflows/chain", {"nodes": chain})
        child = {
            "map": {"count": {"$ref": "inputs.count"}},
            "model": "bench",
            "payload": {"job": {"$ref": "index"}, "seconds": NODE_SECONDS},
        }
        join = {
            "model": "bench",
            "payload": {"job": {"$ref": "inputs.join"}, "seconds": NODE_SECONDS},
            "needs": ["all"],
        }
        self.ask("PUT", "/workflows/map", {"nodes": {"all": child, "join": join}})

    def fill_graphs(self, **graphs: Any) -> None:
        for jobs in graphs["chains"]:
            self.ask("POST", "/workflows/chain/runs", {"inputs": {"jobs": jobs}})
            time.sleep(graphs["pause"])
        if graphs["map"]:
            self.start_map(len(graphs["map"]), graphs["join"])

    def start_map(self, count: int, join: int) -> str:
        body = {"inputs": {"count": count, "join": join}}
        return str(self.ask("POST", "/workflows/map/runs", body)["run_id"])

    def wait_for_runs(self) -> None:
        """Wait until every run has ended. Raises CannotMeasure."""
        until = time.monotonic() + WAIT_SECONDS
        while query(self, "select count(*) from workflows_run where state = 'running'")[0]:
            if time.monotonic() > until:
                raise CannotMeasure("runs do not end")
            time.sleep(0.1)


def _contenders(suite: Suite) -> Iterator[Contender]:
    yield Ours(suite.env)
    for peer in suite.peers():
        if peer.name in WORKFLOW_PEERS:
            yield Scripted(suite.env, WORKFLOW_PEERS[peer.name])


def _short(one: dict[str, Any]) -> str:
    return "  ".join(f"{name} {value}" for name, value in one.items() if name != "wrong" or value)


# -- parts ---------------------------------------------------------------------------------------------------


def _chains(suite: Suite, contender: Contender, items: int) -> dict[str, Any]:
    jobs = [[chain * LENGTH + place for place in range(LENGTH)] for chain in range(CHAINS)]
    return _gated(suite, contender, CHAINS * LENGTH, chains=jobs, map=[], join=0)


def _map(suite: Suite, contender: Contender, items: int) -> dict[str, Any]:
    one = _gated(suite, contender, items + 1, chains=[], map=list(range(items)), join=items)
    runs, _, _ = suite.env.gpu.log()
    last = max(run.ended for run in runs if run.job != items)
    joined = [run for run in runs if run.job == items]
    if len(joined) != 1 or joined[0].began < last:
        one["wrong"].append("the join did not run once, after all children")
    return one


def _gated(suite: Suite, contender: Contender, count: int, **graphs: Any) -> dict[str, Any]:
    """Fill behind the gate, open it, and return nodes per second and CPU per node."""
    gpu = suite.env.gpu
    gpu.begin(SLOTS)
    contender.fill_graphs(**graphs, pause=0.0, seconds=NODE_SECONDS)
    gpu.wait_for("held", SLOTS, WAIT_SECONDS, contender.check)
    time.sleep(1.0)  # what the fill left to do
    own, stored = cpu_seconds(contender.own_pids()), cpu_seconds(contender.database_pids())
    began = time.monotonic()
    gpu.open_gate()
    gpu.wait_for("ended", count, WAIT_SECONDS, contender.check)
    own = cpu_seconds(contender.own_pids()) - own
    stored = cpu_seconds(contender.database_pids()) - stored
    runs, _, _ = gpu.log()
    took = max(run.ended for run in runs) - began
    if isinstance(contender, Ours):
        contender.wait_for_runs()
    return {
        "nodes_per_second": round(count / took, 1),
        "cpu_ms_per_node": round(own * 1000 / count, 3),
        "database_cpu_ms_per_node": round(stored * 1000 / count, 3),
        "wrong": _not_once(runs, count),
    }


def _edge(suite: Suite, contender: Contender, items: int) -> dict[str, Any]:
    gpu = suite.env.gpu
    gpu.begin(SLOTS, gate=False)
    jobs = [[chain * LENGTH + place for place in range(LENGTH)] for chain in range(EDGE_CHAINS)]
    contender.fill_graphs(chains=jobs, map=[], join=0, pause=PAUSE_SECONDS, seconds=NODE_SECONDS)
    gpu.wait_for("ended", EDGE_CHAINS * LENGTH, WAIT_SECONDS, contender.check)
    runs, _, _ = gpu.log()
    by_job = {run.job: run for run in runs}
    edges = [
        (by_job[job + 1].began - by_job[job].ended) * 1000
        for chain in jobs[EDGE_CHAINS // 10 :]
        for job in chain[:-1]
    ]
    found = percentiles(edges)
    return {
        "p50_ms": found["p50"],
        "p99_ms": found["p99"],
        "wrong": _not_once(runs, EDGE_CHAINS * LENGTH),
    }


def _not_once(runs: Sequence[Run], count: int) -> list[str]:
    ran = sorted(run.job for run in runs)
    return [] if ran == list(range(count)) else [f"{len(ran)} runs of {len(set(ran))} of {count} jobs"]


# -- only the dispatcher -------------------------------------------------------------------------------------


def _beside(suite: Suite, ours: Ours, items: int) -> dict[str, Any]:
    """Submit other jobs while a map runs, while as many plain jobs run, and while none do."""
    gpu = suite.env.gpu
    ours.register("other", 4, server="other-1")
    callbacks = ours.system.pid("callbacks")
    found: dict[str, Any] = {}

    def run(name: str, fill: Callable[[], object], count: int) -> None:
        gpu.begin(SLOTS + 4, gate=False)
        fill()
        found[name] = percentiles(_submits(ours))
        gpu.wait_for("ended", count, WAIT_SECONDS, ours.check)
        ours.wait_for_runs()

    run("alone", lambda: None, OTHER_JOBS)
    plain = [(number, NODE_SECONDS) for number in range(items)]
    run("beside plain jobs", lambda: ours.fill(plain), items + OTHER_JOBS)
    before = _resident_mb(callbacks)
    run("beside a map", lambda: ours.start_map(items, items), items + 1 + OTHER_JOBS)
    found["memory_grows_mb"] = round(_resident_mb(callbacks) - before, 1)
    say(f"other jobs' submit: {found}")
    return found


def _resident_mb(pid: int) -> float:
    return resident_bytes(pid) / 1024 / 1024


def _submits(ours: Ours) -> list[float]:
    """Submit jobs of another model one by one; return the milliseconds until each was committed."""
    took = []
    for number in range(OTHER_JOBS):
        began = time.monotonic()
        body = {"model": "other", "payload": {"job": 10_000_000 + number, "seconds": NODE_SECONDS}}
        ours.ask("POST", "/queue/submit", body)
        took.append((time.monotonic() - began) * 1000)
        time.sleep(OTHER_SECONDS)
    return took


def _cancel(suite: Suite, ours: Ours) -> dict[str, Any]:
    """Cancel a map of 100,000 items while its window waits behind the gate."""
    gpu = suite.env.gpu
    gpu.begin(SLOTS)
    run_id = ours.start_map(CANCELLED_ITEMS, 0)
    gpu.wait_for("held", SLOTS, WAIT_SECONDS, ours.check)
    waiting = "select count(*) from jobs_job where state = 'queued'"
    most, until = 0, time.monotonic() + 3.0
    while time.monotonic() < until:
        most = max(most, int(query(ours, waiting)[0]))
        time.sleep(0.1)
    began = time.monotonic()
    ours.ask("POST", f"/runs/{run_id}/cancel")
    while query(ours, waiting)[0]:
        if time.monotonic() > began + WAIT_SECONDS:
            raise CannotMeasure("the children of a cancelled map stay queued")
        time.sleep(0.02)
    took = time.monotonic() - began
    gpu.open_gate()
    ours.wait_for_runs()
    found = {"seconds": round(took, 2), "most_waiting": most}
    say(f"cancel of a map of {CANCELLED_ITEMS:,}: {found}")
    return found


def _steps(suite: Suite, items: int) -> dict[str, Any]:
    """Run `benchmarks.workflow_steps`, which measures the advancer alone."""
    database = "sqlite" if suite.env.database_kind == "sqlite" else suite.env.server_url
    command = [sys.executable, "-m", "benchmarks.workflow_steps", "--json", "--database", database]
    done = subprocess.run(
        [*command, "--items", str(items)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode:
        raise CannotMeasure(f"benchmarks.workflow_steps failed: {done.stderr.strip()[-300:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    for name, value in found.items():
        say(f"{name:<42} {value}")
    return found


def _wrongs(contenders: dict[str, Any]) -> list[str]:
    return [
        f"{contender}, {name}: {text}"
        for contender, parts in contenders.items()
        for name, part in parts.items()
        for one in part["rounds"]
        for text in one["wrong"]
    ]
