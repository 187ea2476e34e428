"""What every command has in common."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from dispatcher_project.cli.command import TerminalCommand


class Quiet(TerminalCommand):
    level = 0

    def act(self, options: dict[str, Any]) -> int | None:
        self.level = logging.getLogger().level
        raise CommandError("no")


def test_a_command_leaves_the_level_of_its_callers_log() -> None:
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.INFO)
    command = Quiet()
    try:
        with pytest.raises(CommandError):
            call_command(command)
        assert command.level == logging.ERROR
        assert root.level == logging.INFO
    finally:
        root.setLevel(before)
