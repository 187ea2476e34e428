from __future__ import annotations

from typing import Any

from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.paint import age
from foundation.texts import counted
from jobs.api.workers import worker_json
from jobs.reports.workers import workers


class Command(TerminalCommand):
    help = "The dispatcher's processes: which live, what they drive, when they last said so."

    def act(self, options: dict[str, Any]) -> int | None:
        rows = workers()
        if self.as_json:
            self.tell([worker_json(row) for row in rows])
            return None
        for row in rows:
            state = "lives" if row.is_live else "SILENT"
            what = (
                f"{row.running} running on {counted(len(row.servers), 'server')}" if row.kind == "gpu" else ""
            )
            self.say(
                f"{row.kind:<9} {row.name:<40} {state:<6} {age(row.beat_seconds):>6} ago  layout {row.layout}"
                f"  {' '.join(row.queues)}  {what}".rstrip()
            )
        if not rows:
            self.say("no process said that it lives")
        return None
