"""Checks of models, runners, servers, quarantined slots, circuits and pauses."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import cast

from django.db.models import Count, Exists, OuterRef, Q

from artifacts.file_fields import checked_schema
from dispatcher_project.cli.doctor.finding import Finding, Level, View
from dispatcher_project.cli.screen import age, plain
from foundation.foreign_schema import Schema, SchemaRefused
from foundation.program import command_line
from foundation.texts import counted
from gpus.health.circuits import all_circuits
from gpus.models import ModelConfig, Placement, QuarantinedSlot, Server
from gpus.models.server import TOO_LARGE
from gpus.protocol import CircuitKind, DesiredState
from gpus.registry import queries
from gpus.runners.registry import RUNNERS, runner_names
from jobs.domain.states import JobState
from jobs.models import Attempt, Job

UNSEEN_SECONDS = 300.0
_SHOWN = 20


def models(view: View) -> Iterator[Finding]:
    waiting = set(
        Job.objects.filter(state=JobState.QUEUED.value).order_by().values_list("model", flat=True).distinct()
    )
    on = Q(placements__server__desired=DesiredState.ON.value, placements__server__slots__gt=0)
    for model in ModelConfig.objects.annotate(places=Count("placements"), on=Count("placements", filter=on)):
        if model.on:
            continue
        has_jobs = model.name in waiting
        yield Finding(
            Level.ERROR if has_jobs else Level.WARNING,
            f"model {model.name}",
            ("jobs wait and " if has_jobs else "")
            + (
                "no server runs it"
                if not model.places
                else "all its servers are draining, off or without slots"
            ),
            "Its jobs are accepted and wait.",
            f"register a server for it, or `{command_line('on SERVER')}`",
        )
    yield from _too_large(waiting)
    for name in sorted(waiting - set(ModelConfig.objects.values_list("name", flat=True))):
        yield Finding(
            Level.ERROR,
            f"model {name}",
            "jobs wait and it is not registered (any more)",
            "They wait until their deadline, or for ever.",
            "register it again, or cancel them",
        )


def runners(view: View) -> Iterator[Finding]:
    """Installed runners that can't be loaded, and models whose runner is not installed."""
    for one in RUNNERS.unusable():
        yield Finding(
            Level.ERROR,
            f"runner {plain(one.entry, 200)}",
            f"can't be loaded: {plain(one.why, 300)}",
            "No worker can run models of its type.",
            "repair or remove the package, then restart every process",
        )
    waiting = Job.objects.filter(state=JobState.QUEUED.value, model=OuterRef("name"))
    rows = ModelConfig.objects.exclude(model_type__in=runner_names()).exclude(
        placements__server__host__isnull=False
    )
    for model in rows.annotate(waits=Exists(waiting)).order_by("name")[:_SHOWN]:
        yield Finding(
            Level.ERROR if model.waits else Level.WARNING,
            f"model {model.name}",
            ("jobs wait and " if model.waits else "")
            + f"no runner {plain(model.model_type, 64)!r} is installed",
            "Its jobs are accepted and wait.",
            "install the package of the runner, or give the model another model_type",
        )


_EFFECT_OF_BAD_SCHEMA = {
    "payload_schema": "Its submits are refused with 503 model_schema_unusable.",
    "result_schema": "Its jobs fail with output_invalid.",
}


def schemas(view: View) -> Iterator[Finding]:
    for option, effect in _EFFECT_OF_BAD_SCHEMA.items():
        for name, schema in ModelConfig.objects.exclude(**{option: None}).values_list("name", option):
            try:
                checked_schema(cast("Schema", schema))
            except SchemaRefused as refused:
                yield Finding(
                    Level.ERROR,
                    f"model {name}",
                    f"its {option} can't be used: {plain(str(refused), 200)}",
                    effect,
                    "give the model a schema that is accepted",
                )


def _too_large(waiting: set[str]) -> Iterator[Finding]:
    """Models that are too large for every server that has them."""
    for name in sorted(
        Placement.objects.filter(TOO_LARGE).order_by().values_list("model", flat=True).distinct()
    ):
        placements = Placement.objects.filter(model=name)
        if placements.filter(queries.FIT).exists():
            continue
        why = placements.filter(TOO_LARGE).values_list("too_large", flat=True).first()
        yield Finding(
            Level.ERROR if name in waiting else Level.WARNING,
            f"model {name}",
            ("jobs wait and " if name in waiting else "")
            + f"no server is large enough: {plain(why or '', 200)}",
            "Its jobs are accepted and wait, until their deadline to start.",
            "start a worker with a larger GPU (or a larger --budget-mb)",
        )


