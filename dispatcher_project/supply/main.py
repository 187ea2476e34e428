"""`python3 manage.py supply COMMAND`: what this dispatcher is made of. Runs without Django."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dispatcher_project.bootstrap import ROOT


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="manage.py supply",
        description="Dependencies: pinned, listed, audited, licensed. Keys left in files.",
    )
    commands = made.add_subparsers(dest="command", required=True)
    lock = commands.add_parser("lock", help="write constraints.txt anew from pyproject.toml, hashes included")
    lock.add_argument(
        "--upgrade", nargs="*", metavar="NAME", help="to the newest versions: all, or these packages"
    )
    return made


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 nothing is wrong, 1 something is, 2 bad arguments, 3 it could not be found out."""
    options = parser().parse_args(arguments)
    return _COMMANDS[options.command](options)


def _lock(options: argparse.Namespace) -> int:
    from .lock import LockError, refresh

    try:
        changes = refresh(ROOT, upgrade=options.upgrade)
    except LockError as error:
        return _could_not(f"supply lock: {error}")
    _show("\n".join(changes) or "constraints.txt: the same versions as before")
    return 0


def _could_not(text: str) -> int:
    sys.stderr.write(f"{text}\n")
    return 3


def _show(text: str, file: Path | None = None) -> None:
    if file is None:
        sys.stdout.write(f"{text}\n")
    else:
        file.write_text(f"{text}\n")


_COMMANDS = {"lock": _lock}
