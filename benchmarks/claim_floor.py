"""Cost of the commands of a release-and-claim commands_us: microseconds of server time.

    python -m benchmarks.claim_floor
    python -m benchmarks.claim_floor --models 4

The commands of some release-and-claims are recorded on one server and sent again on another one in the same
state, as scripts of nothing else, with constant arguments. The rest of a release-and-claim's time is the work
of Lua between them. Each figure is that of the quietest chunk, as in `benchmarks.claim`.
"""

from __future__ import annotations

import argparse
import codecs
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.claim import CHUNK, POOL, WORKER, Costs, Size, open_index, push_tickets, required
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpus.errors import Verdict
from gpus.leasing.connect import connect
from gpus.leasing.store import RedisLeases
from gpus.protocol import Lease, ReleaseMode

CHUNKS, WARM_UP, WAITING = 40, 200, 3_000
_ARGUMENT = re.compile(r'"((?:[^"\\]|\\.)*)"')

Command = list[bytes]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", type=int, default=1)
    size = Size(waiting=WAITING, models=parser.parse_args().models)
    recorded = record(size, CHUNKS * CHUNK)
    commands = sum(map(len, recorded)) / len(recorded)
    print(f"{size.models} models, {commands:.1f} commands in a release-and-claim")
    print(f"  as it is          {release_and_claim_us(size):6.1f} µs")
    print(f"  the commands only {commands_us(size, recorded):6.1f} µs")
    print(f"  an empty script   {commands_us(size, [[] for _ in recorded]):6.1f} µs")


class Bench:
    """A server with a queue and leased slots, always in the same state."""

    def __init__(self, url: str, size: Size) -> None:
        self.client: Any = connect(url)
        self.leases, self.costs = RedisLeases(self.client, "bench"), Costs(self.client)
        self._chance, self._released = random.Random(1), 0
        open_index(self.leases, size)
        push_tickets(self.leases, size, 0, size.waiting, self.costs)
        self._held = [self._claim(f"c{number}") for number in range(size.slots)]
        self.release(WARM_UP)

    def release(self, count: int) -> None:
        """Carry out `count` release-and-claims."""
        for _ in range(count):
            place = self._chance.randrange(len(self._held))
            self._released += 1
            self._held[place] = required(
                self.leases.release(
                    self._held[place].ref, ReleaseMode.ENDED, worker=WORKER,
                    gpu_seconds=self._chance.expovariate(1), next_attempt_id=f"r{self._released}",
                    verdict=Verdict.WELL,
                )
            )  # fmt: skip

    def _claim(self, attempt_id: str) -> Lease:
        return required(self.leases.claim(POOL, worker=WORKER, attempt_id=attempt_id))


@contextmanager
def bench(size: Size) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory() as folder, EmbeddedValkey(Path(folder), append_only=False) as server:
        one = Bench(server.url, size)
        try:
            yield one
        finally:
            one.client.close()


def record(size: Size, count: int) -> list[list[Command]]:
    """Return the commands that the script of each release-and-claim sent."""
    recorded: list[list[Command]] = []
    with bench(size) as one:
        watcher = one.client.connection_pool.get_connection()
        watcher.send_command("MONITOR")
        watcher.read_response()
        for _ in range(count):
            recorded.append([])
            one.release(1)
            one.client.echo("over")
            while b'"ECHO"' not in (line := _bytes(watcher.read_response())):
                if b" lua] " in line:
                    recorded[-1].append(arguments(line))
        watcher.disconnect()
    return recorded


def release_and_claim_us(size: Size) -> float:
    """Return the time of a whole release-and-claim, µs."""
    with bench(size) as one:
        for _ in range(CHUNKS):
            with one.costs.of("release", CHUNK):
                one.release(CHUNK)
        return one.costs["release"]


def commands_us(size: Size, recorded: list[list[Command]]) -> float:
    """Return the time of the recorded commands without the work of Lua, µs."""
    with bench(size) as one:
        for first in range(0, len(recorded), CHUNK):
            names = load(one, f"alone_{first}", recorded[first : first + CHUNK])
            with one.costs.of("commands_us", CHUNK):
                for name in names:
                    one.client.fcall(name, 0)
        return one.costs["commands_us"]


def load(one: Bench, library: str, recorded: list[list[Command]]) -> list[str]:
    """Load a function for each; return their names."""
    names = [f"{library}_{place}" for place in range(len(recorded))]
    functions = map(function, names, recorded)
    one.client.function_load("\n".join((f"#!lua name={library}", *functions)))
    return names


def function(name: str, commands: list[Command]) -> str:
    """Return the Lua source of a function that sends these commands."""
    calls = (f"redis.call({', '.join(map(literal, command))})" for command in commands)
    return f"redis.register_function('{name}', function() {' '.join(calls)} end)"


def literal(value: bytes) -> str:
    """Return the value as a Lua literal."""
    return "'" + "".join(f"\\{byte:03d}" for byte in value) + "'"


def arguments(line: bytes) -> Command:
    """Return the arguments in a line of MONITOR."""
    _, _, command = line.partition(b"] ")
    texts = _ARGUMENT.findall(command.decode("latin-1"))
    return [codecs.escape_decode(text.encode("latin-1"))[0] for text in texts]  # type: ignore[attr-defined]


def _bytes(answer: str | bytes) -> bytes:
    return answer.encode("utf-8", "surrogateescape") if isinstance(answer, str) else answer


if __name__ == "__main__":
    main()
