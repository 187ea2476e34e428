"""The processes of `up`: their commands, environments and readiness checks, and the order of starts and
stops."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from admin_ui import FLOWER_PREFIX
from dispatcher_project.supervisor.embedded import answers_ping, require_valkey, valkey_command
from foundation.program import OWN_COMMAND
from gpu_host.node.config import TOKEN_VARIABLE

from .child import ChildSpec, Plan
from .data_folder import DataFolder
from .signs import LOOPBACK, http_says_ok, port_is_open

SETTINGS = "dispatcher_project.settings.up"
DEMO_SLOTS = {"zimg": 4, "flux": 2, "trellis": 2, "ltx2": 2}
"""The models of the demo fleet, and their slots."""
LOCAL = "local"
DEMO_FLEET = "demo.json"
"""File in the data folder with the servers of the demo fleet, which `seed_up` registers."""
_LOOPBACK_NETWORKS = "127.0.0.0/8,::1/128"
_BEAT_SILENT_SECONDS = 20.0
"""Beat ticks every second or two; without a tick for this time it is stuck."""
_GRACE_SECONDS = 60.0
"""Default of DISPATCHER_DEPLOY_GRACE_SECONDS."""
_LAST_SECONDS = 15.0
"""Time from the end of a GPU worker's grace period to SIGKILL; the worker exits by itself before
(celery_transport/ordered_stop.py)."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports of the services. flower: a listening socket, which Flower inherits. demo: first port of the demo
    fleet, if it is free; None: no demo."""

    web: int
    flower: socket.socket
    demo: int | None = None

    @property
    def flower_port(self) -> int:
        return int(self.flower.getsockname()[1])


def reachable(host: str) -> str:
    """Return the address under which this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


