"""Absences: times at which the database was not in use, because its dispatcher was stopped, or because the
database is new or a restored backup. Objects that came into the store meanwhile may belong to rows that are
restored later, so `unknown_objects` leaves them for a day from the end of an absence.

The absences are stored in the note of one row of `SweepRun`, which a restored database has as of its backup.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from jobs.models import SweepRun
from jobs.sweeps.base import ABSENCES

SHORTEST = timedelta(hours=1)
MARGIN = timedelta(minutes=15)
"""Clocks of the store and of the dispatcher may differ by so much."""
_MOST = 8
_EVER = datetime(1970, 1, 1, tzinfo=UTC)


class Absence(NamedTuple):
    since: datetime
    until: datetime

    def covers(self, at: datetime) -> bool:
        return self.since - MARGIN <= at <= self.until + MARGIN


def note_use(sweep: str, now: datetime, kept: timedelta) -> list[Absence]:
    """Return the absences that ended less than `kept` ago; note a new one if `sweep` did not run for
    `SHORTEST`, or never."""
    rows = {row.name: row for row in SweepRun.objects.filter(name__in=(sweep, ABSENCES))}
    known = json.loads(rows[ABSENCES].note) if ABSENCES in rows else []
    found = [Absence(*(datetime.fromtimestamp(at, UTC) for at in one)) for one in known]
    last = max((row.at for row in rows.values()), default=_EVER)
    if now - last > SHORTEST:
        found.append(Absence(last, now))
    found = [one for one in found if now < one.until + kept][-_MOST:]
    note = json.dumps([[int(one.since.timestamp()), int(one.until.timestamp())] for one in found])
    SweepRun.objects.update_or_create(name=ABSENCES, defaults={"at": now, "note": note})
    return found
