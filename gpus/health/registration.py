"""The registration of a model server as the API, the admin and the command line do it.

The rows and the lease layer (`gpus.registry.registry.register_server`), the workers, and one health probe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from gpus.health.health import ELSEWHERE, Warning, check_registered_server
from gpus.leasing.contract import Leases
from gpus.leasing.values import Wakes
from gpus.protocol import REGISTRY_CHANGED, Clock
from gpus.registry.model_fields import FIELDS
from gpus.registry.registry import Registered, register_server
from gpus.runners.base import Transport


class RegistryPorts(Protocol):
    """The dependencies of a change of the registry."""

    @property
    def leases(self) -> Callable[[str], Leases]: ...
    @property
    def send_wakes(self) -> Callable[[Sequence[Wakes]], int]: ...
    @property
    def announce(self) -> Callable[[Sequence[str]], None]: ...
    @property
    def transport(self) -> Transport: ...
    @property
    def clock(self) -> Clock: ...


def register_and_check(
    body: Mapping[str, Any], *, by: str, ports: RegistryPorts
) -> tuple[Registered, tuple[Warning, ...]]:
    """Register a server, announce it to the workers, and probe its health once.

    body: as of POST /admin/register: arguments of `register_server`, and options of the model by name. by:
    actor for the audit entry. Raises RegistryRefused.
    """
    options = {name: value for name, value in body.items() if name in FIELDS}
    arguments = {name: value for name, value in body.items() if name not in FIELDS}
    found = register_server(**arguments, model_fields=options, by=by, leases=ports.leases)
    ports.announce([REGISTRY_CHANGED])  # workers consume a new pool's queue before its first job comes
    ports.send_wakes(found.wakes)
    probed = check_registered_server(found, transport=ports.transport, now=ports.clock.now)
    return found, (*_other_addresses(found), *probed)


def _other_addresses(found: Registered) -> tuple[Warning, ...]:
    """Warn where a server's name had another address: it may be the name of two servers."""
    name = found.server.name
    if found.server.host is not None:
        return ()
    if found.replaced:
        where = f"was at {found.replaced} until now; that address gets no jobs any more"
    elif found.elsewhere:
        where = f"has models at {', '.join(found.elsewhere[:3])}, too, with the same slots and headers"
    else:
        return ()
    return (
        Warning(
            ELSEWHERE,
            f"{name} {where}. If these are two servers, register each under a name of its own.",
        ),
    )
