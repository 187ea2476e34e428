from __future__ import annotations

from dispatcher_project.cli.switching import SwitchCommand
from gpus.protocol import DesiredState


class Command(SwitchCommand):
    help = (
        "Stop the running jobs of servers and give them no new ones. The stopped jobs go back to the queue "
        "and keep their tries. `on` ends it."
    )
    desired = DesiredState.OFF
