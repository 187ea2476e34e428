"""``manage.py prove_upgrade --from COMMIT``: replaces one version's hosts by another's, one by one and under
load. No job may be lost or run twice or need a second attempt, and no slot may have two runs.

Each version is a checkout of its own; all processes are real: web, GPU workers, sweeps and beat of the hosts,
and GPU servers of the trial with a log each. The tests also use `rolling_upgrade`, shorter.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from dispatcher_project.cli.arguments import positive
from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from dispatcher_project.supervisor.signs import http_says_ok
from verification.proving.children import Child, Children
from verification.proving.fleet import HANDLER
from verification.proving.ledger import read_lines
from verification.proving.ports import free_ports
from verification.proving.records import NodeLog, read_node_log
from verification.proving.system import CannotProve, clean_environment
from verification.proving.terminal import say

PACKAGES = (
    "admin_ui", "artifacts", "benchmarks", "dispatcher_client", "dispatcher_project", "foundation",
    "gpu_host", "gpus", "jobs", "verification", "workflows",
)  # fmt: skip
LAYOUT_FILE = "gpus/leasing/keys.py"
_START_SECONDS = 90.0
_KEY = "api key: "
_ROWS = """
import json
from jobs.models import Attempt, Job
attempts = {}
for one in Attempt.objects.order_by("number").values("job_id", "id", "state", "error_code", "server", "slot"):
    attempts.setdefault(one.pop("job_id"), []).append(one)
rows = Job.objects.values("id", "state", "deaths", "attempts_made", "error_code")
print("ROWS" + json.dumps([{**row, "attempts": attempts.get(row["id"], [])} for row in rows]))
"""


# -- the two versions --------------------------------------------------------------------------------------


def checkout_of(commit: str, folder: Path) -> Path:
    """Return the tree of a commit of this repository. Raises CannotProve if there is no such commit."""
    folder.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode != 0:
        raise CannotProve(f"no commit {commit} here: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder


def copy_of_present(folder: Path) -> Path:
    """Return a copy of the checkout, with uncommitted changes."""
    folder.mkdir(parents=True)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        _copy_bytecode(ROOT / package, folder / package)
    for file in ("manage.py", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / file, folder / file)
    return folder


def _copy_bytecode(source: Path, copy: Path) -> None:
    """Else all processes of the copy, which start together, compile the same modules."""
    for file in copy.rglob("*.py"):
        compiled = Path(cache_from_source(source / file.relative_to(copy)))
        if compiled.exists():
            target = Path(cache_from_source(file))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(compiled, target)


def raise_layout(checkout: Path) -> int:
    """Raise the key layout of a checkout, as an incompatible version would; return the new one."""
    file = checkout / LAYOUT_FILE
    line = next(line for line in file.read_text().splitlines() if line.startswith("LAYOUT = "))
    raised = int(line.removeprefix("LAYOUT = ")) + 1
    file.write_text(file.read_text().replace(line, f"LAYOUT = {raised}", 1))
    return raised


# -- one trial ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """A rolling upgrade.

    versions: each replaces the one before it. shortest, longest: of the runs, in seconds. before, between,
    after: seconds of load before the first host is replaced, after each one, and after the last.
    lease_seconds: of the dispatcher; 0 for production's times. database: a URL; empty for SQLite. switch: the
    operator switches the index after the first host, without waiting for the last old one to end. sweepers,
    webs: number of hosts, the first ones, that also run these; with one sweeper, the other hosts of a leaving
    version have none.
    """

    versions: tuple[Path, ...]
    hosts: int = 2
    sweepers: int = 1
    webs: int = 2
    slots: int = 8
    shortest: float = 1.0
    longest: float = 40.0
    before: float = 15.0
    between: float = 10.0
    after: float = 15.0
    lease_seconds: float = 0.0
    database: str = ""
    switch: bool = False
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a rolling upgrade. wrongs: findings, a line each. figures: counts."""

    wrongs: tuple[str, ...]
    figures: Mapping[str, Any]


@dataclass(slots=True)
class _Gpu:
    name: str
    model: str
    mode: str
    slots: int
    port: int
    log: Path


@dataclass(slots=True)
class _Host:
    """services: that it runs; children: by service. web: its port; 0 without one."""

    name: str
    web: int
    services: tuple[str, ...]
    children: dict[str, Child] = field(default_factory=dict)


