"""`python3 manage.py supply COMMAND`: the dependencies, and secrets left in files. Runs without Django."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dispatcher_project.supervisor.bootstrap import ROOT

from .lock import extras_of


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="manage.py supply",
        description="Pin, list and audit the dependencies, check their licences; find secrets in files.",
    )
    commands = made.add_subparsers(dest="command", required=True)
    lock = commands.add_parser("lock", help="write constraints.txt, with hashes, from pyproject.toml")
    lock.add_argument(
        "--upgrade", nargs="*", metavar="NAME", help="use the newest versions, of all packages or these"
    )
    extra = argparse.ArgumentParser(add_help=False)
    extra.add_argument(
        "--extra", action="append", default=[], metavar="NAME", help="include the packages of this extra"
    )
    sbom = commands.add_parser("sbom", parents=[extra], help="print a CycloneDX bill of materials")
    sbom.add_argument("--output", type=Path, metavar="FILE", help="write it there (default: standard output)")
    commands.add_parser("audit", parents=[extra], help="ask the advisory database about the pinned packages")
    commands.add_parser("licences", help="list each package's licence; exit status 1 if one is not allowed")
    commands.add_parser("secrets", help="look for keys and passwords in the repository's files")
    return made


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 all well, 1 a finding, 2 bad arguments, 3 the check could not be made."""
    options = parser().parse_args(arguments)
    return _COMMANDS[options.command](options)


def _lock(options: argparse.Namespace) -> int:
    from .lock import LockError, refresh

    try:
        changes = refresh(ROOT, upgrade=options.upgrade)
    except LockError as error:
        return _could_not(f"supply lock: {error}")
    _show("\n".join(changes) or "constraints.txt is written; no version changed")
    return 0


def _sbom(options: argparse.Namespace) -> int:
    from .sbom import make_sbom

    text = make_sbom(ROOT, _known(options.extra))
    if options.output is None:
        _show(text)
    else:
        options.output.write_text(f"{text}\n")
    return 0


def _audit(options: argparse.Namespace) -> int:
    from .audit import NotAudited, audit

    try:
        found = audit(ROOT, _known(options.extra))
    except NotAudited as error:
        return _could_not(f"supply audit: no result, the advisory database can't be asked: {error}")
    count = len(found.vulnerabilities)
    _show("\n".join([*found.vulnerabilities, f"{count} known vulnerabilities in {found.asked} packages"]))
    return int(bool(count))


def _licences(_: argparse.Namespace) -> int:
    from .lock import read_lock
    from .sbom import read_licences

    found = read_licences(read_lock(ROOT / "constraints.txt").values())
    for one in found:
        name, licence = f"{one.pin.name} {one.pin.version}", one.expression or "not installed here"
        notes = f"[{', '.join(sorted(one.pin.extras))}]" if one.pin.extras else ""
        _show(f"{name:<40} {licence:<30} {notes}{'' if one.is_allowed else ' NOT ALLOWED'}".rstrip())
    return int(not all(one.is_allowed for one in found))


def _secrets(_: argparse.Namespace) -> int:
    from .secrets import main as secrets

    return secrets(ROOT)


def _known(extras: list[str]) -> list[str]:
    if unknown := sorted({*extras} - {*extras_of(ROOT)}):
        parser().error(f"no such extra: {', '.join(unknown)}; there are {', '.join(extras_of(ROOT))}")
    return extras


def _could_not(text: str) -> int:
    sys.stderr.write(f"{text}\n")
    return 3


def _show(text: str) -> None:
    sys.stdout.write(f"{text}\n")


_COMMANDS = {"lock": _lock, "sbom": _sbom, "audit": _audit, "licences": _licences, "secrets": _secrets}
