from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.screen import age, line, table
from foundation.program import command_line
from foundation.texts import counted
from jobs.api.stats import worker_json
from jobs.reports.fleet import WorkerRow, workers

if TYPE_CHECKING:
    from rich.text import Text


class Command(TerminalCommand):
    help = "List the dispatcher's processes: state, last heartbeat, queues, running jobs."

    def act(self, options: dict[str, Any]) -> int | None:
        rows = workers()
        if self.as_json:
            self.print_json([worker_json(row) for row in rows])
            return None
        if rows:
            heads = ("kind", "name", "state", "heartbeat", "layout", "queues", "")
            self.show(table(heads, [_cells(row) for row in rows], right=["layout"], gives_way=("queues", "")))
        else:
            self.print(f"no process is running: `{command_line('up')}` starts all of them")
        return None


def _cells(row: WorkerRow) -> tuple[str | Text, ...]:
    return (
        row.kind,
        row.name,
        line(("alive", "green") if row.is_live else ("SILENT", "red")),
        f"{age(row.beat_seconds)} ago",
        str(row.layout),
        " ".join(row.queues),
        f"{row.running} running on {counted(len(row.servers), 'server')}" if row.kind == "gpu" else "",
    )
