"""The registry: which servers and models there are. The database first, then the lease layer, live.

If Redis is away the rows stand and `mirrored` is False: the index is brought up to date by
`mirror_registry`, which rebuilding and a sweep call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from django.db import transaction

from gpus.errors import LeasingUnavailable
from gpus.leasing.contract import Leases, Wakes
from gpus.models import ModelConfig, Placement, Pool, Server
from gpus.protocol import DesiredState

from .model_fields import RegistryRefused, defaults, write_fields
from .secrets import encrypt

LeasesOf = Callable[[str], Leases]
"""The lease layer of a fleet, by the fleet's name."""


@dataclass(frozen=True, slots=True)
class Registered:
    """created: the server is new. wakes: for the caller to send. mirrored: the lease layer knows."""

    server: Server
    config: ModelConfig
    pool: Pool
    created: bool
    wakes: tuple[Wakes, ...]
    mirrored: bool


@dataclass(frozen=True, slots=True)
class Configured:
    """created: the model is new."""

    config: ModelConfig
    pool: Pool
    created: bool
    mirrored: bool


def register_server(
    *,
    model: str,
    server: str,
    endpoint: str,
    slots: int,
    leases: LeasesOf,
    pool: str | None = None,
    fleet: str | None = None,
    host: str | None = None,
    headers: Mapping[str, str] | None = None,
    ca_pem: str | None = None,
    model_fields: Mapping[str, Any] | None = None,
) -> Registered:
    """Puts a model on a server, making either where it is new. Raises RegistryRefused.

    pool: where a new model goes; its own one, named after it, if nothing is said. host, headers, ca_pem
    and model_fields change only what is given; `headers={}` forgets the headers.
    """
    _check_url(endpoint)
    with transaction.atomic():
        config, home, _ = _model_in_pool(model, pool=pool, fleet=fleet)
        write_fields(config, home, model_fields or {})
        home.save()
        config.save()
        machine = Server.objects.select_for_update().filter(name=server).first()
        created = machine is None
        if machine is None:
            machine = Server(name=server, pool=home)
        elif machine.pool_id != home.name:
            raise RegistryRefused(
                "server_in_other_pool",
                f"Server {server} belongs to pool {machine.pool_id}, model {model} to pool {home.name}; "
                "name the pool when you register a model that is to share a server.",
                pointer="/server",
                status=409,
            )
        machine.slots = slots
        if host is not None:
            machine.host = host or None
        if headers is not None:
            machine.headers_encrypted = encrypt(json.dumps(dict(headers))) if headers else ""
        if ca_pem is not None:
            machine.ca_pem = ca_pem
        machine.save()
        Placement.objects.update_or_create(server=machine, model=config, defaults={"endpoint": endpoint})
    wakes, mirrored = _mirror(leases, home, machine)
    return Registered(machine, config, home, created, wakes, mirrored)


def configure_model(
    name: str,
    values: Mapping[str, Any],
    *,
    leases: LeasesOf,
    replace: bool,
    pool: str | None = None,
    fleet: str | None = None,
) -> Configured:
    """Sets a model's fields. replace: what is not named gets its default, and an unknown model is made, in
    `pool` or its own one. Raises RegistryRefused (404 without `replace` for an unknown model)."""
    with transaction.atomic():
        if not replace and not ModelConfig.objects.filter(name=name).exists():
            raise unknown_model(name)
        config, home, created = _model_in_pool(name, pool=pool, fleet=fleet)
        write_fields(config, home, {**defaults(), **values} if replace else values)
        home.save()
        config.save()
    _, mirrored = _mirror(leases, home)
    return Configured(config, home, created, mirrored)


def reset_model(name: str, *, leases: LeasesOf) -> Configured:
    """All fields back to their defaults; the model, its pool and its servers stay. Raises RegistryRefused."""
    return configure_model(name, defaults(), leases=leases, replace=False)


def change_server(
    name: str, *, leases: LeasesOf, slots: int | None = None, desired: DesiredState | None = None
) -> Registered | None:
    """More or fewer slots, or drain, off, on; None if there is no such server."""
    with transaction.atomic():
        machine = Server.objects.select_for_update().select_related("pool").filter(name=name).first()
        if machine is None:
            return None
        machine.slots = machine.slots if slots is None else slots
        machine.desired = machine.desired if desired is None else desired.value
        machine.save(update_fields=["slots", "desired", "updated_at"])
    wakes, mirrored = _mirror(leases, machine.pool, machine)
    placement = machine.placements.select_related("model").first()
    config = placement.model if placement else ModelConfig(name="", pool=machine.pool)
    return Registered(machine, config, machine.pool, False, wakes, mirrored)


def remove_server(name: str, *, leases: LeasesOf) -> bool:
    """Forgets a server; leases that still run there go on until they end. False: there is none."""
    machine = Server.objects.select_related("pool").filter(name=name).first()
    if machine is None:
        return False
    fleet = machine.pool.fleet
    machine.delete()
    try:
        leases(fleet).forget_server(name)
    except LeasingUnavailable:
        return True  # rebuilding starts from the rows
    return True


def mirror_registry(leases: Leases, *, fleet: str = "main") -> tuple[Wakes, ...]:
    """Tells the lease layer all pools and servers of its fleet. Raises LeasingUnavailable."""
    for pool in Pool.objects.filter(fleet=fleet):
        leases.configure_pool(pool.spec)
    machines = Server.objects.filter(pool__fleet=fleet).prefetch_related("placements")
    return tuple(wake for machine in machines for wake in leases.configure_server(machine.spec()))


def unknown_model(name: str) -> RegistryRefused:
    return RegistryRefused("unknown_model", f"No model {name!r} is registered.", pointer="/model", status=404)


def _model_in_pool(name: str, *, pool: str | None, fleet: str | None) -> tuple[ModelConfig, Pool, bool]:
    config = ModelConfig.objects.select_for_update().filter(name=name).first()
    if config is not None and pool is not None and config.pool_id != pool:
        raise RegistryRefused(
            "model_in_other_pool",
            f"Model {name} belongs to pool {config.pool_id}; a model is in one pool.",
            pointer="/pool",
            status=409,
        )
    home_name = config.pool_id if config else (pool or name)
    home, _ = Pool.objects.get_or_create(name=home_name, defaults={"fleet": fleet or "main"})
    if fleet is not None and home.fleet != fleet:
        raise RegistryRefused(
            "pool_in_other_fleet",
            f"Pool {home.name} belongs to fleet {home.fleet}.",
            pointer="/fleet",
            status=409,
        )
    if config is not None:
        return config, home, False
    config, created = ModelConfig.objects.get_or_create(name=name, defaults={"pool": home})
    return config, home, created


def _mirror(leases: LeasesOf, pool: Pool, machine: Server | None = None) -> tuple[tuple[Wakes, ...], bool]:
    try:
        store = leases(pool.fleet)
        store.configure_pool(pool.spec)
        return (store.configure_server(machine.spec()) if machine is not None else ()), True
    except LeasingUnavailable:
        return (), False


def _check_url(endpoint: str) -> None:
    try:
        parts = urlsplit(endpoint)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or any(character.isspace() or ord(character) < 0x20 for character in endpoint):
        raise RegistryRefused(
            "invalid_endpoint", "The endpoint is an http:// or https:// URL with a host.", pointer="/endpoint"
        )
