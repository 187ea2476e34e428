"""`python3 manage.py up`: runs the whole dispatcher on this machine until Ctrl-C."""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from admin_ui import ADMIN_PATH, FLOWER_PREFIX
from foundation.program import ROOT, command_line, page, usage_name

from . import guard
from .children import DEMO_FLEET, DEMO_SLOTS, Local, Ports, plan_of_up, settings_environment, url
from .data_folder import (
    ADMIN_IS_ANOTHERS,
    NEW_WEBHOOK_SECRETS,
    AlreadyRunning,
    DataFolder,
    default_folder,
    folder_argument,
    to_name,
)
from .loop import StartFailed, Supervisor
from .output import Terminal
from .signs import LOOPBACK, listen_near, port_is_free

_FLOWER_PORT = 5555
_DEMO_PORT = 9001
_LAST_PORT = 65535
_ADMIN = "admin"
_DEMO_RUN = """workflow run film '{"prompt": "a fox in the snow"}'"""
DEMO_MODELS = "gpu_host.local.demo_models"


class CannotStart(Exception):
    """`up` cannot start; the message has the reason and the remedy."""


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 after a stop request, 1 if it could not start, 2 for bad arguments."""
    options = parser().parse_args(arguments)
    terminal = Terminal(verbose=options.verbose)
    folder = DataFolder(options.data_dir)
    options.named_dir = to_name(folder)  # before the current directory changes
    keep_python_path()
    os.chdir(ROOT)  # the children's modules are found from here
    try:
        _create(folder)
        with folder.locked():
            _run(folder, options, terminal)
    except (AlreadyRunning, CannotStart, StartFailed, OSError, RuntimeError) as error:
        terminal.plain(f"up: {error}")
        return 1
    return 0


def _create(folder: DataFolder) -> None:
    try:
        folder.create()
    except OSError as error:
        reason = (
            "there is a file of this name" if isinstance(error, FileExistsError) else error.strerror or error
        )
        raise CannotStart(
            f"cannot use {folder.path} as data folder: {reason}; choose another with --data-dir"
        ) from None


def keep_python_path() -> None:
    """Make PYTHONPATH's entries absolute: the children's current directory is another one."""
    if entries := os.environ.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, entries.split(os.pathsep)))


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog=usage_name("up"),
        description="Run the whole dispatcher on this machine: Valkey, database, web, workers, beat, Flower, "
        "demo fleet. REDIS_URL, BROKER_URL and DATABASE_URL replace the embedded parts.",
    )
    arguments.add_argument("--host", default="127.0.0.1", help="address of the web (default %(default)s)")
    arguments.add_argument("--port", type=_port, default=8000, help="port of the web (default %(default)s)")
    arguments.add_argument(
        "--data-dir",
        type=folder_argument,
        default=default_folder(),
        help="folder of database, logs and secrets (default %(default)s)",
    )
    arguments.add_argument("--no-demo", action="store_true", help="do not start the simulated GPU servers")
    arguments.add_argument(
        "--local",
        nargs="?",
        const=DEMO_MODELS,
        metavar="MODELS",
        help="also start a pinned worker with these models "
        f"({page('docs/reference/model_code.md')}; default %(const)s)",
    )
    arguments.add_argument("--gpu", default="none", help="the GPU of --local (default %(default)s: the CPU)")
    arguments.add_argument("--verbose", action="store_true", help="show every log line, not only warnings")
    return arguments


def _run(folder: DataFolder, options: argparse.Namespace, terminal: Terminal) -> None:
    begun = time.monotonic()
    guard.kill_marked(folder.marker_prefix)  # left over from a run whose guard was killed too
    only_while_running = ("up.json", "up.env", "environment.json", DEMO_FLEET)
    for name in only_while_running:
        folder.remove(name)
    ports = _ports(options)
    known = folder.read("secrets.json")
    password = known.setdefault("admin_password", secrets.token_urlsafe(12))
    metrics_token = known.setdefault("metrics_token", secrets.token_urlsafe(24))
    node_token = known.setdefault("node_token", secrets.token_urlsafe(24))
    folder.write("secrets.json", known)
    shared = settings_environment(folder, host=options.host, port=ports.web, given=os.environ)
    shared["DISPATCHER_METRICS_TOKEN"] = os.environ.get("DISPATCHER_METRICS_TOKEN") or metrics_token
    environment = {
        "DISPATCHER_LOG_STYLE": "console",
        "MALLOC_ARENA_MAX": "2",  # glibc gives every thread its own heap otherwise: 100 MB over all
        **os.environ,
        **shared,
        "DISPATCHER_NO_BOOTSTRAP": "1",
        "PYTHONUNBUFFERED": "1",
    }
    environment.pop("DISPATCHER_HEALTH_PORT", None)  # one port, and several workers; `up` watches them itself
    marker = f"{folder.marker_prefix}{secrets.token_hex(8)}"
    environment[guard.MARKER_VARIABLE] = marker
    plan = plan_of_up(
        folder,
        host=options.host,
        ports=ports,
        environment=environment,
        password=password,
        node_token=node_token,
        local=Local(options.gpu, options.local) if options.local else None,
    )
    is_first = True

    def report(pids: dict[str, int]) -> None:
        nonlocal is_first
        facts = _facts(folder, host=options.host, ports=ports, environment=shared) | {"pids": pids}
        folder.write("environment.json", shared)
        folder.write_text("up.env", _shell_variables(facts, options.named_dir))
        folder.write("up.json", facts)
        if is_first:
            is_first = False
            terminal.plain(
                _welcome(
                    facts,
                    folder=folder,
                    password=password,
                    seconds=time.monotonic() - begun,
                    callbacks=shared["DISPATCHER_CALLBACK_NETWORKS"],
                    named_dir=options.named_dir,
                )
            )
            terminal.plain(_first_step(facts, options.named_dir, demo=not options.no_demo))
            _show_webhook_secrets(folder, terminal)

    supervisor = Supervisor(
        plan,
        folder=folder.sockets,
        log_folder=folder.path / "log",
        marker=marker,
        terminal=terminal,
        on_pids=report,
        temporary_files=[folder.path / name for name in only_while_running],
    )
    with ports.flower:
        supervisor.run()


def _facts(folder: DataFolder, *, host: str, ports: Ports, environment: dict[str, str]) -> dict[str, object]:
    known = folder.read("secrets.json")
    return {
        "url": url(host, ports.web),
        "api_key": known["api_key"],
        "tenant_key": known["tenant_key"],
        "admin_user": _ADMIN,
        "admin_password": None if known.get(ADMIN_IS_ANOTHERS) else known["admin_password"],
        "flower_url": f"{url(LOOPBACK, ports.flower_port)}/{FLOWER_PREFIX}",
        "redis_url": environment["REDIS_URL"],
        "database_url": environment["DATABASE_URL"],
    }


def _shell_variables(facts: Mapping[str, object], named_dir: Path | None) -> str:
    """The variables of the examples in docs/, and those of `python3 -m dispatcher_client`, as a shell sets
    them. named_dir: the data folder, where commands would look into another one."""
    folder = {} if named_dir is None else {"DISPATCHER_DATA_DIR": str(named_dir)}
    variables = {
        "API": f"{facts['url']}/api/v1",
        "KEY": facts["tenant_key"],
        "OPERATOR_KEY": facts["api_key"],
        "DISPATCHER_URL": facts["url"],
        "DISPATCHER_API_KEY": facts["tenant_key"],
        **folder,
    }
    return "\n".join(f"export {name}={shlex.quote(str(value))}" for name, value in variables.items())


def _ports(options: argparse.Namespace) -> Ports:
    """Raises CannotStart if the web port is taken; the others move to free ones."""
    try:
        free = port_is_free(options.host, options.port)
    except OSError as error:
        raise CannotStart(f"cannot listen on {options.host}: {error.strerror or error}") from None
    if not free:
        raise CannotStart(
            f"port {options.port} is taken: stop what listens there, or choose another with --port"
        )
    # the demo fleet listens before the web does
    in_its_way = options.port in range(_DEMO_PORT, _DEMO_PORT + len(DEMO_SLOTS))
    demo = options.port + 1 if in_its_way else _DEMO_PORT
    flower = listen_near(_FLOWER_PORT, but_not=options.port)
    return Ports(options.port, flower, None if options.no_demo else demo)


def _welcome(
    facts: Mapping[str, object],
    *,
    folder: DataFolder,
    password: str,
    seconds: float,
    callbacks: str,
    named_dir: Path | None = None,
) -> str:
    """password: the admin's, unless the database had one before. callbacks: networks that they may reach.
    named_dir: for `command_line`."""
    address = facts["url"]
    reached = f" and {callbacks.replace(',', ', ')}" if callbacks else ""
    change = command_line(f"changepassword {_ADMIN}", named_dir)
    login = (
        f"{_ADMIN}, who exists already, with the password of then;\n           a new one: {change}"
        if facts["admin_password"] is None
        else f"{facts['admin_user']} / {password}"
    )
    return f"""
