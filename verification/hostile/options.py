"""The command line of `manage.py prove --hostile`."""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from foundation.program import usage_name
from verification.hostile.measure import FLOOR_SECONDS

QUIET_SECONDS = 2.0
ATTACKER, NEIGHBOUR = "hostile-attacker", "hostile-neighbour"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a trial.

    attacks: ids in the order of the trial. seconds: of each, None for its own. up_json, or url and api_key
    with the names of two tenants: a dispatcher that runs already."""

    attacks: tuple[str, ...]
    seconds: float | None = None
    seed: int = 0
    url: str = ""
    api_key: str = ""
    attacker: str = ATTACKER
    neighbour: str = NEIGHBOUR
    up_json: Path | None = None
    data_dir: Path | None = None
    database: str = ""
    report: Path | None = None
    floor_seconds: float = FLOOR_SECONDS
    quiet_seconds: float = QUIET_SECONDS
    list_only: bool = False

    @property
    def starts_its_own(self) -> bool:
        """True if the command starts its own dispatcher."""
        return not self.url and self.up_json is None


def parser() -> argparse.ArgumentParser:
    """Return the command line of `prove --hostile`."""
    arguments = argparse.ArgumentParser(
        prog=f"{usage_name('prove')} --hostile",
        description="Attack a dispatcher as a hostile tenant, GPU server, model, receiver or stranger, and "
        "measure the effect on another tenant. Exit status 0: every attack was held.",
    )
    arguments.add_argument("--attacks", help="comma-separated ids, or `all` (the default)")
    arguments.add_argument("--list", action="store_true", help="list the attacks and exit")
    arguments.add_argument("--seconds", type=float, help="duration of each attack (default: its own)")
    arguments.add_argument(
        "--quiet-seconds",
        type=float,
        default=QUIET_SECONDS,
        help="seconds of baseline before each attack (default %(default)s), six times as many at first",
    )
    arguments.add_argument("--seed", type=int, help="repeat the choices of another trial (default: random)")
    arguments.add_argument(
        "--floor-ms",
        type=float,
        default=FLOOR_SECONDS * 1000,
        help="a neighbour's p99 below this is never a finding (default %(default)s)",
    )
    arguments.add_argument("--up-json", type=Path, help="the up.json of a dispatcher on this machine")
    arguments.add_argument("--url", default="", help="URL of a running dispatcher; needs --api-key")
    arguments.add_argument(
        "--api-key", default=os.environ.get("DISPATCHER_API_KEY", ""), help="operator key for --url"
    )
    arguments.add_argument(
        "--tenants",
        default=f"{ATTACKER},{NEIGHBOUR}",
        help="with --url: two existing tenants, the attacker first (default %(default)s)",
    )
    arguments.add_argument("--data-dir", type=Path, help="of the trial's own system (default: a new one)")
    arguments.add_argument(
        "--database", default="", help="PostgreSQL URL of the trial's own system (default: SQLite)"
    )
    arguments.add_argument("--report", type=Path, help="folder of the report (default <data-dir>/hostile)")
    return arguments


def read_options(arguments: Sequence[str], known: Sequence[str]) -> Options:
    """Parse the command line; exit with status 2 and one line for invalid options. known: ids of all
    attacks."""
    given = parser().parse_args([one for one in arguments if one != "--hostile"])
    if given.url and given.up_json:
        _refuse("give either --url or --up-json")
    if given.url and not given.api_key:
        _refuse("--url needs --api-key (or DISPATCHER_API_KEY), of the operator kind")
    if given.up_json is not None and not given.up_json.is_file():
        _refuse(f"there is no {given.up_json}: does that dispatcher run?")
    if (given.url or given.up_json) and (given.data_dir or given.database):
        _refuse("--data-dir and --database are for a system that the trial starts itself")
    if given.database and not given.database.startswith(("postgresql://", "postgres://")):
        _refuse("--database is a postgresql:// URL")
    if given.seconds is not None and not 0.5 <= given.seconds <= 600:
        _refuse("--seconds is a number from 0.5 to 600")
    tenants = given.tenants.split(",")
    if len(tenants) != 2 or not all(tenants):
        _refuse("--tenants names two tenants with a comma: the attacker, and the neighbour")
    return Options(
        attacks=_attacks(given.attacks, known),
        seconds=given.seconds,
        seed=random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed,
        url=given.url.rstrip("/"),
        api_key=given.api_key,
        attacker=tenants[0],
        neighbour=tenants[1],
        up_json=given.up_json,
        data_dir=given.data_dir,
        database=given.database,
        report=given.report,
        floor_seconds=given.floor_ms / 1000,
        quiet_seconds=min(60.0, max(0.2, given.quiet_seconds)),
        list_only=given.list,
    )


def _attacks(text: str | None, known: Sequence[str]) -> tuple[str, ...]:
    if text is None or text == "all":
        return tuple(known)
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        _refuse(f"unknown attack {', '.join(unknown) or repr(text)}; known are {', '.join(known)}")
    return names


def _refuse(why: str) -> NoReturn:
    sys.stderr.write(f"prove --hostile: {why}\n")
    raise SystemExit(2)
