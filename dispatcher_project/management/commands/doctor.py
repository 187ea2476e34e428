from __future__ import annotations

from collections import Counter
from typing import Any

from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.doctor.finding import Finding, Level
from dispatcher_project.cli.screen import indented, line
from foundation.texts import counted

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
            self.print_json(
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
            counts = Counter(one.level for one in found)
            errors, warnings = counts[Level.ERROR], counts[Level.WARNING]
            self.print("", f"{counted(errors, 'error')}, {counted(warnings, 'warning')}")
        return int(worst)

    def _show(self, finding: Finding) -> None:
        lines = [line(f"{finding.check}: {finding.what}", wraps=True)]
        if finding.means:
            lines.append(line(finding.means, wraps=True))
        if finding.todo:
            lines.append(line((f"→ {finding.todo}", "bold"), wraps=True))
        self.show(indented(_MARKS[finding.level], lines, columns=7))
