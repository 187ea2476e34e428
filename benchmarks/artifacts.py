"""``python -m benchmarks.artifacts``: a file into the dispatcher's folder of artifacts and back (Linux).

Starts a Valkey and a web process of its own. Measures bytes per second of the client and of curl, the peak
memory of both processes, the growth of the database, and submits (p50, p99) alone, beside clients that send
forms with files, and beside clients that load large files, in turns: the ratio counts on a busy machine."""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import requests

from dispatcher_client import Client
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from verification.proving.ports import free_ports

MEGABYTE = 1024 * 1024
_KEY = """
from gpus.models import ModelConfig, Pool
from jobs.models import Tenant
from jobs.operations.tenants import create_key
ModelConfig.objects.create(name="zimg", pool=Pool.objects.create(name="zimg"))
print(create_key(Tenant.objects.create(name="bench"))[1])
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


@contextmanager
def system(folder: Path, *, has_store_process: bool) -> Iterator[tuple[int, str, str]]:
    """Run the parts; yield the pid of the web process that serves the files, the URL of the API, and a
    tenant's key. has_store_process: that is a process of its own."""
    ports = free_ports()
    port, store_port = next(ports), next(ports)
    url = f"http://127.0.0.1:{port}"
    listening = [port, store_port] if has_store_process else [port]
    with EmbeddedValkey(folder / "valkey") as valkey:
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "dispatcher_project.settings.up",
            "DISPATCHER_DATA_DIR": str(folder),
            "DISPATCHER_PUBLIC_URL": url,
            "DISPATCHER_ARTIFACT_URL": f"http://127.0.0.1:{listening[-1]}",
            "DISPATCHER_LOG_LEVEL": "CRITICAL",
            "DISPATCHER_NO_BOOTSTRAP": "1",
            "REDIS_URL": valkey.url,
            "BROKER_URL": f"redis+socket://{valkey.socket}?virtual_host=0",
        }
        manage = [sys.executable, "manage.py"]
        subprocess.run([*manage, "migrate", "-v", "0"], env=environment, check=True)
        made = subprocess.run(
            [*manage, "shell", "-v", "0", "-c", _KEY], env=environment, check=True, stdout=subprocess.PIPE
        )
        key = made.stdout.decode().split()[-1]
        command = [sys.executable, "-m", "dispatcher_project.web", "--host", "127.0.0.1", "--port"]
        webs = [subprocess.Popen([*command, str(one)], env=environment) for one in listening]
        try:
            for web, one in zip(webs, listening, strict=True):
                _wait_for(f"http://127.0.0.1:{one}/livez", web)
            yield webs[-1].pid, url, key
        finally:
            for web in webs:
                web.terminate()
            for web in webs:
                web.wait(30)


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


def timed(what: str, megabytes: float, work: object) -> None:
    began = time.monotonic()
    work()  # type: ignore[operator]
    took = time.monotonic() - began
    print(f"{what:<44} {megabytes / took:8.0f} MB/s {took:7.1f} s")


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
import sys
from pathlib import Path
from benchmarks.artifacts import make_file
from dispatcher_client import Client
url, key, path, size = sys.argv[1:]
client = Client(url, key)
while True:
    client.download(client.upload(make_file(Path(path), int(size))), path + ".back")
""",
    "forms": """
import os, sys
import requests
url, key, path, size = sys.argv[1:]
while True:
    job = '{"model": "zimg", "payload": {"file": {"$file": "f"}}}'
    files = {"job": (None, job), "f": ("f", os.urandom(int(size) * 1024 * 1024))}
    answer = requests.post(
        url + "/api/v1/queue/submit", files=files, headers={"Authorization": "Bearer " + key}, timeout=60
    )
    assert answer.status_code in (202, 429), answer.text