def services(number: int, plan: Plan) -> Iterator[str]:
    """Yield the services of the host of this number."""
    yield "gpu"
    if number < plan.webs:
        yield "web"
    if number < plan.sweepers:
        yield "sweeps"
    if number == 0:
        yield "beat"


class _Load:
    """Submits jobs, each accepted once: retries until some web process has answered."""

    def __init__(self, plan: Plan, webs: Sequence[int], key: str, models: Sequence[str]) -> None:
        self._plan, self._webs, self._key, self._models = plan, webs, key, models
        self._random = random.Random(plan.seed)
        self._stopped = threading.Event()
        self.jobs: list[str] = []
        self.seconds: dict[str, float] = {}
        self.tries = 0
        self._thread = threading.Thread(target=self._submit, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(30.0)

    def _submit(self) -> None:
        """Submit a little more work than the slots can do, so that all are busy most of the time."""
        plan = self._plan
        pause = (plan.shortest + plan.longest) / 2 / plan.slots * 0.9
        for number in itertools.count():
            seconds = self._random.uniform(plan.shortest, plan.longest)
            model = self._models[number % len(self._models)]
            body = {"model": model, "payload": {"number": number, "seconds": seconds}}
            while not self._stopped.is_set():
                self.tries += 1
                port = self._webs[self.tries % len(self._webs)]
                answer = _ask((port, self._key), "POST", "/queue/submit", body, f"upgrade-{number}")
                if answer is not None:
                    self.jobs.append(answer["job_id"])
                    self.seconds[answer["job_id"]] = seconds
                    break
                self._stopped.wait(0.2)
            if self._stopped.wait(pause):
                return


class Rolling:
    """One trial, from start to verdict; `close` ends all that it began."""

    def __init__(self, plan: Plan, folder: Path, report: Callable[[str], None] = lambda line: None) -> None:
        self._plan, self._folder, self._report = plan, folder, report
        self._ports = free_ports()
        self._valkey = EmbeddedValkey(folder / "valkey", append_only=False)
        self._children = Children(folder / "log", {**clean_environment(), **self._settings()})
        modes = ("sync", "async")
        self._gpus = [
            _Gpu(
                f"gpu-{mode}", f"m-{mode}", mode, plan.slots // 2, next(self._ports), folder / f"{mode}.jsonl"
            )
            for mode in modes
        ]
        self._hosts = [
            _Host(
                f"host{number}", next(self._ports) if number < plan.webs else 0, tuple(services(number, plan))
            )
            for number in range(plan.hosts)
        ]
        self._key = ""
        self._version = plan.versions[0]

    def run(self) -> Outcome:
        """Run the trial; return its outcome."""
        plan = self._plan
        self._valkey.start()
        first, *later = plan.versions
        self._manage(first, "migrate", "--no-input")
        made = self._manage(first, "create_key", "--tenant", "ada", "--operator")
        self._key = next(line.removeprefix(_KEY) for line in made.splitlines() if line.startswith(_KEY))
        for gpu in self._gpus:
            self._start_gpu(gpu)
        for host in self._hosts:
            for service in host.services:
                self._start(host, service, first)
        self._until(lambda: all(self._is_ready(host) for host in self._hosts), "the first version's hosts")
        for gpu in self._gpus:
            self._register(gpu)
        webs = [host.web for host in self._hosts if host.web]
        load = _Load(plan, webs, self._key, [gpu.model for gpu in self._gpus])
        load.start()
        try:
            time.sleep(plan.before)
            for version in later:
                self._upgrade(version, load)
            time.sleep(plan.after)
        finally:
            load.stop()
        self._drain(load)
        return self._judge(load)

    def close(self) -> None:
        self._children.close()
        self._valkey.stop()

    def _upgrade(self, version: Path, load: _Load) -> None:
        """Follow docs/how-to/deploying.md: migrate, then replace the hosts one by one."""
        if _migrations(version) != _migrations(self._version):
            self._manage(version, "migrate", "--no-input")
        self._version = version
        for number, host in enumerate(self._hosts):
            self._replace(host)
            self._report(f"{version.name}: {host.name} is replaced; {len(load.jobs)} jobs so far")
            if self._plan.switch and number == 0:
                self._report(self._manage(version, "index", "switch").strip())
            time.sleep(self._plan.between)

    # -- processes -----------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, str]:
        lease = self._plan.lease_seconds
        short = {
            "DISPATCHER_LEASE_SECONDS": f"{lease:g}",
            "DISPATCHER_RENEW_SECONDS": f"{lease / 4:g}",
            "DISPATCHER_SWEEP_SECONDS": "1",
            "DISPATCHER_PROBE_SECONDS": "1",
            "DISPATCHER_PROCESS_SILENT_SECONDS": f"{lease:g}",
        }
        socket = self._valkey.socket
        return {
            **(short if lease else {}),
            "DJANGO_SETTINGS_MODULE": "dispatcher_project.settings.production",
            "DJANGO_SECRET_KEY": "of a trial",
            "DISPATCHER_NO_BOOTSTRAP": "1",
            "DISPATCHER_DATA_DIR": str(self._folder / "var"),
            "DISPATCHER_DEPLOY_GRACE_SECONDS": f"{self._plan.longest + 30:g}",
            "REDIS_URL": f"unix://{socket}?db=0",
            "BROKER_URL": f"redis+socket://{socket}?virtual_host=1",
            "DATABASE_URL": self._plan.database or f"sqlite:///{self._folder / 'db.sqlite3'}",
            "MALLOC_ARENA_MAX": "2",
        }

    def _start(self, host: _Host, service: str, version: Path) -> None:
        python, ready = sys.executable, self._ready_file(host, service)
        ready.unlink(missing_ok=True)
        command = {
            "gpu": (python, "manage.py", "gpu_worker", "--ready-file", str(ready)),
            "sweeps": (
                python, "manage.py", "queue_worker", "--queues", "sweeps,callbacks",
                "--ready-file", str(ready),
            ),
            "web": (python, *_web_of(version), "--port", str(host.web)),
            "beat": (
                python, "-m", "celery", "--app", "dispatcher_project", "beat", "--pidfile=",
                f"--schedule={self._folder / 'beat'}",
            ),
        }[service]  # fmt: skip
        host.children[service] = self._children.start(f"{host.name}-{service}", *command, folder=version)

    def _is_ready(self, host: _Host) -> bool:
        for service, child in host.children.items():
            if not child.is_running():
                raise CannotProve(f"{child.name} has ended; see its log in {self._children.logs}")
            if service == "web" and not http_says_ok("127.0.0.1", host.web, "/livez"):
                return False
            if service in ("gpu", "sweeps") and not self._ready_file(host, service).exists():
                return False
        return True

    def _replace(self, host: _Host) -> None:
        """Restart each service of a host as a deploy does: its successor starts after its exit."""
        leaving = dict(host.children)
        for child in leaving.values():
            child.send(signal.SIGTERM)

        def all_left() -> bool:
            for service, child in list(leaving.items()):
                if not child.is_running():
                    del leaving[service]
                    self._start(host, service, self._version)
            return not leaving

        self._until(all_left, f"the end of {host.name}", self._plan.longest + _START_SECONDS)
        self._until(lambda: self._is_ready(host), f"the new {host.name}")

    def _ready_file(self, host: _Host, service: str) -> Path:
        return self._folder / f"{host.name}-{service}.ready"

    def _start_gpu(self, gpu: _Gpu) -> None:
        command = (
            sys.executable, "-m", "gpu_host.node", "--handler", f"{gpu.model}={HANDLER}", "--mode", gpu.mode,
            "--no-push", "--slots", str(gpu.slots), "--port", str(gpu.port), "--log", str(gpu.log),
        )  # fmt: skip
        self._children.start(gpu.name, *command)
        self._until(lambda: http_says_ok("127.0.0.1", gpu.port, "/health"), gpu.name)

    def _register(self, gpu: _Gpu) -> None:
        polled = {"model_type": "async", "poll_endpoint_template": "/status/{id}", "id_field": "job_id",
                  "poll_interval": 0.3}  # fmt: skip
        body = {
            "model": gpu.model,
            "server": gpu.name,
            "endpoint": f"http://127.0.0.1:{gpu.port}/{gpu.model}/run",
            "slots": gpu.slots,
            "max_run_seconds": self._plan.longest + 60,
            "max_poll_time": self._plan.longest + 60,
            **(polled if gpu.mode == "async" else {}),
        }
        done = lambda: _ask((self._hosts[0].web, self._key), "POST", "/admin/register", body)  # noqa: E731
        self._until(lambda: done() is not None, f"{gpu.name} to be registered")

    def _manage(self, version: Path, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=version,
            env=self._children.environment,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        if done.returncode != 0:
            raise CannotProve(f"manage.py {arguments[0]} failed: {done.stdout[-500:]}{done.stderr[-2000:]}")
        return done.stdout

    def _until(self, condition: Callable[[], bool], what: str, seconds: float = _START_SECONDS) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise CannotProve(f"waited {seconds:.0f} s for {what}; see {self._children.logs}")
            time.sleep(0.05)

    # -- the verdict ---------------------------------------------------------------------------------------

    def _drain(self, load: _Load) -> None:
        """Wait until every job has ended; the judge reports those that have not."""
        self._report(f"{len(load.jobs)} jobs accepted; waiting for their ends")
        until = time.monotonic() + 3 * self._plan.longest + 60
        left = set(load.jobs)
        while left and time.monotonic() < until:
            for job in sorted(left):
                found = _ask((self._hosts[0].web, self._key), "GET", f"/queue/jobs/{job}")
                if found is None or found["status"] not in ("completed", "failed", "cancelled"):
                    break
                left.discard(job)
            time.sleep(0.2)

    def _judge(self, load: _Load) -> Outcome:
        said = self._manage(self._version, "shell", "-c", _ROWS)
        line = next(line for line in said.splitlines() if line.startswith("ROWS"))
        rows = {row["id"]: row for row in json.loads(line.removeprefix("ROWS"))}
        logs = [read_node_log(gpu.name, read_lines(gpu.log)) for gpu in self._gpus]
        wrongs = list(_wrongs(load, rows, logs, {gpu.name: gpu.slots for gpu in self._gpus}))
        runs = [run for log in logs for run in log.runs]
        times = Counter(run.job_id for run in runs)
        ends = Counter(one["error_code"] or one["state"] for row in rows.values() for one in row["attempts"])
        figures = {
            "jobs": len(load.jobs),
            "states": dict(Counter(row["state"] for row in rows.values())),
            "attempts": dict(ends),
            "gpu_runs": len(runs),
            "run_more_than_once": sum(count > 1 for count in times.values()),
            "deaths": sum(row["deaths"] for row in rows.values()),
            "most_at_once": {log.server: log.peak for log in logs},
            "two_on_one_slot": sum(len(log.overlapping) for log in logs),
            "refused_by_servers": sum(len(log.refusals) for log in logs),
            "longest_gap_seconds": round(_longest_gap([run.started for run in runs]), 1),
        }
        return Outcome(tuple(wrongs), figures)


def _migrations(checkout: Path) -> set[str]:
    return {str(file.relative_to(checkout)) for file in checkout.glob("*/migrations/*.py")}


def _wrongs(
    load: _Load, rows: Mapping[str, Any], logs: Sequence[NodeLog], slots: Mapping[str, int]
) -> Iterator[str]:
    times = Counter(run.job_id for log in logs for run in log.runs)
    if len(set(load.jobs)) != len(load.jobs):
        yield "two submits got one job"
    for job in load.jobs:
        row = rows.get(job)
        if row is None:
            yield f"job {job} is not in the database"
            continue
        ends = [one["error_code"] or one["state"] for one in row["attempts"]]
        if row["state"] != "completed":
            yield f"job {job} is {row['state']} {row['error_code']}"
        if row["attempts_made"] > 1 or row["deaths"]:
            yield f"job {job}: {row['attempts_made']} tries count, {row['deaths']} deaths: {ends}"
        if len(ends) != 1:
            yield f"job {job} has {len(ends)} attempts: {ends}"
        if times[job] != 1:
            yield f"job {job} ran {times[job]} times"
    for log in logs:
        if log.peak > slots[log.server]:
            yield f"{log.server} ran {log.peak} at once and has {slots[log.server]} slots"
        for one, other in log.overlapping:
            yield f"{log.server}: {one.job_id} and {other.job_id} ran on slot {one.slot} at once"
        for refusal in log.refusals:
            yield f"{log.server} refused {refusal.job_id} on {refusal.slot}: {refusal.why}"


def _longest_gap(started: Sequence[float]) -> float:
    """Return the longest time between two starts of runs."""
    moments = sorted(started)
    return max((after - before for before, after in itertools.pairwise(moments)), default=0.0)


def _ask(
    address: tuple[int, str], method: str, path: str, body: Any = None, idempotency: str = ""
) -> dict[str, Any] | None:
    """Return the answer's JSON; None without a usable answer. address: a web's port, and the key."""
    port, key = address
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    if idempotency:
        headers["Idempotency-Key"] = idempotency
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/v1{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return dict(json.load(response))
    except urllib.error.HTTPError as error:
        if error.code < 500:
            raise CannotProve(f"{method} {path}: {error.code} {error.read().decode()[:500]}") from None
        return None
    except OSError:
        return None


def rolling_upgrade(plan: Plan, folder: Path, report: Callable[[str], None] = lambda line: None) -> Outcome:
    """Run one trial. Raises CannotProve."""
    trial = Rolling(plan, folder, report)
    try:
        return trial.run()
    finally:
        trial.close()


# -- the command -------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """Return the command line of `prove_upgrade`."""
    arguments = argparse.ArgumentParser(
        prog="manage.py prove_upgrade",
        description="Replace hosts of one version by those of another, one by one, under load. "
        "Exit status 0: no finding.",
    )
    arguments.add_argument("--from", dest="old", required=True, metavar="COMMIT", help="`.`: this checkout")
    arguments.add_argument("--to", dest="new", default=".", metavar="COMMIT", help="default: this checkout")
    arguments.add_argument(
        "--raise-layout", action="store_true", help="give the new version another key layout"
    )
    arguments.add_argument("--switch", action="store_true", help="run `index switch` after the first host")
    arguments.add_argument("--hosts", type=positive, default=3, help="default %(default)s")
    arguments.add_argument(
        "--sweepers", type=positive, default=1, help="number of hosts with sweeps (default %(default)s)"
    )
    arguments.add_argument("--slots", type=positive, default=8, help="default %(default)s")
    arguments.add_argument(
        "--longest", type=float, default=40.0, metavar="SECONDS", help="longest run (default %(default)s)"
    )
    arguments.add_argument("--lease-seconds", type=float, default=0.0, help="of leases; 0: as in production")
    arguments.add_argument(
        "--database", default="", help="URL of an empty PostgreSQL database (default: SQLite)"
    )
    arguments.add_argument("--data-dir", type=Path, help="default: a new one")
    return arguments


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 no finding, 1 findings, 3 the trial could not be run."""
    given = parser().parse_args(arguments)
    folder = (given.data_dir or Path(tempfile.mkdtemp(prefix="upgrade-"))).resolve()
    try:
        old = version_of(given.old, folder / "old")
        new = version_of(given.new, folder / "new")
        if given.raise_layout:
            say(f"the new version's layout is {raise_layout(new)}")
        plan = Plan(
            versions=(old, new),
            hosts=given.hosts,
            slots=given.slots,
            sweepers=given.sweepers,
            longest=given.longest,
            lease_seconds=given.lease_seconds,
            database=given.database,
            switch=given.switch,
        )
        outcome = rolling_upgrade(plan, folder, say)
    except (CannotProve, OSError) as error:
        say(f"prove_upgrade: {error}")
        return 3
    for wrong in outcome.wrongs[:40]:
        say(f"! {wrong}")
    say(json.dumps(outcome.figures))
    say(f"{len(outcome.wrongs)} wrongs; logs in {folder}" if outcome.wrongs else "nothing is wrong")
    return 1 if outcome.wrongs else 0


def version_of(said: str, folder: Path) -> Path:
    """Return a commit's tree, or for ``.`` a copy of this checkout."""
    return copy_of_present(folder) if said == "." else checkout_of(said, folder)


def _web_of(version: Path) -> tuple[str, ...]:
    """A version before `dispatcher_project/web` was started by uvicorn's own command."""
    if (version / "dispatcher_project" / "web").is_dir():
        return ("-m", "dispatcher_project.web")
    options = ("--timeout-graceful-shutdown", "3", "--no-access-log")
    return ("-m", "uvicorn", "dispatcher_project.asgi:application", *options)
