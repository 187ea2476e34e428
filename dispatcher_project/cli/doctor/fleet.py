"""Models and servers: who has nobody, who is ill, who is held back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import cast

from django.db.models import Count, Exists, OuterRef, Q

from dispatcher_project.cli.doctor.finding import Finding, Level, View
from dispatcher_project.cli.screen import age, plain
from foundation.foreign_schema import Schema, SchemaRefused, compiled
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
                "no server has it"
                if not model.places
                else "all its servers are drained, off or without slots"
            ),
            "Its jobs are accepted and wait.",
            "register a server for it, or `python3 manage.py on SERVER`",
        )
    yield from _too_large(waiting)
    for name in sorted(waiting - set(ModelConfig.objects.values_list("name", flat=True))):
        yield Finding(
            Level.ERROR,
            f"model {name}",
            "jobs wait and nobody registered it (any more)",
            "They wait for ever, or for their deadlines.",
            "register it again, or cancel them",
        )


def runners(view: View) -> Iterator[Finding]:
    """Packages whose runner can't be used, and models whose runner is not installed."""
    for one in RUNNERS.unusable():
        yield Finding(
            Level.ERROR,
            f"runner {plain(one.entry, 200)}",
            f"can't be used: {plain(one.why, 300)}",
            "Models of its type are run by nobody.",
            "mend or remove the package, and start everything again",
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
            "install the package that brings the runner, or give the model another model_type",
        )


def schemas(view: View) -> Iterator[Finding]:
    for name, schema in ModelConfig.objects.exclude(payload_schema=None).values_list(
        "name", "payload_schema"
    ):
        try:
            compiled(cast("Schema", schema))
        except SchemaRefused as refused:
            yield Finding(
                Level.ERROR,
                f"model {name}",
                f"its payload_schema can't be used: {plain(str(refused), 200)}",
                "Its submits are refused with 503 model_schema_unusable.",
                "configure the model with a schema that is accepted",
            )


def _too_large(waiting: set[str]) -> Iterator[Finding]:
    """Models that fit on some server are only said of while jobs wait that none could take."""
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
    ill = Server.objects.annotate(models=Count("placements")).filter(
        Q(models=0) | Q(healthy=False) | Q(slots=0)
    )
    for one in ill.order_by("name")[:_SHOWN]:
        yield _server(one)
    seen_before = view.now - timedelta(seconds=UNSEEN_SECONDS)
    runs = Attempt.objects.filter(server=OuterRef("name"), state__in=Attempt.LIVE)
    is_busy = Q(Exists(runs), tells_health=False)  # one of a single thread answers nothing meanwhile
    unseen = Server.objects.filter(healthy=True, checked_at__lt=seen_before).exclude(is_busy)
    for server in unseen.order_by("name")[:_SHOWN]:
        assert server.checked_at is not None
        yield Finding(
            Level.WARNING,
            f"server {server.name}",
            f"was last asked for its health {age((view.now - server.checked_at).total_seconds())} ago",
            "What is shown of it is old.",
            "see that the sweeps worker runs (sweep lock_sync)",
        )
    silent = Server.objects.filter(healthy=True, tells_health=False).order_by("name")
    if names := list(silent.values_list("name", flat=True)[: _SHOWN + 1]):
        more = ", …" if len(names) > _SHOWN else ""
        yield Finding(
            Level.OK,
            "health",
            f"without a health endpoint: {', '.join(names[:_SHOWN])}{more}",
            "They answer and are given work. A lost run holds its slot there until the server restarts, or "
            "for the model's run limit.",
            "give the model a health_path; `python3 manage.py free SERVER/SLOT` if nothing runs there",
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
            "register one: README.md, “Put a model behind it”",
        )


def _server(server: Server) -> Finding:
    check = f"server {server.name}"
    if server.healthy is False:
        return Finding(
            Level.ERROR,
            check,
            f"does not answer its health question: {plain(server.last_error, 300)}",
            "Attempts there fail or are refused; its jobs go to other servers where there are some.",
            f"look at that machine; `python3 manage.py drain {server.name}` keeps work away meanwhile",
        )
    lacks = "runs no model" if server.slots else "has no slots"
    return Finding(
        Level.WARNING, check, lacks, "It is never given anything.", "register a model on it, or remove it"
    )


def quarantine(view: View) -> Iterator[Finding]:
    rows = QuarantinedSlot.objects.filter(freed_at=None)
    over = rows.filter(until__lt=view.now - timedelta(minutes=1))
    for row in over.order_by("until")[:_SHOWN]:
        yield Finding(
            Level.ERROR,
            f"slot {row.server_id}/{row.slot}",
            f"is quarantined past its limit, since {age((view.now - row.since).total_seconds())}",
            "The sweep that frees it does not run or does not reach Redis.",
            "see the sweeps and redis above",
        )
    for row in rows.filter(until__gte=view.now).select_related("server").order_by("since")[:_SHOWN]:
        yield _suspect(row, view.now)


def _suspect(row: QuarantinedSlot, now: datetime) -> Finding:
    slot = f"{row.server_id}/{row.slot}"
    means = "Its GPU may still be busy with a run that nobody waits for; it is asked every few seconds."
    todo = f"restart the server if that run hangs; `python3 manage.py free {slot}` if nothing runs there"
    if row.server.tells_health is False:
        means = "Its GPU may still be busy with a lost run, and its server has no health endpoint to ask."
        todo = f"`python3 manage.py free {slot}` if nothing runs there, or restart the server"
    return Finding(
        Level.WARNING,
        f"slot {slot}",
        f"is quarantined since {age((now - row.since).total_seconds())} ({plain(row.reason, 60)})",
        means,
        f"{todo}; at the latest it is free at {row.until:%H:%M} UTC",
    )


def circuits(view: View) -> Iterator[Finding]:
    for one in all_circuits(view.ports.leases).open[:_SHOWN]:
        circuit = one.circuit
        left = (
            f", one job tries in {age(circuit.left_seconds)}" if circuit.left_seconds else ", one job tries"
        )
        yield Finding(
            Level.WARNING,
            f"{one.kind} {one.name}",
            f"failed again and again: its circuit is {circuit.state.replace('_', ' ')}{left}"
            f" (opened {circuit.opens} times in a row)",
            "Its jobs wait and keep their tries."
            if one.kind is CircuitKind.MODEL
            else "It is given nothing; other servers take its work.",
            "see its last attempts; once it is mended, close the circuit on its admin page",
        )


def pauses(view: View) -> Iterator[Finding]:
    for pause in queries.pauses():
        what = f"{pause.kind} {pause.name}".strip()
        yield Finding(
            Level.WARNING,
            f"pause {what}",
            f"since {age((view.now - pause.since).total_seconds())} by {plain(pause.actor)}"
            + (f": {plain(pause.reason, 100)}" if pause.reason else ""),
            "No job of it is started.",
            f"`python3 manage.py resume {what}` ends the pause",
        )
