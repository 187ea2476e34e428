"""``python -m benchmarks.artifacts``: a file into the dispatcher's folder of artifacts and back (Linux).

Starts a Valkey and a web process of its own. Measures bytes per second of the client and of curl, the peak
memory of both processes, the growth of the database, and submits (p50, p99) alone, beside clients that send
forms with files, and beside clients that load large files, in turns: the ratio counts on a busy machine. With
--windows the turns are short and many, and each ratio has an interval."""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import requests

from benchmarks.artifact_windows import ALONE, in_turns, report
from benchmarks.suite.cpu import running_cpu_seconds
from dispatcher_client import Client
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from verification.proving.ports import free_ports
from verification.proving.seaweed import KEY, SECRET, OwnSeaweed

MEGABYTE = 1024 * 1024
_KEY = """
from gpus.models import ModelConfig, Pool
from jobs.models import Tenant
from jobs.operations.tenants import create_key
ModelConfig.objects.create(name="zimg", pool=Pool.objects.create(name="zimg"))
print(create_key(Tenant.objects.create(name="bench", max_queued=10_000_000))[1])
"""


def peak_mb(pid: int | str) -> float:
    """Return the most memory that a process had at once, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"{pid} has ended")


def forget_peak(pid: int | str) -> None:
    """Reset the peak of a process to its present memory."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


@dataclass(frozen=True, slots=True)
class System:
    """A dispatcher of this benchmark. web, store: pids of the process that takes submits and of the one that
    serves files. url, key: of the API and of a tenant."""

    web: int
    store: int
    url: str
    key: str


@contextmanager
def system(folder: Path, store: str, nice: int = 0) -> Iterator[System]:
    """Run the parts in a new folder. store: "web" for a folder that the web process serves, "process" for one
    that has a process of its own, "s3" for a SeaweedFS. nice: of the process of its own."""
    folder.mkdir()
    ports = free_ports()
    port, store_port = next(ports), next(ports)
    url = f"http://127.0.0.1:{port}"
    listening = [port, store_port] if store == "process" else [port]
    with EmbeddedValkey(folder / "valkey") as valkey, bucket_of(folder, store) as (bucket, server):
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "dispatcher_project.settings.up",
            "DISPATCHER_DATA_DIR": str(folder),
            "DISPATCHER_PUBLIC_URL": url,
            "DISPATCHER_ARTIFACT_URL": f"http://127.0.0.1:{listening[-1]}",
            "DISPATCHER_LOG_LEVEL": "CRITICAL",
            "DISPATCHER_UPLOAD_IDLE_SECONDS": "120",  # stopped clients
            "DISPATCHER_NO_BOOTSTRAP": "1",
            "REDIS_URL": valkey.url,
            "BROKER_URL": f"redis+socket://{valkey.socket}?virtual_host=0",
            **bucket,
        }
        manage = [sys.executable, "manage.py"]
        subprocess.run([*manage, "migrate", "-v", "0"], env=environment, check=True)
        made = subprocess.run(
            [*manage, "shell", "-v", "0", "-c", _KEY], env=environment, check=True, stdout=subprocess.PIPE
        )
        key = made.stdout.decode().split()[-1]
        command = [sys.executable, "-m", "dispatcher_project.web", "--host", "127.0.0.1", "--port"]
        files = ["nice", "-n", str(nice), *command]
        webs = [
            subprocess.Popen([*(command if one == port else files), str(one)], env=environment)
            for one in listening
        ]
        try:
            for web, one in zip(webs, listening, strict=True):
                _wait_for(f"http://127.0.0.1:{one}/livez", web)
            yield System(webs[0].pid, server.pid if server else webs[-1].pid, url, key)
        finally:
            for web in webs:
                web.terminate()
            for web in webs:
                web.wait(30)


@contextmanager
def bucket_of(folder: Path, store: str) -> Iterator[tuple[dict[str, str], OwnSeaweed | None]]:
    """Yield the settings of a new bucket and its server; none of them for other stores than "s3"."""
    if store != "s3":
        yield {}, None
        return
    (folder / "s3").mkdir()
    server = OwnSeaweed(folder / "s3")
    try:
        server.start()
        server.make_bucket("bench")
        yield (
            {
                "DISPATCHER_ARTIFACT_STORE": f"s3://bench?endpoint={server.url}&region=us-east-1",
                "AWS_ACCESS_KEY_ID": KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET,
            },
            server,
        )
    finally:
        server.close()


