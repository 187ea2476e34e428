from __future__ import annotations

from typing import Any

from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.doctor.finding import Finding, Level

_MARKS = {Level.OK: ("ok", "green"), Level.WARNING: ("warning", "yellow"), Level.ERROR: ("ERROR", "red")}


class Command(TerminalCommand):
    help = (
        "Looks at every part, says what is wrong and what to do. Exit status: 0 well, 1 warnings, 2 errors."
    )

    def act(self, options: dict[str, Any]) -> int | None:
        # who only asks for help need not wait for the code of every part
        from dispatcher_project.cli.doctor.examine import examine, real_view

        found = []
        for finding in examine(real_view()):
            found.append(finding)
            if not self.as_json:
                self._show(finding)
        worst = max((finding.level for finding in found), default=Level.OK)
        if self.as_json:
            self.tell(
                {
                    "status": worst.name.lower(),
                    "findings": [
                        {"level": one.level.name.lower(), "check": one.check, "what": one.what,
                         "means": one.means, "do": one.todo}
                        for one in found
                    ],
                }
            )  # fmt: skip
        else:
            counts = {level: sum(one.level is level for one in found) for level in Level}
            self.say("", f"{counts[Level.ERROR]} errors, {counts[Level.WARNING]} warnings")
        return int(worst)

    def _show(self, finding: Finding) -> None:
        mark, style = _MARKS[finding.level]
        self.say(f"{self.paint(f'{mark:<7}', style)}  {finding.check}: {finding.what}")
        if finding.means:
            self.say(f"         {finding.means}")
        if finding.todo:
            self.say(self.paint(f"         → {finding.todo}", "bold"))
