"""Fires a schedule at once."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction
from django.db.models import F

from foundation.database import statements
from foundation.ids import new_id
from jobs.ports import Ports
from workflows.domain.errors import UnknownSchedule
from workflows.execution.model_access import KeyModels
from workflows.schedules.domain.policy import Outcome
from workflows.schedules.execution.launch import Launched, StartRefused, check, insert, prepare
from workflows.schedules.models import Firing, Schedule
from workflows.schedules.operations.request_keys import RequestKey, earlier_firing
from workflows.schedules.operations.writes import audit


@dataclass(frozen=True, slots=True)
class Triggered:
    """The firing of a trigger. replayed: that of an earlier request with the same key."""

    firing: Firing
    replayed: bool = False


def trigger(
    schedule: Schedule,
    *,
    by: str,
    ports: Ports,
    idempotency_key: RequestKey | None = None,
    key_models: KeyModels = None,
    operator: str | None = None,
) -> Triggered:
    """Start the target of a schedule now, also while it is paused or an earlier firing runs. key_models:
    models that the API key may submit to; None: all of the tenant's. operator: for the audit. Raises
    Refused."""
    request = idempotency_key.of("trigger") if idempotency_key is not None else new_id()
    if idempotency_key is not None and (earlier := earlier_firing(schedule, request)) is not None:
        return Triggered(earlier, replayed=True)
    now = ports.clock.now()
    launch = prepare(schedule, now, ports, key_models)
    (refused,) = check([launch], ports)
    if refused is not None:
        raise refused
    launched = Launched()
    firing = Firing(
        id=new_id(now.timestamp()),
        schedule=schedule,
        due_at=now,
        backfill=request,
        by=by[:200],
        outcome=Outcome.STARTED.value,
        at=now,
    )
    with transaction.atomic():
        if not Schedule.objects.filter(pk=schedule.pk).update(version=F("version") + 1):
            raise UnknownSchedule
        # the update above is a lock
        if idempotency_key is not None and (earlier := earlier_firing(schedule, request)) is not None:
            return Triggered(earlier, replayed=True)
        try:
            insert([(firing, launch)], launched, ports)
        except StartRefused as error:
            raise error.refused from None
        statements.insert(firing)
        audit(operator, "trigger", schedule, firing=firing.id)
    launched.announce(ports)
    return Triggered(firing)
