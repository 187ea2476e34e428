"""Objects in the store of artifacts without a row: late or abandoned uploads, results of dead attempts.

The store is listed page by page over many runs. An object that is older than a day and has no row is removed,
and so are uploads that began long ago and did not end. One that was stored while this database was not in use
stays for a day after that: a restored backup may not be the last one. Paused while clocks disagree, and
without the store.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from itertools import islice

from django.conf import settings

from artifacts.keys import ObjectKey
from artifacts.models import Artifact, RunUpload
from artifacts.removal import UNKNOWN_TIME, remove_unknown
from artifacts.store.contract import Store, StoreError
from jobs.models import Attempt
from jobs.ports import Ports
from jobs.sweeps.absences import note_use
from jobs.sweeps.base import SweepCount, clocks_disagree

NAME, PERIOD_SECONDS = "unknown_objects", 300.0
MOST = 20_000
"""Objects per run."""
_PAGE = 500


class UnknownObjectsSweep:
    """Remembers how far the store is listed. most: objects per run, read in pages of `page`."""

    def __init__(self, *, most: int = MOST, page: int = _PAGE) -> None:
        self._most, self._page = most, page
        self._after: ObjectKey | None = None

    def is_needed(self, ports: Ports) -> bool:
        return Artifact.objects.exists() or RunUpload.objects.exists()

    def __call__(self, ports: Ports) -> SweepCount:
        """looked: objects. repaired: removed objects and dropped uploads."""
        if why := clocks_disagree(ports):
            return why
        now, store = ports.clock.now(), ports.artifact_store
        absences = note_use(NAME, now, UNKNOWN_TIME)
        done = SweepCount()
        try:
            objects = store.objects(self._after)
            while (
                done.looked < self._most and not done.failed and (page := list(islice(objects, self._page)))
            ):
                due = [one for one in page if not any(absence.covers(one.stored_at) for absence in absences)]
                found = remove_unknown(due, store, now, _running)
                notes = (f"store: {found.fault}",) if found.fault else ()
                done += SweepCount(len(page), found.removed, found.failed, notes)
                self._after = page[-1].key  # what was not removed is met when the store is next listed
            if done.looked < self._most and not done.failed:
                self._after = None
        except StoreError as error:
            done += SweepCount(notes=(f"store: {error}",))
        return done + _drop_unfinished(store, now)


def _drop_unfinished(store: Store, now: datetime) -> SweepCount:
    kept = max(UNKNOWN_TIME, timedelta(seconds=settings.DISPATCHER.artifact_promise_seconds))
    try:
        return SweepCount(repaired=store.drop_unfinished(now - kept))
    except StoreError as error:
        return SweepCount(notes=(f"store: {error}",))


def _running(attempts: Collection[str]) -> set[str]:
    return set(Attempt.objects.filter(id__in=attempts, finished_at=None).values_list("id", flat=True))
