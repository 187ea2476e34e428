from __future__ import annotations

from dispatcher_project.cli.switching import SwitchCommand
from gpus.protocol import DesiredState


class Command(SwitchCommand):
    help = "Gives servers work again, after `drain` or `off`."
    desired = DesiredState.ON
    waits = False