def servers(view: View) -> Iterator[Finding]:
    unfit = Server.objects.annotate(models=Count("placements")).filter(
        Q(models=0) | Q(healthy=False) | Q(slots=0)
    )
    for one in unfit.order_by("name")[:_SHOWN]:
        yield _server(one)
    seen_before = view.now - timedelta(seconds=UNSEEN_SECONDS)
    runs = Attempt.objects.filter(server=OuterRef("name"), state__in=Attempt.LIVE)
    is_busy = Q(
        Exists(runs), tells_health=False
    )  # a server with one thread answers no health check while it runs a job
    unseen = Server.objects.filter(healthy=True, checked_at__lt=seen_before).exclude(is_busy)
    for server in unseen.order_by("name")[:_SHOWN]:
        assert server.checked_at is not None
        yield Finding(
            Level.WARNING,
            f"server {server.name}",
            f"last had a health check {age((view.now - server.checked_at).total_seconds())} ago",
            "Its displayed state may be out of date.",
            "check that the sweeps worker runs (sweep lock_sync)",
        )
    silent = Server.objects.filter(healthy=True, tells_health=False).order_by("name")
    if names := list(silent.values_list("name", flat=True)[: _SHOWN + 1]):
        more = ", …" if len(names) > _SHOWN else ""
        yield Finding(
            Level.OK,
            "health",
            f"without a health endpoint: {', '.join(names[:_SHOWN])}{more}",
            "They answer and get jobs. A lost run holds its slot there until the server restarts or the "
            "model's run limit passes.",
            f"give the model a health_path; `{command_line('free SERVER/SLOT')}` if nothing runs there",
        )
    total = Server.objects.count()
    if total:
        yield Finding(Level.OK, "servers", f"{counted(total, 'is', 'are')} registered")
    else:
        yield Finding(
            Level.WARNING,
            "servers",
            "none is registered",
            "Jobs are accepted and wait.",
            f"`{command_line('register http://HOST:PORT')}` looks at one and registers it",
        )


def _server(server: Server) -> Finding:
    check = f"server {server.name}"
    if server.healthy is False:
        return Finding(
            Level.ERROR,
            check,
            f"fails its health check: {plain(server.last_error, 300)}",
            "Attempts there fail or are refused; its jobs go to other servers, if there are any.",
            f"check that machine; `{command_line(f'drain {server.name}')}` keeps jobs away meanwhile",
        )
    lacks = "runs no model" if server.slots else "has no slots"
    return Finding(
        Level.WARNING, check, lacks, "It never gets a job.", "register a model on it, or remove it"
    )


def quarantine(view: View) -> Iterator[Finding]:
    rows = QuarantinedSlot.objects.filter(freed_at=None)
    over = rows.filter(until__lt=view.now - timedelta(minutes=1))
    for row in over.order_by("until")[:_SHOWN]:
        yield Finding(
            Level.ERROR,
            f"slot {row.server_id}/{row.slot}",
            f"has been in quarantine for {age((view.now - row.since).total_seconds())}, past its limit",
            "The sweep that frees it does not run, or does not reach Redis.",
            "check the sweeps and redis above",
        )
    for row in rows.filter(until__gte=view.now).select_related("server").order_by("since")[:_SHOWN]:
        yield _suspect(row, view.now)


def _suspect(row: QuarantinedSlot, now: datetime) -> Finding:
    slot = f"{row.server_id}/{row.slot}"
    consequence = (
        "Its GPU may still be busy with a run that no worker controls; it is asked every few seconds."
    )
    free = command_line(f"free {slot}")
    advice = f"restart the server if that run hangs; `{free}` if nothing runs there"
    if row.server.tells_health is False:
        consequence = (
            "Its GPU may still be busy with a lost run, and its server has no health endpoint to ask."
        )
        advice = f"`{free}` if nothing runs there, or restart the server"
    return Finding(
        Level.WARNING,
        f"slot {slot}",
        f"has been in quarantine for {age((now - row.since).total_seconds())} ({plain(row.reason, 60)})",
        consequence,
        f"{advice}; it is free at {row.until:%H:%M} UTC at the latest",
    )


def circuits(view: View) -> Iterator[Finding]:
    for one in all_circuits(view.ports.leases).open[:_SHOWN]:
        circuit = one.circuit
        left = (
            f", one job will try in {age(circuit.left_seconds)}"
            if circuit.left_seconds
            else ", one job will try"
        )
        yield Finding(
            Level.WARNING,
            f"{one.kind} {one.name}",
            f"failed repeatedly: its circuit is {circuit.state.replace('_', ' ')}{left}"
            f" (opened {circuit.opens} times in a row)",
            "Its jobs wait and keep their tries."
            if one.kind is CircuitKind.MODEL
            else "It gets no jobs; other servers take them.",
            f"see its last attempts; once it is repaired, "
            f"`{command_line(f'circuits reset {one.kind} {one.name}')}` closes the circuit",
        )


def pauses(view: View) -> Iterator[Finding]:
    for pause in queries.pauses():
        target = f"{pause.kind} {pause.name}".strip()
        yield Finding(
            Level.WARNING,
            f"pause {target}",
            f"for {age((view.now - pause.since).total_seconds())}, by {plain(pause.actor)}"
            + (f": {plain(pause.reason, 100)}" if pause.reason else ""),
            "None of its jobs starts.",
            f"`{command_line(f'resume {target}')}` ends the pause",
        )
