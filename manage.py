#!/usr/bin/env python3
"""The one command of a checkout: `python3 manage.py up`, `python3 manage.py test`, and Django's own commands.

Needs nothing but Python 3.11: the first call makes `.venv`, installs what constraints.txt pins and goes on
with that environment's Python (dispatcher_project/supervisor/bootstrap.py).
"""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036  (a message instead of a traceback under an older Python)
    version = sys.version.split()[0]
    sys.exit(f"manage.py needs Python 3.11 or newer; this is {version} ({sys.executable})")

EXTRAS = {"test": ("dev", "supply"), "supply": ("supply",)}
"""What a command needs of pyproject.toml's optional dependencies."""


def main() -> None:
    command = sys.argv[1] if len(sys.argv) > 1 else "help"
    if os.environ.get("DISPATCHER_NO_BOOTSTRAP") != "1":  # set in containers and for children of `up`
        from dispatcher_project.supervisor import bootstrap

        bootstrap.keep_bytecode()
        try:
            python = bootstrap.environment_python(extras=EXTRAS.get(command, ()))
        except bootstrap.BootstrapError as error:
            sys.exit(f"manage.py: {error}")
        if python is not None:
            os.execv(python, [str(python), *sys.argv])

    from dispatcher_project.cli.main import manage

    manage(sys.argv)


if __name__ == "__main__":
    main()