""",
}
"""Scripts of clients that load the web process until they are killed."""


@contextmanager
def load(kind: str, clients: int, megabytes: int, *, url: str, key: str, folder: Path) -> Iterator[None]:
    """Let so many client processes load the web process meanwhile. kind: key of `_CLIENTS`."""
    names = [str(folder / f"load-{number}") for number in range(clients)]
    # real clients have CPUs of their own
    command = ["nice", "-n", "19", sys.executable, "-c", _CLIENTS[kind], url, key]
    running = [subprocess.Popen([*command, name, str(megabytes)]) for name in names]
    try:
        time.sleep(3)
        yield
        if ended := [one for one in running if one.poll() is not None]:
            raise SystemExit(f"{len(ended)} clients have failed")
    finally:
        for one in running:
            one.kill()
            one.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2048, help="size of the file (default 2048)")
    parser.add_argument(
        "--load", type=int, default=10, help="clients that load files beside submits (default 10)"
    )
    parser.add_argument("--load-megabytes", type=int, default=1024, help="size of their files (default 1024)")
    parser.add_argument("--forms", type=int, default=2, help="clients that send forms (default 2)")
    parser.add_argument("--form-megabytes", type=int, default=15, help="size of their files (default 15)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of submits, each (default 20)")
    parser.add_argument(
        "--store-process", action="store_true", help="serve the files by a web process of their own"
    )
    parser.add_argument("--rounds", type=int, default=2, help="turns of each kind of load (default 2)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-artifacts-", dir=os.environ.get("TMPDIR")) as name:
        folder = Path(name)
        with system(folder, has_store_process=options.store_process) as (pid, url, key):
            _one_file(folder, pid, url, key, options.megabytes)
            _beside_submits(folder, url, key, options)
    return 0


def _one_file(folder: Path, pid: int, url: str, key: str, megabytes: int) -> None:
    client = Client(url, key, timeout_seconds=120)
    path, back = make_file(folder / "file", megabytes), folder / "back"
    submits(url, key, 1.0)  # warm
    before = {"web": peak_mb(pid), "client": peak_mb("self")}
    database = (folder / "db.sqlite3").stat().st_size
    found = []
    timed("client, in (parts, joined and checked)", megabytes, lambda: found.append(client.upload(path)))
    timed("client, out", megabytes, lambda: client.download(found[0], back))
    for process, grown in (("web", peak_mb(pid)), ("client", peak_mb("self"))):
        print(f"{process:<44} {grown - before[process]:8.1f} MB more at its peak ({grown:.0f} MB)")
    grown = (folder / "db.sqlite3").stat().st_size - database
    print(f"{'database':<44} {grown:8d} bytes more")
    signed = client.artifact(found[0].id)
    location = client._calls._transport.root + f"/artifacts/{signed.id}"
    curl = ["curl", "-sSL", "-H", f"Authorization: Bearer {key}", location, "-o", str(back)]
    timed("curl, out", megabytes, lambda: subprocess.run(curl, check=True))
    put = ["curl", "-sSf", "-T", str(path), _promised(url, key, make_file(path, megabytes))]
    timed("curl, in (one piece)", megabytes, lambda: subprocess.run(put, check=True))
    print(f"{'web, all of these':<44} {peak_mb(pid) - before['web']:8.1f} MB more at its peak")


def _promised(url: str, key: str, path: Path) -> str:
    """Promise a file; return the URL of its upload."""
    with path.open("rb") as file:
        wanted = {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    headers = {"Authorization": f"Bearer {key}"}
    answer = requests.post(f"{url}/api/v1/artifacts", json=wanted, headers=headers, timeout=60)
    answer.raise_for_status()
    return str(answer.json()["upload"]["url"])


def _beside_submits(folder: Path, url: str, key: str, options: argparse.Namespace) -> None:
    loads = [
        ("forms", options.forms, options.form_megabytes),
        ("files", options.load, options.load_megabytes),
    ]
    for _ in range(options.rounds):
        for kind, clients, megabytes in loads:
            if not clients:
                continue
            alone = _figures("submits alone", submits(url, key, options.seconds))
            with load(kind, clients, megabytes, url=url, key=key, folder=folder):
                took = submits(url, key, options.seconds)
            beside = _figures(f"submits beside {clients} clients, {kind} of {megabytes} MB", took)
            print(f"{'ratio':<44} p50 {beside[0] / alone[0]:6.2f}     p99 {beside[1] / alone[1]:6.2f}")


def _figures(what: str, took: list[float]) -> tuple[float, float]:
    """Print and return p50 and p99 in ms."""
    p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
    print(f"{what:<44} p50 {p50:6.1f} ms  p99 {p99:6.1f} ms  ({len(took)})", flush=True)
    return p50, p99


if __name__ == "__main__":
    sys.exit(main())
