"""`python3 -m tests.dispatcher_project.simulation.without MECHANISMS FAULTS SEEDS [stops]`: plays seeds with
mechanisms taken out (stops: until one breaks a law); prints what broke and what it cost as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path


def main(mechanisms: str, faults: str, seeds: str, stops: str = "stops") -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "dispatcher_project.settings.simulation"
    import django

    django.setup()
    import redis

    from dispatcher_project.embedded import EmbeddedValkey
    from dispatcher_project.simulation.run import simulate
    from dispatcher_project.simulation.size import Size

    from .sabotage import MECHANISMS, counted_bookings

    size = Size(jobs=24, faults=12, names=tuple(name for name in faults.split(",") if name))
    with tempfile.TemporaryDirectory() as folder, EmbeddedValkey(Path(folder), append_only=False) as valkey:
        client = redis.Redis.from_url(valkey.url)

        cost, broken, played = Counter[str](), list[str](), 0
        with ExitStack() as stack:
            for name in filter(None, mechanisms.split(",")):
                stack.enter_context(MECHANISMS[name]())
            stack.enter_context(counted_bookings(cost))
            while not (broken and stops) and played < int(seeds):
                verdict = simulate(played, client, size)
                broken, played = [*broken, *verdict.broken], played + 1
                cost.update(verdict.cost)
        json.dump({"broken": broken, "played": played, "cost": cost}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
