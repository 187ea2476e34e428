"""Objects in the store of artifacts that no row knows: late or abandoned uploads, results of dead attempts.

The store is listed page by page over many runs. An object that is older than a day and has no row is removed,
and so are uploads that began long ago and did not end. Paused while clocks disagree, and without the store.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import islice

from django.conf import settings

from artifacts.keys import ObjectKey
from artifacts.models import Artifact, RunUpload
from artifacts.removal import UNKNOWN_TIME, remove_unknown
from artifacts.store.contract import StoreError
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, clocks_disagree

PERIOD_SECONDS = 300.0
MOST = 20_000
"""Objects per run."""
_PAGE = 500


class UnknownObjectsSweep:
    """Remembers how far the store is listed."""

    def __init__(self) -> None:
        self._after: ObjectKey | None = None

    def is_needed(self, ports: Ports) -> bool:
        return Artifact.objects.exists() or RunUpload.objects.exists()

    def __call__(self, ports: Ports) -> SweepCount:
        """looked: objects. repaired: removed objects and dropped uploads."""
        if why := clocks_disagree(ports):
            return why
        now, store = ports.clock.now(), ports.artifact_store
        looked = removed = 0
        try:
            objects = store.objects(self._after)
            while looked < MOST and (page := list(islice(objects, _PAGE))):
                looked += len(page)
                removed += remove_unknown(page, store, now)
                self._after = page[-1].key
            if looked < MOST:
                self._after = None
            kept = max(UNKNOWN_TIME, timedelta(seconds=settings.DISPATCHER.artifact_promise_seconds))
            removed += store.drop_unfinished(now - kept)
        except StoreError as error:
            return SweepCount(looked, removed, notes=(f"store: {error}",))
        return SweepCount(looked, removed)
