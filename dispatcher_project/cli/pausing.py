"""The commands `pause` and `resume`."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

import jobs.ports
from dispatcher_project.cli.command import TerminalCommand, tenant_named
from gpus.models import Pause
from gpus.registry.audit import cli_actor
from gpus.registry.controls import Changed, pause, resume
from jobs.operations.tenants import pause_tenant, resume_tenant


class PauseCommand(TerminalCommand):
    """pauses: True for `pause`, False for `resume`."""

    pauses: bool

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument(
            "kind", choices=[kind.value for kind in Pause.Kind], help="what to pause or resume"
        )
        parser.add_argument("name", nargs="?", default="", help="of the model or tenant")
        if self.pauses:
            parser.add_argument("--reason", default="", help="shown beside the pause")
            self.add_yes(parser)

    def act(self, options: dict[str, Any]) -> int | None:
        kind, name = Pause.Kind(options["kind"]), options["name"]
        if (kind is Pause.Kind.SYSTEM) == bool(name):
            verb = "pause" if self.pauses else "resume"
            raise CommandError(
                f"`{verb} system` takes no name"
                if name
                else f"name the {kind.value}: `{verb} {kind.value} NAME`"
            )
        if self.pauses and kind is Pause.Kind.SYSTEM:
            self.confirm("pause the whole system, so that no job starts on any server?", options)
        changed = self._change(kind, name, options.get("reason", ""))
        target = f"{kind.value} {name}".strip()
        done, already = ("paused", "is paused already") if self.pauses else ("resumed", "is not paused")
        self.report(
            {"kind": kind.value, "name": name, "paused": self.pauses, "changed": changed.changed,
             "mirrored": changed.mirrored},
            f"{target} {done}" if changed.changed else f"{target} {already}: nothing changed",
            *([] if changed.mirrored else ["Redis does not answer: this takes effect once Redis is back"]),
        )  # fmt: skip
        return None

    def _change(self, kind: Pause.Kind, name: str, reason: str) -> Changed:
        ports, by = jobs.ports.production_ports(), cli_actor()
        if kind is Pause.Kind.TENANT:
            tenant = tenant_named(name)
            if self.pauses:
                changed = pause_tenant(tenant, by=by, ports=ports, reason=reason)
            else:
                changed = resume_tenant(tenant, by=by, ports=ports)
        elif self.pauses:
            changed = pause(kind, name, by=by, reason=reason, leases=ports.leases)
        else:
            changed = resume(kind, name, by=by, leases=ports.leases)
        ports.send_wakes(changed.wakes)
        return changed
