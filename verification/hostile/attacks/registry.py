"""Every attack by its id, in the order of a trial: the quiet ones first."""

from __future__ import annotations

from collections.abc import Mapping

from verification.hostile.attacks import (
    bodies,
    callbacks,
    connections,
    full_disk,
    full_redis,
    requests,
    secrets,
    servers,
    sign_in,
    storms,
    streams,
    tenants,
)
from verification.hostile.attacks.base import Attack

_ORDER: tuple[type[Attack], ...] = (
    *secrets.ATTACKS,
    *tenants.ATTACKS,
    *bodies.ATTACKS,
    *requests.ATTACKS,
    *streams.ATTACKS,
    *storms.ATTACKS,
    *sign_in.ATTACKS,
    *connections.ATTACKS,
    *callbacks.ATTACKS,
    *servers.ATTACKS,
    *full_redis.ATTACKS,
    *full_disk.ATTACKS,
)
ATTACKS: Mapping[str, type[Attack]] = {attack.id: attack for attack in _ORDER}
assert len(ATTACKS) == len(_ORDER)
