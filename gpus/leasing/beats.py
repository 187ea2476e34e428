"""What pinned workers say of themselves, kept in Redis beside the index: it outlives a rebuild, and needs
none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpus.leasing import codec
from gpus.leasing.values import Beat, Measured

TELEMETRY_KEPT = 720
"""An hour of what pinned workers say every five seconds."""
_BEATS_PER_CALL = 100


class Beats:
    """A part of `store.RedisLeases`."""

    def beat(self, server: str, said: Mapping[str, Any], telemetry: Mapping[str, Any] | None = None) -> None:
        codec.check_names(server)
        history = "" if telemetry is None else json.dumps(telemetry, separators=(",", ":"))
        self._run("beat", server, json.dumps(said, separators=(",", ":")), history, TELEMETRY_KEPT)

    def beats(self, servers: Sequence[str]) -> dict[str, Beat]:
        found: dict[str, Beat] = {}
        for first in range(0, len(servers), _BEATS_PER_CALL):
            some = servers[first : first + _BEATS_PER_CALL]
            found |= codec.read_beats(some, self._run("beats", *some))
        return found

    def telemetry(self, server: str, within_seconds: float) -> list[Measured]:
        return codec.read_telemetry(self._run("telemetry", server, round(within_seconds * 1_000_000)))

    def _run(self, script: str, *args: codec.Arg) -> codec.Answer:
        raise NotImplementedError
