from __future__ import annotations

from dispatcher_project.cli.switching import SwitchCommand
from gpus.protocol import DesiredState


class Command(SwitchCommand):
    help = "Lets servers finish what they run and gives them nothing new; `on` takes it back."
    desired = DesiredState.DRAINING