Ready after {seconds:.0f} s.

  API      {address}/api/v1        docs {address}/api/v1/docs
  Admin    {address}/{ADMIN_PATH}/        {login}
  Flower   {address}/{FLOWER_PREFIX}/        same login
  Keys     operator {facts["api_key"]}
           tenant   {facts["tenant_key"]}
  Ports    {_ports_in_use(facts, folder)}
  Files    {folder.path}    (up.json, log/)
  Shell    . {shlex.quote(str(folder.path / "up.env"))}    sets API, KEY and OPERATOR_KEY

Callbacks reach public addresses{reached} (DISPATCHER_CALLBACK_NETWORKS).
Ctrl-C stops everything."""


def _ports_in_use(facts: Mapping[str, object], folder: DataFolder) -> str:
    """What listens where, on loopback but for the web."""
    used = [f"web {urlsplit(str(facts['url'])).port}", f"Flower {urlsplit(str(facts['flower_url'])).port}"]
    fleet = folder.read(DEMO_FLEET).get("servers", [])
    if demo := sorted(urlsplit(server["endpoint"]).port or 0 for server in fleet):
        used.append(f"demo servers {', '.join(map(str, demo))}")
    return "; ".join(used)


def _first_step(facts: Mapping[str, object], named_dir: Path | None = None, *, demo: bool) -> str:
    if not demo:
        return f"\n`{command_line('register http://HOST:PORT', named_dir)}` registers a GPU server.\n"
    return f"""
Try:

  curl -sS {facts["url"]}/api/v1/queue/submit -H 'Authorization: Bearer {facts["tenant_key"]}' \\
    -H 'Content-Type: application/json' -H 'Prefer: wait=30' \\
    -d '{{"model": "zimg", "payload": {{"prompt": "a sunset"}}}}'

or a workflow of four models and a person:

  {command_line(_DEMO_RUN, named_dir)}
"""


def _show_webhook_secrets(folder: DataFolder, terminal: Terminal) -> None:
    """Show the webhook secrets of tenants created at this start; they are not kept in plain text."""
    known = folder.read("secrets.json")
    made: Mapping[str, str] = known.pop(NEW_WEBHOOK_SECRETS, {})
    if made:
        folder.write("secrets.json", known)
        lines = [f"  {tenant:<8} {secret}" for tenant, secret in sorted(made.items(), reverse=True)]
        terminal.plain("\n".join(["Callbacks are signed with these, shown only now:", "", *lines, ""]))


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _LAST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, 1 to 65535")
    return int(text)
