"""The rules of a pool, as its index has them."""

from __future__ import annotations

from tests.support.queue_harness import QueueHarness

READ_RULES = """
local weight, band, cap = cmsgpack.unpack(redis.call('HGET', KEYS[1], ARGV[1]))
return {tostring(weight), band, cap or -1}
"""


def mirrored_rules(queue: QueueHarness, tenant: int = 0) -> tuple[float, int, int | None]:
    name = str(tenant or queue.tenant.pk)
    weight, band, most = queue.client.eval(READ_RULES, 1, f"{queue.keys()}tenants", name)
    return float(weight), band, None if most == -1 else most
