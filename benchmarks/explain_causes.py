"""Share of correct first reasons: fleets in which one cause keeps a job waiting, on a real queue.

    python -m benchmarks.explain_causes                     50 cases of each cause
    python -m benchmarks.explain_causes --cases 200

The causes, and the noise around them, are those of the tests (tests/jobs/explain/injected.py): made by the
real services, with rows in SQLite and tickets in a real Valkey.

Goal (exit status 1 if it is missed): the cause is the first reason in 95 % of its cases.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

GOAL = 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int, default=50)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DJANGO_SETTINGS_MODULE"] = "dispatcher_project.settings.test"
        os.environ["DISPATCHER_TEST_DATABASE_URL"] = f"sqlite:///{folder}/rows.sqlite3"
        import django

        django.setup()
        from django.core.management import call_command

        from dispatcher_project.supervisor.embedded import EmbeddedValkey

        call_command("migrate", verbosity=0)
        with EmbeddedValkey(Path(folder), append_only=False) as server:
            found = measure(server.url, arguments.cases)
    shares = {cause: right / arguments.cases for cause, right in found.items()}
    print(f"all: {sum(found.values()) / (arguments.cases * len(found)):.1%} of {len(found)} causes")
    sys.exit(bool(misses(shares)))


def measure(url: str, cases: int) -> dict[str, int]:
    """Return by cause the number of cases with a correct first reason."""
    from gpus.leasing.connect import connect
    from tests.jobs.explain.injected import CAUSES, first_reason
    from tests.jobs.explain.scene import Scene

    client = connect(url)
    found: dict[str, int] = {}
    for cause, (code, inject) in CAUSES.items():
        codes = []
        for seed in range(cases):
            scene = Scene(client, seed)
            codes.append(first_reason(scene, inject).code)
            scene.forget()
        found[cause] = codes.count(code)
        others = sorted({one for one in codes if one != code})
        print(f"{cause:<20}{found[cause] / cases:>7.0%}  {', '.join(others)}".rstrip(), flush=True)
    return found


def misses(shares: Mapping[str, float]) -> list[str]:
    """Return the causes below the goal. shares: by cause, of 1."""
    return [cause for cause, share in shares.items() if share < GOAL]


if __name__ == "__main__":
    main()
