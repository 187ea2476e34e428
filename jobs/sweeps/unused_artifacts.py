"""Artifacts that have expired and that no job uses.

They get a tombstone, and are removed an hour later if they are still unused; a new use clears the tombstone.
Interrupted removals are finished. The rows of removed ones stay for the retention time, with their hashes.
Paused while clocks disagree, and without the store. Changes of tenants' bytes are merged at all times.
"""

from __future__ import annotations

from artifacts.models import Artifact, ByteChange, RunUpload
from artifacts.quota import merge_changes
from artifacts.removal import announce_unused, forget_gone, forget_uploads, remove_announced
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, clocks_disagree

PERIOD_SECONDS = 60.0
MOST = 2000
"""Rows of each step per run."""


def is_needed(ports: Ports) -> bool:
    return any(kind.objects.exists() for kind in (Artifact, RunUpload, ByteChange))


def sweep(ports: Ports, *, most: int = MOST) -> SweepCount:
    """looked: announced artifacts. repaired: removed objects, tombstones and forgotten rows."""
    merge_changes()
    if why := clocks_disagree(ports):
        return why
    now = ports.clock.now()
    marked = announce_unused(now, most) + forget_gone(now, most) + forget_uploads(now, most)
    done = remove_announced(ports.artifact_store, now, most)
    notes = (f"store: {done.fault}",) if done.fault else ()
    return SweepCount(done.looked, done.removed + marked, done.failed, notes)
