from __future__ import annotations

from dispatcher_project.cli.pausing import PauseCommand


class Command(PauseCommand):
    help = "End the pause of a model, a tenant or the whole system."
    pauses = False
