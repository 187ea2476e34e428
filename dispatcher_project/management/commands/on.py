from __future__ import annotations

from dispatcher_project.cli.switching import SwitchCommand
from gpus.protocol import DesiredState


class Command(SwitchCommand):
    help = "Give servers jobs again, after `drain` or `off`."
    desired = DesiredState.ON
    waits = False
