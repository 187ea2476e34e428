#!/usr/bin/env python3
"""The one command: `python3 manage.py up`, `python3 manage.py test`, and Django's own commands.

Needs nothing but Python 3.11: the first call makes `.venv`, installs what constraints.txt pins and goes on
with that environment's Python (dispatcher_project/supervisor/bootstrap.py).
"""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036  (who has an older one shall read this, not a traceback)
    version = sys.version.split()[0]
    sys.exit(f"manage.py needs Python 3.11 or newer; this is {version} ({sys.executable})")

WITHOUT_SECRETS = (
    *("help", "--help", "-h", "version", "--version", "gpu_node", "gpu_check"),
    *("makemigrations", "write_docs"),
)
"""Commands that touch no stored secret: a GPU box needs no key of the dispatcher, nor do the commands that
only write files of the checkout."""

EXTRAS = {"test": ("dev", "supply"), "supply": ("supply",)}
"""What a command needs of pyproject.toml's optional dependencies."""

WITHOUT_PAGES = ("gpu_worker", "queue_worker", "gpu_node", "gpu_check")

BASE, PRODUCTION = "dispatcher_project.settings.base", "dispatcher_project.settings.production"


def main() -> None:
    command = sys.argv[1] if len(sys.argv) > 1 else "help"
    asks_for_help = not {"-h", "--help"}.isdisjoint(sys.argv[2:])  # answered without a dispatcher's settings
    if os.environ.get("DISPATCHER_NO_BOOTSTRAP") != "1":  # set in containers and for children of `up`
        from dispatcher_project.supervisor import bootstrap

        bootstrap.keep_bytecode()
        try:
            python = bootstrap.environment_python(extras=EXTRAS.get(command, ()))
        except bootstrap.BootstrapError as error:
            sys.exit(f"manage.py: {error}")
        if python is not None:
            os.execv(python, [str(python), *sys.argv])

    if command == "up":  # without Django: the supervisor stays lean
        from dispatcher_project.supervisor.up import main as up

        sys.exit(up(sys.argv[2:]))
    if command == "test":
        from dispatcher_project.checks import main as gate

        sys.exit(gate(sys.argv[2:]))
    if command == "supply":
        from dispatcher_project.supply.main import main as supply

        sys.exit(supply(sys.argv[2:]))
    if command == "prove":
        from verification.proving.main import main as prove

        sys.exit(prove(sys.argv[2:]))
    if command == "prove_upgrade":
        from verification.proving.upgrade import main as prove_upgrade

        sys.exit(prove_upgrade(sys.argv[2:]))
    if command == "bench":
        from benchmarks.suite.main import main as bench

        sys.exit(bench(sys.argv[2:]))
    if command == "simulate":  # never on a real database, whatever the environment says
        os.environ["DJANGO_SETTINGS_MODULE"] = "dispatcher_project.settings.simulation"
    else:
        from dispatcher_project.supervisor import data_folder

        try:
            if not asks_for_help:
                data_folder.adopt_running_environment(sys.argv[2:])
        except data_folder.NotRunning as error:
            sys.exit(f"manage.py: {error}")
        sys.argv[2:] = data_folder.without_data_dir(sys.argv[2:])  # Django's own commands don't know it
    if command in WITHOUT_PAGES:
        os.environ.setdefault("DISPATCHER_PAGES", "0")
    os.environ["DJANGO_SETTINGS_MODULE"] = _settings(command, asks_for_help=asks_for_help)
    from django.conf import settings as configured
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        _ = configured.INSTALLED_APPS  # Django hides a wrong setting behind "Unknown command"
    except ImproperlyConfigured as error:
        sys.exit(f"manage.py: {error}")
    execute_from_command_line(sys.argv)


def _settings(command: str, *, asks_for_help: bool) -> str:
    chosen = os.environ.get("DJANGO_SETTINGS_MODULE")
    if not chosen:
        chosen = BASE if command in WITHOUT_SECRETS else PRODUCTION
    return BASE if asks_for_help and chosen == PRODUCTION else chosen


if __name__ == "__main__":
    main()
