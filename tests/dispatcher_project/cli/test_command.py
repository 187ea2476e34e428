"""What every command has in common."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.core.management import CommandError, call_command, get_commands, load_command_class

from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.commands import GROUPS
from tests.support.terminal import Screen


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


def test_an_error_is_one_plain_line_where_colours_are_unwanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    command = Quiet(stderr=Screen(), force_color=True)
    with pytest.raises(SystemExit) as end:
        command.run_from_argv(["manage.py", "quiet"])
    assert end.value.code == 2
    assert command.stderr.getvalue() == "error: no\n"


WITHOUT_JSON = {
    *("createsuperuser", "changepassword", "migrate"),  # Django's
    *("backup", "restore"),  # their answer is the file, or the installation in its place
}
OPERATING = [
    entry.name
    for group in ("Jobs", "Fleet", "Access", "Upkeep")
    for entry in GROUPS[group]
    if entry.name not in WITHOUT_JSON
]


@pytest.mark.parametrize("name", OPERATING)
def test_every_command_of_operators_can_print_json(name: str) -> None:
    parser = load_command_class(get_commands()[name], name).create_parser("manage.py", name)
    assert "--json" in parser.format_help()


def test_no_command_is_listed_twice() -> None:
    listed = [entry.name for group in GROUPS.values() for entry in group]
    assert sorted(listed) == sorted(set(listed))


def test_help_lists_the_options_of_the_command_and_not_djangos() -> None:
    usage = Quiet().create_parser("manage.py", "quiet").format_help()
    assert "--json" in usage
    assert "--no-color" in usage
    assert "--pythonpath" not in usage
