"""The two entry points: `manage` for manage.py, with every command, and `gpu_dispatcher` for the installed
command, with the product's, in groups.
"""

from __future__ import annotations

import importlib
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dispatcher_project.cli.commands import (
    CHECKOUT_ONLY,
    COMPLETION,
    COMPLETION_SUMMARY,
    ENTRIES,
    GROUPS,
    Entry,
    entry_of,
)
from dispatcher_project.cli.standard_streams import open_closed_streams
from foundation.program import IN_CHECKOUT, INSTALLED_AS, ROOT, program_name

if TYPE_CHECKING:
    from django.core.management.base import BaseCommand

WITHOUT_SECRETS = (
    *("help", "--help", "-h", "version", "--version", "gpu_node", "gpu_check"),
    *("makemigrations", "write_docs"),
)
"""Commands that touch no stored secret: a GPU box needs no key of the dispatcher, nor do the commands that
only write files of the checkout."""

WITHOUT_PAGES = ("gpu_worker", "queue_worker", "gpu_node", "gpu_check")

BASE, PRODUCTION = "dispatcher_project.settings.base", "dispatcher_project.settings.production"
SIMULATION = "dispatcher_project.settings.simulation"

_WITHOUT_DJANGO = {
    "up": "dispatcher_project.supervisor.up",  # the supervisor stays small
    "test": "dispatcher_project.checks",
    "supply": "dispatcher_project.supply.main",
    "prove": "verification.proving.main",
    "prove_upgrade": "verification.proving.upgrade",
    "bench": "benchmarks.suite.main",
    "backup": "dispatcher_project.supervisor.backup",
    "restore": "dispatcher_project.supervisor.restore",
    "check_url": "dispatcher_project.cli.smoke_check",
}
"""Commands that need no Django, with the modules whose `main(arguments)` runs them: some of higher layers."""

_PARTS = ("web", "beat", "flower")
_PACKAGES = (
    *("admin_ui", "artifacts", "benchmarks", "dispatcher_client", "foundation"),
    *("gpu_host", "gpus", "jobs", "verification", "workflows"),
)
"""What this program imports besides `dispatcher_project`."""
WRONG = 2
"""Exit status for a wrong command line."""


def manage(argv: Sequence[str]) -> None:
    """Run a command under manage.py's name for it. argv: as in `sys.argv`."""
    open_closed_streams()
    run([program_name(), *argv[1:]])


def gpu_dispatcher(argv: Sequence[str] | None = None) -> None:
    """The console script of the wheel. argv: as in `sys.argv`; commands also by manage.py's names."""
    open_closed_streams()
    given = list(sys.argv if argv is None else argv)
    word, arguments = (given[1], given[2:]) if len(given) > 1 else ("--help", [])
    if word in ("-h", "--help", "help"):
        if arguments[:1] and (named := entry_of(arguments[0])) is not None:
            word, arguments = named.shown, ["--help"]
        else:
            sys.stdout.write(help_text())
            return
    if word in ("--version", "version"):
        sys.stdout.write(f"{INSTALLED_AS} {version()}\n")
        return
    _require_own_packages()
    if word == COMPLETION:
        from dispatcher_project.cli.completion import main as completion

        sys.exit(completion(arguments))
    entry = entry_of(word)
    if entry is None:
        sys.exit(_refuse(_unknown(word)))
    if entry.name in _PARTS:
        sys.exit(_start_part(entry.name, arguments))
    run([INSTALLED_AS, entry.name, *arguments])


def help_text() -> str:
    """The groups, each command with its summary."""
    own = (Entry(COMPLETION, COMPLETION_SUMMARY),)
    width = max(len(entry.shown) for entry in ENTRIES.values()) + 2
    lines = [
        f"usage: {INSTALLED_AS} COMMAND [options]",
        "",
        "A self-hosted dispatcher for AI inference jobs on GPUs.",
    ]
    for heading, entries in {**GROUPS, "Shell": own}.items():
        lines += ["", f"{heading}:", *(f"  {entry.shown:<{width}}{entry.summary}" for entry in entries)]
    lines += [
        "",
        f"`{INSTALLED_AS} COMMAND --help` shows a command's options, `{INSTALLED_AS} --version` the version.",
        f"`{INSTALLED_AS} up` is the place to begin: it needs no Redis, no database and no GPU.",
    ]
    return "\n".join(lines) + "\n"


def manage_help_text(known: Mapping[str, str]) -> str:
    """manage.py's help: the product's commands in their groups, then the names of Django's.

    known: command: its app, as `get_commands` returns them."""
    width = max(map(len, ENTRIES)) + 2
    lines = ["usage: manage.py COMMAND [options]"]
    for heading, entries in GROUPS.items():
        rows = [f"  {entry.name:<{width}}{entry.summary}" for entry in entries if entry.name in known]
        lines += ["", f"{heading}:", *rows]
    ours = {name for name, app in known.items() if app in ("dispatcher_project", *_PACKAGES)}
    others = known.keys() - ENTRIES.keys() - ours - CHECKOUT_ONLY
    for heading, names in (("Source code", CHECKOUT_ONLY & known.keys()), ("Django's", others)):
        lines += ["", f"{heading}:", *(f"  {row}" for row in textwrap.wrap(" ".join(sorted(names)), 96))]
    return "\n".join([*lines, "", "`manage.py COMMAND --help` shows a command's options."])


