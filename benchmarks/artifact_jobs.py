"""``python -m benchmarks.artifact_jobs``: jobs that take a file and save one, beside curl and the same store.

Each turn moves as many files by curl (in, out), by the client (in, out), and through whole jobs: the client
uploads a file, a GPU server fetches it and saves another one, and the client downloads that. Only ratios of
one run count on a busy machine. The files of a turn are erased at its end.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import requests

from benchmarks.artifacts import MEGABYTE, bucket_of, make_file
from benchmarks.suite.cpu import cpu_seconds
from dispatcher_client import Artifact, Client, Job
from dispatcher_project.supervisor.signs import http_says_ok
from gpu_host.node.handlers import RunContext
from verification.proving.children import Children
from verification.proving.clients import WatchedClient
from verification.proving.ports import free_ports
from verification.proving.system import OwnSystem, System, clean_environment

MODEL = "zimg"
WAYS = ("curl, in", "curl, out", "client, in", "client, out", "jobs")
TRANSFERS = {"jobs": 4}
"""How often a way transfers each file, where that is not once."""


def run(payload: Any, ctx: RunContext) -> dict[str, Any]:
    """The model: read the file, and save one of the same length."""
    source = ctx.path(payload["file"])
    with source.open("rb") as file:
        digest, size = hashlib.file_digest(file, "sha256"), source.stat().st_size
    tail = os.urandom(64)
    path = ctx.output_dir / "made"
    with path.open("wb") as made:
        block = os.urandom(MEGABYTE)
        for _ in range((size - len(tail)) // MEGABYTE):
            made.write(block)
        made.write(os.urandom((size - len(tail)) % MEGABYTE) + tail)
    return {"sha256": digest.hexdigest(), "made": ctx.save(path)}


@contextmanager
def dispatcher(folder: Path, slots: int, bucket: Mapping[str, str]) -> Iterator[System]:
    """Run a dispatcher, and a GPU server with so many slots. bucket: settings of an S3 store."""
    children = Children(folder / "log", clean_environment())
    ports = free_ports()
    up = OwnSystem(folder / "up", children, environment=bucket, redis_url="", database_url="", ports=ports)
    port = next(ports)
    node = ["-m", "gpu_host.node", "--handler", f"{MODEL}=benchmarks.artifact_jobs:run", "--mode", "sync"]
    children.start("gpu", sys.executable, *node, "--slots", str(slots), "--port", str(port))
    try:
        while not http_says_ok("127.0.0.1", port, "/health"):
            time.sleep(0.1)
        server = {
            "model": MODEL,
            "server": "bench",
            "endpoint": f"http://127.0.0.1:{port}/{MODEL}/run",
            "slots": slots,
        }
        WatchedClient(up.url, up.operator_key).register(server)
        yield up
    finally:
        up.stop()
        children.close()


class Spent(NamedTuple):
    """What a way took. cpu: seconds of all processes together: client, dispatcher, GPU server, store."""

    seconds: float
    cpu: float


class Turn:
    """One turn: so many files, moved in each of `WAYS`."""

    def __init__(self, tested: System, folder: Path, files: int, megabytes: int, at_once: int) -> None:
        self._url, self._key = tested.url, tested.operator_key
        self._client = Client(self._url, self._key, timeout_seconds=300)
        self._threads = ThreadPoolExecutor(at_once)
        self._folder, self._files, self._megabytes = folder, files, megabytes
        self.spent: dict[str, Spent] = {}

    def play(self) -> None:
        put = [self._promised(path) for path in self._new_files()]
        self._timed("curl, in", lambda one: _curl(*one[1]), put)
        signed = [self._signed(artifact_id) for artifact_id, _ in put]
        self._timed("curl, out", lambda one: _curl(one[1], "-o", str(self._folder / f"back-{one[0]}")),
                    list(enumerate(signed)))  # fmt: skip
        uploaded = self._timed("client, in", self._client.upload, self._new_files())
        self._timed("client, out", self._downloaded, [one.id for one in uploaded])
        jobs = self._timed("jobs", self._job, self._new_files())
        for artifact_id in [*(one.id for one in uploaded), *(artifact_id for artifact_id, _ in put)]:
            self._api("DELETE", f"/artifacts/{artifact_id}")
        for job in jobs:
            self._client.erase(job.job_id)
        self._threads.shutdown()
        for path in self._folder.iterdir():
            path.unlink()

    def _timed(self, way: str, work: Callable[[Any], Any], of: Sequence[Any]) -> list[Any]:
        began, cpu = time.monotonic(), cpu_seconds([os.getpid()])
        found = list(self._threads.map(work, of))
        self.spent[way] = Spent(time.monotonic() - began, cpu_seconds([os.getpid()]) - cpu)
        return found

    def _new_files(self) -> list[Path]:
        return [make_file(self._folder / f"file-{number}", self._megabytes) for number in range(self._files)]

    def _downloaded(self, artifact_id: str) -> None:
        path = self._folder / f"back-{artifact_id}"
        self._client.download(artifact_id, path)
        path.unlink()

    def _job(self, path: Path) -> Job:
        stored: Artifact = self._client.upload(path)
        job = self._client.submit(MODEL, {"file": stored.ref})
        job = self._client.wait(job.job_id, timeout_seconds=600)
        if job.status != "completed" or job.result["sha256"] != stored.sha256:
            raise SystemExit(f"a job is {job.status}: {job.data.get('error')}")
        self._downloaded(job.result["made"]["$artifact"])
        return job

    def _promised(self, path: Path) -> tuple[str, list[str]]:
        """Promise a file; return its artifact, and curl's arguments to upload it."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        made = self._api("POST", "/artifacts", {"bytes": path.stat().st_size, "sha256": digest}).json()
        headers = [part for pair in made["upload"]["headers"].items() for part in ("-H", ": ".join(pair))]
        return made["id"], ["-T", str(path), made["upload"]["url"], *headers]

    def _signed(self, artifact_id: str) -> str:
        return self._api("GET", f"/artifacts/{artifact_id}").headers["location"]

    def _api(self, method: str, path: str, body: Any = None) -> requests.Response:
        headers = {"Authorization": f"Bearer {self._key}"}
        answer = requests.request(
            method, f"{self._url}/api/v1{path}", json=body, headers=headers, timeout=60, allow_redirects=False
        )
        answer.raise_for_status()
        return answer


