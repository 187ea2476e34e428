from __future__ import annotations

from dispatcher_project.cli.pausing import PauseCommand


class Command(PauseCommand):
    help = "Start no job of a model, a tenant or the whole system until `resume`. Running jobs continue."
    pauses = True
