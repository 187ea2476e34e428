"""How late schedules fire while their sweeper is killed, and whether any fires twice or never.

    python -m benchmarks.schedules                          10,000 schedules due in a minute, 10 kills
    python -m benchmarks.schedules --database sqlite --schedules 2000
    python -m benchmarks.schedules --at-once --kills 0      all due at one moment

Sweepers are processes with the product's sweep, started anew after each SIGKILL; database and Valkey are
real. Lag: from the due time to the transaction that fires it. `bench schedules` runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.databases import LOCAL, environment_with
from benchmarks.workflow_steps import Stage

START_SECONDS = 20.0
"""Until the first due time: sweepers need some seconds to start on a busy machine."""
GIVE_UP_SECONDS = 120.0
SWEEP = "--sweep"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--database", default=os.environ.get("DISPATCHER_TEST_DATABASE_URL", LOCAL),
                        help="URL of a PostgreSQL server, or sqlite")  # fmt: skip
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="in which they are due (default 60)")
    parser.add_argument("--at-once", action="store_true", help="all at one moment")
    parser.add_argument("--sweepers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=10, help="of sweepers (default 10)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(SWEEP, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.sweep:
        _sweep()
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, environment_with(options.database, folder):
        from dispatcher_project.supervisor.embedded import EmbeddedValkey

        with EmbeddedValkey(Path(folder) / "valkey", append_only=False) as valkey:
            os.environ["REDIS_URL"] = valkey.url
            os.environ["BROKER_URL"] = f"redis+socket://{valkey.socket}?virtual_host=0"
            found = _measure(options)
    print(
        json.dumps(found) if options.json else "\n".join(f"{name:<34} {one}" for name, one in found.items())
    )


def _sweep() -> None:
    """Run the product's sweeps of schedules, once a second as a tick does."""
    import django

    django.setup()
    from jobs.ports import production_ports
    from workflows.sweeps import due_schedules, ended_firings

    ports = production_ports()
    sweeps = (
        (due_schedules.is_needed, due_schedules.DueSchedulesSweep()),
        (ended_firings.is_needed, ended_firings.sweep),
    )
    while True:
        began = time.monotonic()
        for is_needed, sweep in sweeps:
            if is_needed(ports):
                sweep(ports)
        time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "benchmarks.schedules", SWEEP])


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0, interactive=False)
    begins_at = _fill(options)
    sweepers = [_start() for _ in range(options.sweepers)]
    chance, killed = random.Random(1), 0
    pause = options.seconds / (options.kills + 1)
    try:
        while time.time() < begins_at.timestamp():
            time.sleep(0.05)
        next_kill = time.monotonic() + pause
        until = time.monotonic() + options.seconds + GIVE_UP_SECONDS
        while time.monotonic() < until and _left():
            time.sleep(0.1)
            if killed < options.kills and time.monotonic() >= next_kill:
                place = chance.randrange(len(sweepers))
                sweepers[place].kill()
                sweepers[place].wait()
                sweepers[place] = _start()
                killed, next_kill = killed + 1, next_kill + pause
    finally:
        for one in sweepers:
            one.send_signal(signal.SIGKILL)
            one.wait()
    return {"schedules": options.schedules, "sweepers": options.sweepers, "kills": killed, **_figures()}


def _fill(options: argparse.Namespace) -> datetime:
    """Store the schedules; return when the first one is due."""
    from workflows.schedules.models import Schedule

    stage, chance = Stage(), random.Random(1)
    now = datetime.now(UTC)
    begins_at = now + timedelta(seconds=START_SECONDS + options.schedules / 2_000)
    rows = []
    for number in range(options.schedules):
        after = 0.0 if options.at_once else chance.random() * options.seconds
        due = begins_at + timedelta(seconds=after)
        rows.append(
            Schedule(
                tenant=stage.tenant,
                name=f"s{number}",
                at=due,
                anchor_at=now,
                target={"submit": {"model": "bench", "payload": {"number": number}}},
                handled_at=now,
                next_due_at=due,
                next_at=due,
                created_at=now,
                updated_at=now,
            )
        )
    Schedule.objects.bulk_create(rows, batch_size=500)
    return begins_at


def _left() -> bool:
    from workflows.schedules.models import Schedule

    return Schedule.objects.exclude(next_at=None).exists()


def _figures() -> dict[str, Any]:
    from jobs.models import Job
    from workflows.schedules.models import Firing, Schedule

    firings = list(Firing.objects.values_list("schedule_id", "outcome", "due_at", "at"))
    lags = sorted((at - due).total_seconds() for _, outcome, due, at in firings if outcome == "started")
    numbers = [payload["number"] for payload in Job.objects.values_list("payload", flat=True)]
    started = {schedule for schedule, outcome, _, _ in firings if outcome == "started"}
    last = max((at for *_, at in firings), default=None)
    first = min((due for _, _, due, _ in firings), default=None)
    took = (last - first).total_seconds() if last and first else 0.0

    def at_share(share: float) -> float | None:
        return round(lags[min(len(lags) - 1, int(share * len(lags)))], 3) if lags else None

    return {
        "started": len(started),
        "double": len(numbers) - len(set(numbers)),
        "missed": Schedule.objects.count() - len(started),
        "lag p50 s": at_share(0.5),
        "lag p99 s": at_share(0.99),
        "lag max s": at_share(1.0),
        "firings per second": round(len(started) / took) if took else None,
    }


if __name__ == "__main__":
    main()