def version() -> str:
    """pyproject.toml's, from the checkout or from the installed wheel."""
    if IN_CHECKOUT:
        import tomllib

        return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    from importlib.metadata import version as installed

    return installed(INSTALLED_AS)


def run(argv: list[str]) -> None:
    """Run one command and end the process with its status, or return after status 0.

    argv: the program's name, manage.py's name of the command, its arguments.
    """
    program = argv[0]
    command = argv[1] if len(argv) > 1 else "help"
    asks_for_help = not {"-h", "--help"}.isdisjoint(argv[2:])  # answered without a dispatcher's settings
    if module := _WITHOUT_DJANGO.get(command):
        sys.exit(importlib.import_module(module).main(argv[2:]))
    if command == "simulate":  # never on a real database, with any environment
        os.environ["DJANGO_SETTINGS_MODULE"] = SIMULATION
    else:
        from dispatcher_project.supervisor import data_folder

        try:
            if not asks_for_help:
                data_folder.adopt_running_environment(argv[2:])
        except data_folder.NotRunning as error:
            sys.exit(f"{program}: {error}")
        argv[2:] = data_folder.without_data_dir(argv[2:])  # Django's own commands don't know it
    if command in WITHOUT_PAGES:
        os.environ.setdefault("DISPATCHER_PAGES", "0")
    os.environ["DJANGO_SETTINGS_MODULE"] = settings_for(command, asks_for_help=asks_for_help)
    from django.conf import settings as configured
    from django.core.exceptions import ImproperlyConfigured

    try:
        _ = configured.INSTALLED_APPS  # Django hides a wrong setting behind "Unknown command"
    except ImproperlyConfigured as error:
        sys.exit(f"{program}: {error}")
    _run_django(argv)


def settings_for(command: str, *, asks_for_help: bool) -> str:
    """The settings module that a command runs with."""
    chosen = os.environ.get("DJANGO_SETTINGS_MODULE")
    if not chosen:
        chosen = BASE if command in WITHOUT_SECRETS else PRODUCTION
    return BASE if asks_for_help and chosen == PRODUCTION else chosen


def _run_django(argv: list[str]) -> None:
    from django.core.management import ManagementUtility, get_commands

    class Utility(ManagementUtility):
        """Finds a command by the name that `gpu-dispatcher --help` shows, for its usage line to have it."""

        def main_help_text(self, commands_only: bool = False) -> str:
            if commands_only:  # `help --commands`, one a line, for programs
                return str(super().main_help_text(commands_only))
            return manage_help_text(get_commands())

        def fetch_command(self, subcommand: str) -> BaseCommand:
            entry = None if subcommand in get_commands() else entry_of(subcommand)  # `check` is Django's
            return super().fetch_command(entry.name if entry else subcommand)

    if argv[0] == INSTALLED_AS and argv[1:2] and argv[1] in ENTRIES:
        argv[1] = ENTRIES[argv[1]].shown
    Utility(argv).execute()


def _start_part(name: str, arguments: list[str]) -> int:
    """Run web, beat or flower in this process, where signals and pid watchers reach it. Return its status."""
    from dispatcher_project.supervisor import data_folder

    asks_for_help = not {"-h", "--help"}.isdisjoint(arguments)
    try:
        if not asks_for_help:
            data_folder.adopt_running_environment(arguments)
    except data_folder.NotRunning as error:
        return _refuse(str(error))
    arguments = data_folder.without_data_dir(arguments)
    os.environ["DJANGO_SETTINGS_MODULE"] = settings_for(name, asks_for_help=asks_for_help)
    from django.conf import settings as configured
    from django.core.exceptions import ImproperlyConfigured

    try:
        _ = configured.INSTALLED_APPS
    except ImproperlyConfigured as error:
        return _refuse(str(error))
    if name == "web":
        from dispatcher_project.web.__main__ import main as web

        return web(arguments)
    from celery.__main__ import main as celery

    pidfile = ["--pidfile="] if name == "beat" else []
    sys.argv = [INSTALLED_AS, "--app", "dispatcher_project", name, *pidfile, *arguments]
    celery()
    return 0


def _require_own_packages() -> None:
    """End with one line where a package of ours is hidden by another one of its name.

    Their names are general (docs/adr/0048). Once imported here, none can be hidden later by a folder in the
    current directory, which Celery puts first on the path.
    """
    here = Path(__file__).resolve().parents[2]
    for name in _PACKAGES:
        found = importlib.import_module(name).__file__
        if found is None or Path(found).resolve().parents[1] != here:
            where = Path(found).parent if found else f"a folder {name} without __init__.py"
            sys.exit(
                _refuse(
                    f"{where} hides this program's package {name!r}: take its folder out of PYTHONPATH, or "
                    f"install {INSTALLED_AS} into an environment of its own"
                )
            )


def _unknown(word: str) -> str:
    import difflib

    name = word.replace("-", "_")
    if name in CHECKOUT_ONLY:
        return f"{word} works on the source code: run `python3 manage.py {name}` in a checkout"
    known = [*(entry.shown for entry in ENTRIES.values()), COMPLETION]
    near = difflib.get_close_matches(word, known, n=1)
    guess = f" (did you mean {near[0]}?)" if near else ""
    return f"there is no command {word!r}{guess}; `{INSTALLED_AS} --help` lists all"


def _refuse(why: str) -> int:
    sys.stderr.write(f"{INSTALLED_AS}: {why}\n")
    return WRONG
