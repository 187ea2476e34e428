"""What a process has read of the registry lately. A change by this process that is saved, deleted, or told by
`rows_changed` is seen at once, any other within two seconds."""

from __future__ import annotations

from typing import Any

from django.dispatch import Signal

from foundation.ttl_cache import RowCache
from gpus.models import ModelConfig, Placement, Pool, Server
from gpus.protocol import Endpoint, ModelSpec
from gpus.registry import queries

KEEP_SECONDS = 1.0

rows_changed = Signal()
"""Sent by what changes rows of the registry without their `save` or `delete`."""


class RegistryCache:
    """The reads of `gpus.registry.queries` of the same names, cached for a second. One per process, in
    `jobs.ports.Ports`."""

    def __init__(self) -> None:
        self._found: RowCache[tuple[str, ...], Any] = RowCache(
            lambda: KEEP_SECONDS, max_entries=20_000, of=(ModelConfig, Placement, Pool, Server)
        )
        rows_changed.connect(self._found.rows_changed)

    def model_spec(self, name: str) -> ModelSpec | None:
        return self._found.get(("model", name), lambda: queries.model_spec(name))  # type: ignore[no-any-return]

    def has_capacity(self, model: str) -> bool:
        found: bool = self._found.get(("capacity", model), lambda: queries.has_capacity(model))
        return found

    def endpoint_for(self, server: str, model: str) -> Endpoint | None:
        return self._found.get(  # type: ignore[no-any-return]
            ("endpoint", server, model), lambda: queries.endpoint_for(server, model)
        )

    def addresses_in_use(self) -> tuple[str, ...]:
        found: tuple[str, ...] = self._found.get(("addresses",), queries.addresses_in_use)
        return found

    def fleet_of(self, pool: str) -> str:
        found: str = self._found.get(("fleet", pool), lambda: queries.fleet_of(pool))
        return found

    def fleets(self) -> list[str]:
        found: list[str] = self._found.get(("fleets",), queries.fleets)
        return found

    def clear(self) -> None:
        self._found.clear()