def _curl(*arguments: str) -> None:
    subprocess.run(["curl", "-sSf", *arguments], check=True, stdout=subprocess.DEVNULL)


def report(turns: Sequence[Mapping[str, Spent]], files: int, megabytes: int) -> Iterator[str]:
    """Yield lines: speed and CPU time of each way, and the median of its turns' shares of curl's speed."""
    moved = len(turns) * files * megabytes
    for way in WAYS:
        seconds, cpu = sum(turn[way].seconds for turn in turns), sum(turn[way].cpu for turn in turns)
        megabytes_of_way = moved * TRANSFERS.get(way, 1)
        shares = [_of_curl(way, turn) / turn[way].seconds for turn in turns]
        share = "" if way.startswith("curl") else f"   {median(shares):5.0%} of curl"
        gigabytes = megabytes_of_way / 1024
        yield f"{way:<12} {megabytes_of_way / seconds:8.0f} MB/s {cpu / gigabytes:8.2f} CPU s/GB{share}"


def _of_curl(way: str, turn: Mapping[str, Spent]) -> float:
    """Return the seconds that curl took for the same transfers."""
    if way == "jobs":
        return 2 * (turn["curl, in"].seconds + turn["curl, out"].seconds)
    return turn[way.replace("client", "curl")].seconds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="number of jobs (default %(default)s)")
    parser.add_argument("--megabytes", type=int, default=20, help="of each file (default %(default)s)")
    parser.add_argument("--turn", type=int, default=25, help="files of one turn (default %(default)s)")
    parser.add_argument("--at-once", type=int, default=4, help="transfers and slots (default %(default)s)")
    parser.add_argument(
        "--store", choices=("folder", "s3"), default="folder",
        help="a folder served by the web process (default), or a SeaweedFS",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        name = tempfile.TemporaryDirectory(prefix="bench-artifacts-", dir=os.environ.get("TMPDIR"))
        folder = Path(stack.enter_context(name))
        bucket, server = stack.enter_context(bucket_of(folder, options.store))
        tested = stack.enter_context(dispatcher(folder, options.at_once, bucket))
        (folder / "files").mkdir()
        turns = []
        for _ in range(max(1, options.jobs // options.turn)):
            turn = Turn(tested, folder / "files", options.turn, options.megabytes, options.at_once)
            turn.play()
            turns.append(turn.spent)
            if server is not None:
                server.vacuum()
            print(f"\n{len(turns) * options.turn} jobs, load average {os.getloadavg()[0]:.1f}")
            print("\n".join(report(turns, options.turn, options.megabytes)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