def _wait_for(url: str, web: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            urlopen(url, timeout=1).close()
            return
        except (URLError, OSError):
            if web.poll() is not None or time.monotonic() > until:
                raise SystemExit("the web process did not start") from None
            time.sleep(0.1)


def make_file(path: Path, megabytes: int) -> Path:
    """Write random bytes, so that nothing can be compressed or left out."""
    with path.open("wb") as file:
        for _ in range(megabytes):
            file.write(os.urandom(MEGABYTE))
    return path


def timed(what: str, megabytes: float, store: int, work: Callable[[], object]) -> None:
    """Print the speed of some work, and the CPU time of the process `store` for a GB."""
    began, before = time.monotonic(), running_cpu_seconds([store])
    work()
    took, cpu = time.monotonic() - began, running_cpu_seconds([store]) - before
    gigabytes = megabytes / 1024
    print(
        f"{what:<44} {megabytes / took:8.0f} MB/s {took:7.1f} s {cpu / gigabytes:7.2f} CPU s/GB", flush=True
    )


def submits(url: str, key: str, seconds: float) -> list[float]:
    """Submit jobs one after the other; return the sorted milliseconds of each."""
    client, took = Client(url, key), []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        client.submit("zimg", {"n": 1})
        took.append((time.monotonic() - began) * 1000)
        time.sleep(0.005)
    return sorted(took)


_CLIENTS = {
    "files": """
import os, sys, time
from pathlib import Path
from benchmarks.artifacts import MEGABYTE, make_file
from benchmarks.suite.cpu import running_cpu_seconds
from dispatcher_client import Client
url, key, path, size, speed = sys.argv[1:]
client, speed, size = Client(url, key, timeout_seconds=120), float(speed), int(size)
file, moved, before, due = make_file(Path(path), size), 0, 0, 0.0
def progress(done, total):
    global moved, before, due
    moved, news, before = moved + max(0, done - before), max(0, done - before), done
    Path(path + ".moved").write_text(str(moved))
    if speed:  # what was missed while it was stopped is not made up for
        due = max(due, time.monotonic() - 0.05) + news / MEGABYTE / speed
        time.sleep(max(0.0, due - time.monotonic()))
while True:
    with file.open("r+b") as changed:
        changed.write(os.urandom(64))
    stored, before = client.upload(file, on_progress=progress), 0
    client.download(stored, path + ".back", on_progress=progress)
    before = 0
""",
    "forms": """
import os, sys
import requests
url, key, path, size, speed = sys.argv[1:]
while True:
    job = '{"model": "zimg", "payload": {"file": {"$file": "f"}}}'
    files = {"job": (None, job), "f": ("f", os.urandom(int(size) * 1024 * 1024))}
    answer = requests.post(
        url + "/api/v1/queue/submit", files=files, headers={"Authorization": "Bearer " + key}, timeout=60
    )
    assert answer.status_code in (202, 429), answer.text
""",
}
"""Scripts of clients that load a dispatcher until they are killed. They write how many bytes they moved."""


class RunningLoad:
    """Clients of a load. names: of their files."""

    def __init__(self, clients: Sequence[subprocess.Popen[bytes]], names: Sequence[Path]) -> None:
        self._clients, self._names = clients, names

    def moved(self) -> float:
        """Return the gigabytes that the clients have moved."""
        counts = [name.with_name(f"{name.name}.moved") for name in self._names]
        return sum(int(count.read_text() or 0) for count in counts if count.exists()) / 1e9

    def stop(self) -> None:
        for client in self._clients:
            client.send_signal(signal.SIGSTOP)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Let stopped clients go on meanwhile."""
        for client in self._clients:
            client.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.stop()


@dataclass(frozen=True, slots=True)
class Load:
    """Clients that load a dispatcher. kind: key of `_CLIENTS`, or "light" (`benchmarks.file_clients`).
    link: megabits per second of all of them together; 0: as fast as they can. name: of its files."""

    name: str
    kind: str
    clients: int
    megabytes: int
    link: float = 0.0

    @contextmanager
    def on(self, system: System, folder: Path) -> Iterator[RunningLoad]:
        """Let the clients run meanwhile."""
        speed = str(self.link / 8 * 1e6 / MEGABYTE / self.clients)
        names = [folder / f"load-{self.name}-{number}" for number in range(self.clients)]
        if self.kind == "light":
            del names[1:]
            command = [sys.executable, "-m", "benchmarks.file_clients", system.url, system.key]
            rest = [str(self.megabytes), speed, str(self.clients)]
        else:  # real clients have CPUs of their own
            command = ["nice", "-n", "19", sys.executable, "-c", _CLIENTS[self.kind], system.url, system.key]
            rest = [str(self.megabytes), speed]
        running = [subprocess.Popen([*command, str(name), *rest]) for name in names]
        try:
            while self.kind != "forms" and not all(
                name.with_name(f"{name.name}.moved").exists() for name in names
            ):
                _require_alive(running)
                time.sleep(0.1)
            time.sleep(3)
            yield RunningLoad(running, names)
            _require_alive(running)
        finally:
            for one in running:
                one.kill()
                one.wait()
            for left in folder.glob(f"load-{self.name}-*"):
                left.unlink()


def _require_alive(clients: Sequence[subprocess.Popen[bytes]]) -> None:
    if ended := [one for one in clients if one.poll() is not None]:
        raise SystemExit(f"{len(ended)} clients have failed")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2048, help="size of the file (default 2048)")
    parser.add_argument(
        "--load", type=int, default=10, help="clients that load files beside submits (default 10)"
    )
    parser.add_argument("--load-megabytes", type=int, default=1024, help="size of their files (default 1024)")
    parser.add_argument(
        "--link",
        type=float,
        default=0,
        help="megabits per second of all clients together (default: none)",
    )
    parser.add_argument("--forms", type=int, default=2, help="clients that send forms (default 2)")
    parser.add_argument("--form-megabytes", type=int, default=15, help="size of their files (default 15)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of submits, each (default 20)")
    parser.add_argument(
        "--store", choices=("web", "process", "s3"), default="web",
        help="a folder served by the web process (default) or by a process of its own, or a SeaweedFS",
    )  # fmt: skip
    parser.add_argument("--nice", type=int, default=0, help="of the store's own process (default 0)")
    parser.add_argument(
        "--control", action="store_true",
        help="in turns, load files to another dispatcher's SeaweedFS: what the machine costs",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=2, help="turns of each kind of load (default 2)")
    parser.add_argument(
        "--windows", type=int, default=0,
        help="turns of short windows alone, with files and with the control, in place of --rounds",
    )  # fmt: skip
    parser.add_argument(
        "--window-seconds", type=float, default=2.0, help="of each of these windows (default 2)"
    )
    parser.add_argument("--rate", type=float, default=25.0, help="submits per second in them (default 25)")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        name = tempfile.TemporaryDirectory(prefix="bench-artifacts-", dir=os.environ.get("TMPDIR"))
        folder = Path(stack.enter_context(name))
        tested = stack.enter_context(system(folder / "tested", options.store, options.nice))
        if options.megabytes:
            _one_file(folder, tested, options.megabytes)
        control = stack.enter_context(system(folder / "control", "s3")) if options.control else None
        _beside_submits(folder, tested, control, options)
    return 0


def _one_file(folder: Path, tested: System, megabytes: int) -> None:
    url, key = tested.url, tested.key
    client = Client(url, key, timeout_seconds=120)
    path, back = make_file(folder / "file", megabytes), folder / "back"
    submits(url, key, 1.0)  # warm
    before = {"store": peak_mb(tested.store), "client": peak_mb("self")}
    database = (folder / "tested/db.sqlite3").stat().st_size
    found = []
    timed(
        "client, in (parts, joined and checked)", megabytes, tested.store,
        lambda: found.append(client.upload(path)),
    )  # fmt: skip
    timed("client, out", megabytes, tested.store, lambda: client.download(found[0], back))
    for process, grown in (("store", peak_mb(tested.store)), ("client", peak_mb("self"))):
        print(f"{process:<44} {grown - before[process]:8.1f} MB more at its peak ({grown:.0f} MB)")
    grown = (folder / "tested/db.sqlite3").stat().st_size - database
    print(f"{'database':<44} {grown:8d} bytes more")
    location = f"{url}/api/v1/artifacts/{found[0].id}"
    curl = ["curl", "-sSL", "-H", f"Authorization: Bearer {key}", location, "-o", str(back)]
    timed("curl, out", megabytes, tested.store, lambda: subprocess.run(curl, check=True))
    put = ["curl", "-sSf", "-T", str(path), *_promised(url, key, make_file(path, megabytes))]
    timed("curl, in (one piece)", megabytes, tested.store, lambda: subprocess.run(put, check=True))
    print(f"{'store, all of these':<44} {peak_mb(tested.store) - before['store']:8.1f} MB more at its peak")


def _promised(url: str, key: str, path: Path) -> list[str]:
    """Promise a file; return the URL of its upload, and curl's arguments for its headers."""
    with path.open("rb") as file:
        wanted = {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    headers = {"Authorization": f"Bearer {key}"}
    answer = requests.post(f"{url}/api/v1/artifacts", json=wanted, headers=headers, timeout=60)
    answer.raise_for_status()
    upload = answer.json()["upload"]
    return [upload["url"], *(part for pair in upload["headers"].items() for part in ("-H", ": ".join(pair)))]


def _beside_submits(
    folder: Path, tested: System, control: System | None, options: argparse.Namespace
) -> None:
    files = Load(
        "files", "light" if options.windows else "files", options.load, options.load_megabytes, options.link
    )
    loads = [(Load("forms", "forms", options.forms, options.form_megabytes), tested), (files, tested)]
    if control is not None:
        loads.append((replace(files, name="control"), control))
    if options.windows:
        _in_windows(folder, tested, loads[1:], options)
        return
    for _ in range(options.rounds):
        found = {}
        for load, loaded in loads:
            if not load.clients:
                continue
            alone = _measured("submits alone", tested, options.seconds)
            with load.on(loaded, folder) as running:
                before = running.moved()
                beside = _measured(
                    f"beside {load.clients} clients, {load.name} of {load.megabytes} MB",
                    tested,
                    options.seconds,
                )
                gigabytes = running.moved() - before
            found[load.name] = beside
            print(
                f"{'ratio to alone':<44} p50 {beside[0] / alone[0]:6.2f}     p99 {beside[1] / alone[1]:6.2f}"
            )
            if gigabytes:
                print(f"{'moved':<44} {gigabytes:8.2f} GB")
        if "files" in found and "control" in found:
            p50, p99 = (ours / other for ours, other in zip(found["files"], found["control"], strict=True))
            print(f"{'ratio of files to control':<44} p50 {p50:6.2f}     p99 {p99:6.2f}", flush=True)


class _Meter:
    """What a load moves in its windows, and the CPU time of the processes that submits and files meet."""

    def __init__(self, load: RunningLoad, tested: System) -> None:
        self._load, self._pids = load, {tested.web, tested.store}
        self._gigabytes = self._seconds = self._cpu = 0.0

    @contextmanager
    def on(self) -> Iterator[None]:
        began, moved, cpu = time.monotonic(), self._load.moved(), running_cpu_seconds(self._pids)
        with self._load.going_on():
            yield
        self._seconds += time.monotonic() - began
        self._gigabytes += self._load.moved() - moved
        self._cpu += running_cpu_seconds(self._pids) - cpu

    def text(self) -> str:
        return (
            f"moved {self._gigabytes:.2f} GB, {self._gigabytes * 8 / self._seconds:.2f} Gbit/s; "
            f"{self._cpu / self._seconds:.2f} CPUs of the dispatcher"
        )


def _in_windows(
    folder: Path, tested: System, loads: Sequence[tuple[Load, System]], options: argparse.Namespace
) -> None:
    """Print percentiles and ratios after each tenth of the turns; the last ones are of all."""
    client = Client(tested.url, tested.key)
    with ExitStack() as stack:
        running = {}
        for load, loaded in loads:
            running[load.name] = stack.enter_context(load.on(loaded, folder))
            running[load.name].stop()
        submits(tested.url, tested.key, 3.0)  # warm
        meters = {name: _Meter(one, tested) for name, one in running.items()}
        for turn, found in enumerate(
            in_turns(
                {name: meter.on for name, meter in meters.items()},
                lambda: client.submit("zimg", {"n": 1}),
                turns=options.windows,
                seconds=options.window_seconds,
                rate=options.rate,
            ),
            1,
        ):
            if turn % max(1, options.windows // 10) == 0 or turn == options.windows:
                print(f"after {turn} turns, load {os.getloadavg()[0]:.1f}")
                pairs = [(name, ALONE) for name in running] + [("files", "control")]
                print("\n".join(report(found, pairs)), flush=True)
        for name, meter in meters.items():
            print(f"{name:<24} {meter.text()}", flush=True)


def _measured(what: str, tested: System, seconds: float) -> tuple[float, float]:
    """Submit meanwhile; print CPU time of the dispatcher, p50 and p99, and return these two in ms."""
    pids = {tested.web, tested.store}
    before = running_cpu_seconds(pids)
    took = submits(tested.url, tested.key, seconds)
    cpu = running_cpu_seconds(pids) - before
    p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
    print(
        f"{what:<44} p50 {p50:6.1f} ms  p99 {p99:6.1f} ms  ({len(took)}; {cpu / seconds:.2f} CPUs; "
        f"load {os.getloadavg()[0]:.1f})",
        flush=True,
    )
    return p50, p99


if __name__ == "__main__":
    sys.exit(main())
