"""How this program was started, for texts with commands to type.

A checkout has manage.py; an installed wheel has `gpu-dispatcher` (dispatcher_project/cli/commands.py)."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The folder that holds the packages: a checkout, or site-packages."""
IN_CHECKOUT = (ROOT / "manage.py").is_file() and (ROOT / "constraints.txt").is_file()
OWN_COMMAND = (sys.executable, *(("manage.py",) if IN_CHECKOUT else ("-m", "dispatcher_project.cli")))
"""Command line prefix that starts a command of manage.py, with `ROOT` as current directory."""
INSTALLED_AS = "gpu-dispatcher"
SHORT_NAMES = {"gpu_worker": "worker", "gpu_node": "node", "check_url": "check"}
"""manage.py's name of a command: its name under `gpu-dispatcher`, where that differs in more than hyphens.
`check` of manage.py is Django's."""


def command_line(command: str, data_dir: Path | None = None) -> str:
    """Return the command as a person types it here.

    Args:
        command: as after manage.py, such as ``create_key --tenant NAME``.
        data_dir: of the `up` that it is for; None: that of this command's own ``--data-dir``, if it has one.

    Returns:
        ``python3 manage.py create_key --tenant NAME`` or ``gpu-dispatcher create-key --tenant NAME``, with
        ``--data-dir DIR`` where that is not the default."""
    folder = named_data_dir(sys.argv[1:]) if data_dir is None else data_dir
    if folder is not None and "--data-dir" not in command:
        command = f"{command} --data-dir {shlex.quote(str(folder))}"
    if program_name() != INSTALLED_AS:
        return f"python3 manage.py {command}"
    name, space, rest = command.partition(" ")
    return f"{INSTALLED_AS} {shown_name(name)}{space}{rest}"


def named_data_dir(arguments: Sequence[str]) -> Path | None:
    """Return the value of the last ``--data-dir`` among the arguments of a command."""
    found = None
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--data-dir":
            found = Path(value if equals else "".join(arguments[place + 1 : place + 2]))
    return found


def usage_name(command: str) -> str:
    """Return ``manage.py NAME`` or ``gpu-dispatcher NAME``, the name of a command in `--help`."""
    program = program_name()
    return f"{program} {shown_name(command) if program == INSTALLED_AS else command}"


def shown_name(command: str) -> str:
    """Return a command's name under `gpu-dispatcher`: ``create-key`` for ``create_key``."""
    return SHORT_NAMES.get(command, command.replace("_", "-"))


def page(path: str) -> str:
    """Return how to name a page of docs/ here: an installed wheel has none, the source distribution has."""
    return path if IN_CHECKOUT else f"{path} of the source distribution"


def program_name() -> str:
    """Return ``manage.py`` or ``gpu-dispatcher``, for errors and usage lines."""
    return "manage.py" if IN_CHECKOUT and Path(sys.argv[0]).name != INSTALLED_AS else INSTALLED_AS
