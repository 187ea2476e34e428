from __future__ import annotations

from dispatcher_project.cli.switching import SwitchCommand
from gpus.protocol import DesiredState


class Command(SwitchCommand):
    help = "Stops what runs on servers, puts it back into the line at no cost, and gives them nothing new."
    desired = DesiredState.OFF
