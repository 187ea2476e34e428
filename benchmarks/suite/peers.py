"""The peers: their packages, their environments, and the set-up (`bench --setup`).

Each one has an environment of its own under `var/bench/<peer>`, with the versions of
`benchmarks/peers/versions.toml`; none affects the dispatcher's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dispatcher_project.supervisor.data_folder import ROOT, default_folder
from foundation.program import command_line

VERSIONS = ROOT / "benchmarks" / "peers" / "versions.toml"
NODE_MIN = 18
_SETUP_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Peer:
    """Another job queue to compare with. prepares: its script has a verb for that. node: runs on Node.js.
    of: the peer whose environment it uses."""

    name: str
    what: str
    needs_postgresql: bool = False
    prepares: bool = False
    node: bool = False
    ours: bool = False
    of: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return default_folder().resolve() / "bench" / (self.of or self.name)

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.ours else self.folder / "bin" / "python"

    def command(self, *verb: str) -> list[str]:
        if self.node:
            script = ROOT / "benchmarks" / "peers" / f"{self.name}.js"
            return ["node", str(script), str(self.folder / "node_modules"), *verb]
        return [str(self.python), "-m", f"benchmarks.peers.{self.name}", *verb]

    def why_not(self) -> str:
        """Return why it can't be measured here; empty if it can."""
        if self.ours:
            return ""
        if self.node and (why := _why_no_node()):
            return why
        owner = self.of or self.name
        if not (self.folder / _DONE).exists():
            return f"not set up: {command_line(f'bench --setup {owner}')}"
        if (self.folder / _DONE).read_text() != json.dumps(pinned()[owner]):
            return f"set up with other versions: {command_line(f'bench --setup {owner}')}"
        return ""


RAW = Peer("raw", "threads, a Redis list, HTTP over a socket; no database, nothing kept", ours=True)
PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("celery", "Celery, threads pool, Redis; nothing committed"),
        Peer("rq", "RQ, SimpleWorker in a pool, Redis"),
        Peer("dramatiq", "Dramatiq, 2 processes, Redis"),
        Peer("huey", "Huey, threads, Redis"),
        Peer("taskiq", "Taskiq, asyncio, Redis list"),
        Peer("procrastinate", "Procrastinate, asyncio, PostgreSQL", needs_postgresql=True, prepares=True),
        Peer("bullmq", "BullMQ, Node.js, Redis", node=True),
    )
}
WORKFLOW_PEERS: Mapping[str, Peer] = {
    peer.of: peer
    for peer in (
        Peer("celery_canvas", "Celery's chain and chord, threads pool, results in Redis", of="celery"),
        Peer(
            "procrastinate_chains",
            "tasks of Procrastinate that defer the next one, PostgreSQL",
            needs_postgresql=True,
            prepares=True,
            of="procrastinate",
        ),
    )
}
"""Only used by `bench workflows`, by the peer whose environment they use."""
STARLETTE = Peer("starlette", "a bare endpoint that pushes to a Redis list")
"""Only used by `bench submit`."""
_DONE = "set-up.json"


def pinned() -> dict[str, list[str]]:
    """Return the packages of each peer: ``name==version``, or for npm ``name@version``."""
    found = tomllib.loads(VERSIONS.read_text())
    return {name: list(packages) for name, packages in found.items()}


def available_peers() -> dict[str, Peer]:
    """Return all peers that can be set up, by name."""
    return {**PEERS, STARLETTE.name: STARLETTE}


def set_up(peer: Peer) -> str:
    """Create a peer's environment; return why it failed, in one line, or empty."""
    if peer.node and (why := _why_no_node()):
        return why
    packages = pinned()[peer.name]
    shutil.rmtree(peer.folder, ignore_errors=True)
    peer.folder.mkdir(parents=True)
    if peer.node:
        steps = [["npm", "install", "--no-audit", "--no-fund", "--prefix", str(peer.folder), *packages]]
    else:
        steps = [
            [sys.executable, "-m", "venv", str(peer.folder)],
            [str(peer.python), "-m", "pip", "install", "--quiet", *packages],
        ]
    for step in steps:
        if why := _run(step):
            return why
    (peer.folder / _DONE).write_text(json.dumps(packages))
    return ""


def _run(command: Sequence[str]) -> str:
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_SETUP_SECONDS, cwd="/",
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{Path(command[0]).name}: {error}"
    lines = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"]
    wrong = next((line for line in lines if "error" in line.lower()), lines[-1])
    return f"{Path(command[0]).name}: {wrong[:300]}" if ended.returncode else ""


def _why_no_node() -> str:
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "needs Node.js (node and npm), which this machine does not have"
    output = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout
    major = output.strip().lstrip("v").partition(".")[0]
    if not major.isdigit() or int(major) < NODE_MIN:
        return f"needs Node.js {NODE_MIN} or newer, not {output.strip() or 'this one'}"
    return ""
