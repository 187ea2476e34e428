from __future__ import annotations

from dispatcher_project.cli.switching import SwitchCommand
from gpus.protocol import DesiredState


class Command(SwitchCommand):
    help = "Let servers finish their running jobs and give them no new ones. `on` ends it."
    desired = DesiredState.DRAINING
