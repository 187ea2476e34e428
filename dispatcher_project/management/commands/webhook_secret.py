from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from dispatcher_project.cli.arguments import positive
from dispatcher_project.cli.command import TerminalCommand, tenant_named
from foundation.secrets import SecretUnreadable
from gpus.registry.audit import cli_actor
from jobs.operations.tenants import read_webhook_secrets, renew_webhook_secret


class Command(TerminalCommand):
    help = "Show the secret that signs a tenant's callbacks, or renew it. Both are in the audit log."

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("tenant")
        parser.add_argument("--renew", action="store_true", help="make a new one")
        parser.add_argument(
            "--overlap-hours",
            type=positive,
            default=24,
            help="time for which callbacks carry a signature by the old one, too (default 24)",
        )
        self.add_yes(parser)

    def act(self, options: dict[str, Any]) -> int | None:
        tenant = tenant_named(options["tenant"])
        if options["renew"]:
            hours = options["overlap_hours"]
            self.confirm(
                f"renew the webhook secret of {tenant}? The old one works for {hours} hours", options
            )
            renew_webhook_secret(tenant, overlap_seconds=hours * 3600.0, by=cli_actor())
        try:
            secrets = read_webhook_secrets(tenant, timezone.now(), by=cli_actor())
        except SecretUnreadable as error:
            raise CommandError(f"{error}: set the secret key of this installation, or use --renew") from None
        until = tenant.webhook_secret_before_until if len(secrets) > 1 else None
        self.report(
            {"tenant": tenant.name, "webhook_secrets": secrets, "old_until": until},
            *secrets[:1],
            *(f"{old} signs, too, until {until:%Y-%m-%d %H:%M} UTC" for old in secrets[1:]),
        )
        return None
