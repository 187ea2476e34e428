"""Reads the registry's rows.

Code on a job's path reads them through `RegistryCache`, which keeps them for a second. A change by this
process (`save`, `delete`, or a `rows_changed` signal) is seen at once, a change by another process within two
seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from django.apps import apps
from django.db.models import Q
from django.dispatch import Signal

from foundation.database import statements
from foundation.database.statements import value
from foundation.secrets import decrypt
from foundation.ttl_cache import TtlCache
from gpus.models import ModelConfig, Pause, Placement, Pool, Server
from gpus.models.server import TOO_LARGE
from gpus.protocol import DesiredState, Endpoint, ModelSpec, PoolSpec
from gpus.runners.registry import find_runner

KEEP_SECONDS = 1.0

rows_changed = Signal()
"""Sent by code that changes registry rows without `save` or `delete`."""

_USABLE = Q(server__desired=DesiredState.ON.value, server__slots__gt=0) & (
    Q(server__healthy=None) | Q(server__healthy=True)
)
FIT = _USABLE & ~TOO_LARGE
"""Placements whose server is on, has slots and memory for the model, and passed its last health check."""
TOO_SMALL = _USABLE & TOO_LARGE
"""The same, but the server lacks memory for the model."""


def model_spec(name: str) -> ModelSpec | None:
    """The model's specification, or None if it is not registered."""
    config = _config.first(name=name)
    return config.spec if config else None


def spec_or_defaults(name: str, pool: str) -> ModelSpec:
    """Return how the model is run; the defaults if it is not registered any more. pool: of its jobs."""
    return model_spec(name) or ModelSpec(name, pool)


def has_capacity(model: str) -> bool:
    """Whether a usable server (`FIT`) runs the model.

    If the runner of the model's type is not installed, only pinned servers count.
    """
    spec = model_spec(model)
    needs_pinned = spec is not None and find_runner(spec.model_type) is None
    return bool((_fit_pinned if needs_pinned else _fit)(model=model))


def endpoint_for(server: str, model: str) -> Endpoint | None:
    """The model's endpoint on the server, or None. Contains decrypted secret headers: never log it.

    Raises `foundation.secrets.SecretUnreadable` if the installation's encryption key has changed.
    """
    address, row = _address.first(server=server, model=model), _server.first(name=server)
    if address is None or row is None:
        return None
    return Endpoint(
        server=row.name,
        url=address,
        headers=read_headers(row.headers_encrypted),
        ca_pem=row.ca_pem or None,
        max_slots=row.slots,
        is_off=row.desired == DesiredState.OFF,
        tells_health=row.tells_health,
    )


def addresses_in_use() -> tuple[str, ...]:
    """All absolute URLs of GPU servers: endpoints, and poll and cancel templates."""
    templates = (text for row in _templates() for text in row if text and not text.startswith("/"))
    return tuple(sorted({*_endpoints(), *templates}))


def pools(*, fleet: str | None = None) -> list[PoolSpec]:
    """All pools by name, or those of one fleet."""
    return [pool.spec for pool in (_all_pools() if fleet is None else _pools_of(fleet=fleet))]


def fleet_of(pool: str) -> str:
    """The fleet (Redis hash tag) of the pool; `main` for an unknown pool."""
    return _fleet.first(name=pool) or "main"


def fleets() -> list[str]:
    """All fleets in use, always including `main`."""
    return sorted({"main", *_used_fleets()})


def pauses() -> list[Pause]:
    """All pauses."""
    return _pauses()


def read_placements(servers: Iterable[Server]) -> None:
    """Prefetch the servers' placements with their models, like `prefetch_related("placements__model")`."""
    rows = list(servers)
    placed: dict[str, list[Placement]] = {server.name: [] for server in rows}
    for placement in _placed_on(list(placed)):
        placed[placement.server_id].append(placement)
    for server in rows:
        known = Placement.objects.all()
        known._result_cache = placed[server.name]
        vars(server)["_prefetched_objects_cache"] = {"placements": known}


def read_headers(encrypted: str) -> Mapping[str, str]:
    """Decrypt a server's stored request headers."""
    return json.loads(decrypt(encrypted)) if encrypted else {}


class RegistryCache:
    """Caches this module's functions of the same names for a second. One per process, in
    `jobs.ports.Ports`."""

    def __init__(self, keep_seconds: float = KEEP_SECONDS) -> None:
        config: Any = apps.get_app_config("gpus")
        self._found: TtlCache[tuple[str, ...], Any] = TtlCache(
            keep_seconds, max_entries=20_000, changes=config.row_changes
        )

    def model_spec(self, name: str) -> ModelSpec | None:
        return self._found.get(("model", name), lambda: model_spec(name))  # type: ignore[no-any-return]

    def spec_or_defaults(self, name: str, pool: str) -> ModelSpec:
        return self.model_spec(name) or ModelSpec(name, pool)

    def has_capacity(self, model: str) -> bool:
        found: bool = self._found.get(("capacity", model), lambda: has_capacity(model))
        return found

    def endpoint_for(self, server: str, model: str) -> Endpoint | None:
        return self._found.get(  # type: ignore[no-any-return]
            ("endpoint", server, model), lambda: endpoint_for(server, model)
        )

    def addresses_in_use(self) -> tuple[str, ...]:
        found: tuple[str, ...] = self._found.get(("addresses",), addresses_in_use)
        return found

    def fleet_of(self, pool: str) -> str:
        found: str = self._found.get(("fleet", pool), lambda: fleet_of(pool))
        return found

    def fleets(self) -> list[str]:
        found: list[str] = self._found.get(("fleets",), fleets)
        return found

    def clear(self) -> None:
        self._found.clear()


_placed_on = statements.ReadAmong(
    (Server, "name"),
    rows=lambda names: (
        Placement.objects.select_related("model").filter(server__name__in=names).order_by("pk")
    ),
)
_all_pools = statements.Read(Pool.objects.all)
_fleet = statements.Read(
    lambda: Pool.objects.filter(name=value(Pool, "name")).values_list("fleet", flat=True)
)
_pools_of = statements.Read(lambda: Pool.objects.filter(fleet=value(Pool, "fleet")))
_endpoints = statements.Read(
    lambda: Placement.objects.order_by().values_list("endpoint", flat=True).distinct()
)
_templates = statements.Read(
    lambda: (
        ModelConfig.objects.order_by()
        .values_list("poll_endpoint_template", "cancel_endpoint_template")
        .distinct()
    )
)
_used_fleets = statements.Read(lambda: Pool.objects.order_by().values_list("fleet", flat=True).distinct())
_pauses = statements.Read(Pause.objects.all)
_fit = statements.Read(
    lambda: Placement.objects.filter(FIT, model=value(ModelConfig, "name", "model")).values_list("pk")[:1]
)
_fit_pinned = statements.Read(
    lambda: Placement.objects.filter(
        FIT, server__host__isnull=False, model=value(ModelConfig, "name", "model")
    ).values_list("pk")[:1]
)
_config = statements.Read(lambda: ModelConfig.objects.filter(name=value(ModelConfig, "name")))
_server = statements.Read(lambda: Server.objects.filter(name=value(Server, "name")))
_address = statements.Read(
    lambda: Placement.objects.filter(
        server=value(Server, "name", "server"), model=value(ModelConfig, "name", "model")
    ).values_list("endpoint", flat=True)
)
