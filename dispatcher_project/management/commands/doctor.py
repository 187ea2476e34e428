from __future__ import annotations

from collections import Counter
from typing import Any

from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.doctor.finding import Finding, Level
from dispatcher_project.cli.screen import indented, line
from foundation.texts import counted

_MARKS = {Level.OK: ("ok", "green"), Level.WARNING: ("warning", "yellow"), Level.ERROR: ("ERROR", "red")}


class Command(TerminalCommand):
    help = "Check every part and say what to do. Exit status: 0 all well, 1 warnings, 2 errors."

    def act(self, options: dict[str, Any]) -> int | None:
        # `--help` does not load the code of every part
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
                        {"level": one.level.name.lower(), "check": one.check, "what": one.summary,
                         "means": one.consequence, "do": one.advice}
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
        lines = [line(f"{finding.check}: {finding.summary}", wraps=True)]
        if finding.consequence:
            lines.append(line(finding.consequence, wraps=True))
        if finding.advice:
            lines.append(line((f"→ {finding.advice}", "bold"), wraps=True))
        self.show(indented(_MARKS[finding.level], lines, columns=7))
