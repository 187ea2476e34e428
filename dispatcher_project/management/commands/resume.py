from __future__ import annotations

from dispatcher_project.cli.pausing import PauseCommand


class Command(PauseCommand):
    help = "Ends a pause of the system, a model or a tenant."
    pauses = False