def url(host: str, port: int) -> str:
    """Return the http URL of a local server; brackets for IPv6."""
    host = reachable(host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def settings_environment(
    folder: DataFolder, *, host: str, port: int, given: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment variables with which any process reaches this dispatcher's services.

    given: REDIS_URL, BROKER_URL and DATABASE_URL in it replace the embedded services.
    """
    # kombu's notation: the celery command reads BROKER_URL itself, not through our settings
    embedded_broker = f"redis+socket://{quote(str(valkey_socket(folder)))}?virtual_host=0"
    return {
        "DJANGO_SETTINGS_MODULE": SETTINGS,
        "DISPATCHER_DATA_DIR": str(folder.path),
        "REDIS_URL": given.get("REDIS_URL") or embedded_redis_url(folder),
        "BROKER_URL": given.get("BROKER_URL") or given.get("REDIS_URL") or embedded_broker,
        "DATABASE_URL": given.get("DATABASE_URL") or f"sqlite:///{quote(str(folder.path / 'db.sqlite3'))}",
        "DISPATCHER_PUBLIC_URL": given.get("DISPATCHER_PUBLIC_URL") or url(host, port),
        "DISPATCHER_CALLBACK_NETWORKS": given.get("DISPATCHER_CALLBACK_NETWORKS", _LOOPBACK_NETWORKS),
        **{name: given.get(name, "") for name in ("DISPATCHER_ARTIFACT_STORE", "DISPATCHER_ARTIFACT_URL")},
    }


def embedded_redis_url(folder: DataFolder) -> str:
    """Return redis-py's URL of the embedded Valkey."""
    return f"unix://{quote(str(valkey_socket(folder)))}?db=0"


def valkey_socket(folder: DataFolder) -> Path:
    return folder.sockets / "valkey.sock"


@dataclass(frozen=True, slots=True)
class Local:
    """A pinned worker on this machine. gpu, models: as for `manage.py gpu_worker`."""

    gpu: str
    models: str


def plan_of_up(
    folder: DataFolder,
    *,
    host: str,
    ports: Ports,
    environment: Mapping[str, str],
    password: str,
    node_token: str,
    local: Local | None = None,
) -> Plan:
    """Return the plan of `up`.

    environment: of every child. password: Flower's, for the user admin. node_token: token of the demo's GPU
    servers. local: a pinned worker on this machine. Raises RuntimeError without a Valkey.
    """
    python = sys.executable
    grace = float(environment.get("DISPATCHER_DEPLOY_GRACE_SECONDS") or _GRACE_SECONDS)

    def child(name: str, *command: str, **options: object) -> ChildSpec:
        return ChildSpec(name, command, environment, **options)  # type: ignore[arg-type]

    listens = (environment.get("DISPATCHER_CALLBACK_REFUSED_ORIGINS"), ports.web, ports.flower_port)
    environment = {
        **environment,
        "DISPATCHER_CALLBACK_REFUSED_ORIGINS": ",".join(str(one) for one in listens if one),
    }
    # not on the command line, which every user of the machine can read
    with_flower = {
        **environment,
        "FLOWER_BASIC_AUTH": f"admin:{password}",
        "DISPATCHER_FLOWER_URL": url(LOOPBACK, ports.flower_port),
    }
    embedded = environment["REDIS_URL"] == embedded_redis_url(folder)
    valkey = (_valkey(folder, environment),) if embedded else ()
    with_token = {**environment, TOKEN_VARIABLE: node_token}
    prepare = ChildSpec("prepare", (*OWN_COMMAND, "seed_up"), with_token, step=True, ready_seconds=300.0)
    services = [
        child(
            "gpu_worker", *OWN_COMMAND, "gpu_worker", stop_seconds=grace + _LAST_SECONDS, overlaps=True,
        ),
        child("sweeps", *OWN_COMMAND, "queue_worker", "--queues", "sweeps", stop_seconds=40.0, overlaps=True),
        child(
            "callbacks", *OWN_COMMAND, "queue_worker", "--queues", "callbacks,workflows",
            "--concurrency", "8", stop_seconds=40.0, overlaps=True,
        ),
        child(
            "beat", python, "-m", "dispatcher_project.celery_transport.beat",
            silent_after_seconds=_BEAT_SILENT_SECONDS,
        ),
        ChildSpec(
            "web",
            (python, "-m", "dispatcher_project.web", "--host", host, "--port", str(ports.web)),
            with_flower,
        ),
        ChildSpec(
            "flower",
            (
                python, "-m", "dispatcher_project.celery_transport.flower_server", str(ports.flower.fileno()),
            ),
            with_flower,
            ready=lambda: http_says_ok(LOOPBACK, ports.flower_port, f"/{FLOWER_PREFIX}/healthcheck"),
            inherits=(ports.flower.fileno(),),
        ),
    ]  # fmt: skip
    if local is not None:
        pinned = ("--gpu", local.gpu, "--models", local.models)
        services.append(child(LOCAL, *OWN_COMMAND, "gpu_worker", *pinned, stop_seconds=grace + _LAST_SECONDS))
    demo: tuple[ChildSpec, ...] = ()
    if ports.demo is not None:
        demo = (_demo(folder, with_token, ports.demo),)
    stop = [
        ("web",),
        ("gpu_worker", LOCAL),
        ("sweeps", "callbacks", "beat", "flower"),
        ("demo",),
        ("valkey",),
    ]
    started = {spec.name for spec in (*services, *demo, *valkey)}
    return Plan(
        start=tuple(stage for stage in ((*valkey, *demo), (prepare,), tuple(services)) if stage),
        stop=tuple(kept for stage in stop if (kept := tuple(name for name in stage if name in started))),
    )


def _valkey(folder: DataFolder, environment: Mapping[str, str]) -> ChildSpec:
    data = folder.path / "valkey"
    data.mkdir(exist_ok=True)
    socket = str(valkey_socket(folder))
    return ChildSpec(
        "valkey",
        valkey_command(require_valkey(), folder=data, unix_socket=socket),
        environment,
        ready=lambda: answers_ping(socket),
        ready_seconds=120.0,  # for a long append-only file to load
    )


def _demo(folder: DataFolder, environment: Mapping[str, str], port: int) -> ChildSpec:
    fleet = folder.path / DEMO_FLEET
    slots = [word for model, count in DEMO_SLOTS.items() for word in (f"--{model}", str(count))]
    return ChildSpec(
        "demo",
        (
            sys.executable,
            "-m",
            "gpu_host.node.demo",
            "--port-base",
            str(port),
            "--move",
            "--ready-file",
            str(fleet),
            *slots,
        ),
        environment,
        ready=lambda: _demo_serves(fleet),
    )


def _demo_serves(fleet: Path) -> bool:
    try:
        servers = json.loads(fleet.read_text())["servers"]
    except FileNotFoundError:
        return False
    return port_is_open(LOOPBACK, urlsplit(servers[0]["endpoint"]).port or 0)
