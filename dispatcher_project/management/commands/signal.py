from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

import jobs.ports
from dispatcher_project.cli.command import TerminalCommand, tenant_named
from dispatcher_project.cli.runs import find_run
from dispatcher_project.management.commands.submit import read_payload
from foundation.texts import counted
from gpus.registry.audit import cli_actor
from jobs.api.submit import keyed_request
from jobs.models import Tenant
from workflows.domain.plan import NodeKind
from workflows.models import Wait
from workflows.operations.signals import send_signal

TAKEN_BY_NONE = 1
_NAMED = 20
"""Tenants that an error names."""


class Command(TerminalCommand):
    help = (
        "Send a signal to the runs that wait for it; one that no run waits for is not kept. Exit status 1 if "
        "no node took it."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("name", metavar="NAME", help="name of the signal")
        parser.add_argument(
            "body", nargs="?", metavar="BODY", help="JSON; - reads standard input, @FILE a file"
        )
        parser.add_argument("--run", metavar="ID", help="only to this run")
        parser.add_argument(
            "--tenant",
            help="to this tenant's runs (default: the only tenant whose runs wait for it; operator if none "
            "does)",
        )
        parser.add_argument(
            "--idempotency-key", metavar="KEY", help="sent again with the same key, it ends no further waits"
        )

    def act(self, options: dict[str, Any]) -> int | None:
        body = None if options["body"] is None else read_payload(options["body"])
        run = None if options["run"] is None else find_run(options["run"])
        if run is not None and options["tenant"]:
            raise CommandError("give --run or --tenant, not both")
        tenant = run.tenant if run is not None else _tenant(options["tenant"], options["name"])
        name, run_id = options["name"][:64], None if run is None else run.id
        taken = send_signal(
            tenant.pk,
            name,
            body,
            run_id=run_id,
            idempotency_key=keyed_request(options["idempotency_key"], [name, body, run_id]),
            ports=jobs.ports.production_ports(),
            by=cli_actor(),
        ).taken
        self.report({"taken": taken}, f"taken by {counted(taken, 'node')} of {tenant.name}")
        return None if taken else TAKEN_BY_NONE


def _tenant(given: str | None, signal: str) -> Tenant:
    """Return the given tenant; else the only one whose runs wait for the signal, or the default one. Raises
    CommandError."""
    if given is None:
        of_wait = Wait.objects.filter(kind=NodeKind.SIGNAL.value, signal=signal, answered_at=None)
        waiting = Tenant.objects.filter(pk__in=of_wait.values("node__run__tenant_id"))
        names = list(waiting.order_by("name").values_list("name", flat=True)[:_NAMED])
        if len(names) > 1:
            raise CommandError(f"name a tenant with --tenant: runs of {', '.join(names)} wait for {signal}")
        given = names[0] if names else None
    return tenant_named(given)
