from __future__ import annotations

from django.db.models.signals import post_delete, post_save

from foundation.ttl_cache import RowCache
from jobs.models import Tenant
from tests.support.row_caches import disconnected_at_the_end


def _cache() -> RowCache[int, str]:
    cache = RowCache[int, str](3600.0, max_entries=10, of=(Tenant,))
    cache.get(1, lambda: "read")
    return cache


def test_caches_read_signals_to_the_end_of_their_test_and_earlier_ones_for_longer() -> None:
    earlier = _cache()
    with disconnected_at_the_end():
        inner = _cache()
        post_save.send(Tenant)
        assert inner.peek(1) is None
        inner.get(1, lambda: "read")
    post_save.send(Tenant)
    post_delete.send(Tenant)
    assert (inner.peek(1), earlier.peek(1)) == ("read", None)


def test_other_receivers_stay() -> None:
    heard = []

    def receiver(**_: object) -> None:
        heard.append(1)

    with disconnected_at_the_end():
        post_save.connect(receiver, sender=Tenant)
    post_save.send(Tenant)
    post_save.disconnect(receiver, sender=Tenant)
    assert heard == [1]
