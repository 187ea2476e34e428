from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandParser

from admin_ui.dashboard.labels import measured
from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.screen import line, table
from dispatcher_project.cli.switching import named_servers
from foundation.program import command_line
from foundation.texts import counted
from gpus.api.servers import servers_json
from gpus.health.pinned_servers import read_heartbeats, recent_telemetry
from gpus.models import Server
from gpus.protocol import CircuitState, DesiredState
from gpus.registry.index_sync import read_paused
from jobs import ports

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from gpus.api import answers


class Command(TerminalCommand):
    help = (
        "List servers: desired and actual state, slots, health, models and faults; with names also "
        "the last telemetry. `drain`, `off` and `on` switch them."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument(
            "names", nargs="*", metavar="NAME", help='name or pattern, such as "flux-*" (default: all)'
        )
        parser.add_argument("--machine", help="filter")
        parser.add_argument("--pool", help="filter")
        parser.add_argument("--model", help="filter: the server has this model")
        parser.add_argument("--desired", choices=[state.value for state in DesiredState], help="filter")
        parser.add_argument("--problems", action="store_true", help="only servers with a problem")

    def act(self, options: dict[str, Any]) -> int | None:
        rows = Server.objects.select_related("pool").prefetch_related("placements__model").order_by("name")
        if options["names"]:
            rows = rows.filter(name__in=named_servers(options["names"], machine=None, everything=False))
        filters = {
            "machine": options["machine"],
            "pool": options["pool"],
            "placements__model": options["model"],
            "desired": options["desired"],
        }
        rows = rows.filter(**{name: value for name, value in filters.items() if value is not None})
        is_paused = read_paused().system
        servers = list(rows)
        found: list[dict[str, Any]] = [
            {**one, "problems": problems_of(one)}
            for one in servers_json(servers, ports.production_ports().leases)
        ]
        if options["names"]:
            last = last_telemetry(servers)
            found = [{**one, "telemetry": last.get(one["server"])} for one in found]
        shown = [one for one in found if one["problems"] or not options["problems"]]
        if self.as_json:
            self.print_json({"results": shown, "system_paused": is_paused})
            return None
        if is_paused:
            self.show(line(("the system is paused: no job starts", "yellow")))
        if shown:
            self.show(server_table(shown))
            for one in shown if options["names"] else ():
                if one["host"] or len(shown) == 1:
                    self.print(f"{one['server']}: {telemetry_text(one)}")
        elif found:
            self.print(f"no problem with {counted(len(found), 'server')}")
        elif Server.objects.exists():
            self.print("no server matches")
        else:
            self.print(f"no server is registered: `{command_line('register')} URL` registers one")
        return None


def problems_of(server: answers.Server) -> list[str]:
    """What keeps a server, or some of its slots, from taking jobs although it should; the worst first."""
    seen, found = server["observed"], []
    if server["healthy"] is False:
        found.append(f"fails its health check: {server['last_error'] or 'no answer'}")
    elif server["healthy"] is None:
        found.append("not checked yet")
    if seen["state"] == "unknown":
        found.append("Redis does not answer")
    if seen["circuit"] != CircuitState.CLOSED:
        found.append(f"failed repeatedly: its circuit is {seen['circuit'].replace('_', ' ')}")
    if held := seen["slots"].get("quarantined", 0):
        found.append(f"{counted(held, 'slot')} in quarantine")
    if seen["resting"] and seen["circuit"] == CircuitState.CLOSED:
        found.append(f"answered that it is busy: {counted(seen['resting'], 'slot')}")
    if not server["models"]:
        found.append("has no model")
    elif not server["slots"]:
        found.append("has no slots")
    if paused := [one["model"] for one in server["models"] if one["paused"]]:
        found.append(f"paused: {', '.join(paused)}")
    if server["desired"] != DesiredState.ON and seen["running"]:
        found.append(f"{counted(seen['running'], 'job')} still running")
    return found


def last_telemetry(servers: Sequence[Server]) -> dict[str, dict[str, Any]]:
    """The last reading of each pinned server that has sent one in the last 15 s, with its `age_seconds`."""
    pinned = [server for server in servers if server.host]
    beats, _ = read_heartbeats(pinned, ports.production_ports().leases)
    readings = {name: (beat, recent_telemetry(beat)) for name, beat in beats.items()}
    return {
        name: {"age_seconds": round(beat.age_seconds, 1), **reading}
        for name, (beat, reading) in readings.items()
        if reading is not None
    }


def telemetry_text(server: dict[str, Any]) -> str:
    """The last reading in one line, or why there is none."""
    reading = server["telemetry"]
    if reading is None and not server["host"]:
        return "no telemetry: only a worker on the GPU host measures its card"
    if reading is None:
        return "no telemetry in the last 15 s: its worker does not run, or Redis does not answer"
    values = ", ".join(f"{name} {value}" for name, value in measured(reading))
    return f"{values} ({reading['age_seconds']:.0f} s ago)"


def server_table(servers: Sequence[dict[str, Any]]) -> Table:
    heads = ("server", "machine", "set to", "is", "busy", "free", "health", "models", "")
    return table(heads, [_cells(one) for one in servers], right=["busy", "free"], gives_way=("models", ""))


def _cells(server: dict[str, Any]) -> tuple[str | Text, ...]:
    seen, desired = server["observed"], server["desired"]
    is_known = seen["state"] != "unknown"
    free = seen["slots"].get("free", 0) - seen["resting"]
    return (
        server["server"],
        server["machine"] or "–",
        line((desired, "" if desired == DesiredState.ON else "yellow")),
        line((seen["state"], "" if seen["state"] == desired else "yellow")),
        f"{seen['running']} of {server['slots']}" if is_known else "?",
        str(free) if is_known else "?",
        _health(server),
        ", ".join(one["model"] for one in server["models"]),
        line(("; ".join(server["problems"]), "red" if server["healthy"] is False else "yellow")),
    )


def _health(server: dict[str, Any]) -> Text:
    if server["healthy"] is None:
        return line(("unknown", "dim"))
    if server["healthy"] is False:
        return line(("sick", "red"))
    return line(("ok", "green")) if server["tells_health"] is not False else line(("no /health", "dim"))
