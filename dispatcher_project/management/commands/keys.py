from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from dispatcher_project.cli.arguments import positive
from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.screen import table
from foundation.program import command_line
from gpus.registry.audit import cli_actor
from jobs.models import ApiKey
from jobs.operations.tenants import revoke_key, rotate_key


class Command(TerminalCommand):
    help = (
        "List API keys, rotate one (old and new work side by side for a while) or revoke one. Keys are named "
        "by their prefix; a new key is printed once. `create_key` creates a tenant's first."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument(
            "action", nargs="?", default="list", choices=["list", "rotate", "revoke"], help="default: list"
        )
        parser.add_argument("prefix", nargs="?", help="of the key to rotate or revoke")
        parser.add_argument("--tenant", help="list only this tenant's keys")
        parser.add_argument(
            "--overlap-hours",
            type=positive,
            default=24,
            help="time a rotated key still works (default 24)",
        )
        self.add_yes(parser)

    def act(self, options: dict[str, Any]) -> int | None:
        if options["action"] == "list":
            self._list(options["tenant"])
            return None
        key = ApiKey.objects.select_related("tenant").filter(prefix=options["prefix"] or "").first()
        if key is None:
            raise CommandError(
                f"no key has the prefix {options['prefix']!r}: `{command_line('keys')}` lists them"
                if options["prefix"]
                else f"name a key: `keys {options['action']} PREFIX`; `{command_line('keys')}` lists them"
            )
        if options["action"] == "revoke":
            self.confirm(f"revoke key {key.prefix} ({key.name}) of {key.tenant}?", options)
            revoked = revoke_key(key, by=cli_actor())
            text = f"{key.prefix} revoked" if revoked else f"{key.prefix} is revoked already: nothing changed"
            self.report({"prefix": key.prefix, "revoked": True}, text)
            return None
        hours = options["overlap_hours"]
        new, plaintext = rotate_key(key, overlap_seconds=hours * 3600.0, by=cli_actor())
        self.report(
            {"prefix": new.prefix, "key": plaintext, "replaces": key.prefix, "overlap_hours": hours},
            f"api key: {plaintext}",
            f"{key.prefix} still works, for {hours} hours at most",
        )
        return None

    def _list(self, tenant: str | None) -> None:
        rows = ApiKey.objects.select_related("tenant", "rotated_to").order_by("tenant__name", "created")
        rows = rows.filter(tenant__name=tenant) if tenant else rows
        if self.as_json:
            self.print_json([_document(row) for row in rows])
        elif rows:
            self.show(table(_HEAD, [_cells(row) for row in rows], gives_way=("models", "")))
        else:
            self.print(f"no keys: `{command_line('create_key --tenant NAME')}` makes one")


def _document(row: ApiKey) -> dict[str, Any]:
    return {
        "prefix": row.prefix,
        "tenant": row.tenant.name,
        "name": row.name,
        "kind": str(row.kind),
        "scopes": row.scopes,
        "allowed_models": row.allowed_models,
        "expires_at": row.expiry_date,
        "last_used_at": row.last_used_at,
        "revoked": row.revoked,
        "rotated_to": row.rotated_to.prefix if row.rotated_to else None,
    }


_HEAD = ("prefix", "tenant", "kind", "state", "expires", "last used", "may", "models", "")


def _cells(row: ApiKey) -> tuple[str, ...]:
    state = "revoked" if row.revoked else "expired" if row.has_expired else "valid"
    used = f"{row.last_used_at:%Y-%m-%d %H:%M}" if row.last_used_at else "never"
    may = ",".join(row.scopes) if row.scopes else "all"
    expires = f"{row.expiry_date:%Y-%m-%d %H:%M}" if row.expiry_date else "never"
    models = "all" if row.allowed_models is None else ",".join(row.allowed_models) or "none"
    return row.prefix, row.tenant.name, str(row.kind), state, expires, used, may, models, row.name
