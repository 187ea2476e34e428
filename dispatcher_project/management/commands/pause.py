from __future__ import annotations

from dispatcher_project.cli.pausing import PauseCommand


class Command(PauseCommand):
    help = "Starts nothing new of the system, a model or a tenant, until `resume`; what runs goes on."
    pauses = True
