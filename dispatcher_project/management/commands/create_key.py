from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser
from django.db import transaction
from django.utils import timezone

from dispatcher_project.cli.command import TerminalCommand
from gpus.protocol import BANDS
from gpus.registry.audit import cli_actor
from jobs.domain.access import Scope
from jobs.models import ApiKey, Tenant
from jobs.operations.tenants import create_key, create_tenant, renew_webhook_secret


class Command(TerminalCommand):
    help = "Makes an API key and shows it once; a new tenant's webhook secret too."

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--tenant", required=True, help="whose jobs the key submits")
        parser.add_argument("--operator", action="store_true", help="may also use everything under /admin")
        parser.add_argument("--name", default="", help="what the key is for")
        parser.add_argument(
            "--scope", action="append", choices=[s.value for s in Scope], help="may be repeated"
        )
        parser.add_argument("--model", action="append", help="it may submit to; may be repeated")
        parser.add_argument("--expires-days", type=float, help="from now; default: never")
        parser.add_argument(
            "--new-webhook-secret",
            action="store_true",
            help="of a tenant that exists; the old one stops at once",
        )
        parser.add_argument("--weight", type=float, default=1.0, help="a new tenant's share")
        parser.add_argument(
            "--band", choices=BANDS, default="normal", help="the highest band of a new tenant"
        )
        parser.add_argument("--max-running", type=int, help="jobs of a new tenant at once; default: no limit")

    def act(self, options: dict[str, Any]) -> int | None:
        with transaction.atomic():  # no tenant is left behind without its key
            tenant, secret = Tenant.objects.filter(name=options["tenant"]).first(), None
            if tenant is None:
                tenant, secret = _new_tenant(options)
            elif options["new_webhook_secret"]:
                secret = renew_webhook_secret(tenant, by=cli_actor())
            key, plaintext = create_key(
                tenant,
                ApiKey.Kind.OPERATOR if options["operator"] else ApiKey.Kind.TENANT,
                name=options["name"],
                scopes=options["scope"],
                allowed_models=options["model"],
                expires_at=_in_days(options["expires_days"]),
                by=cli_actor(),
            )
        self.report(
            {"tenant": tenant.name, "prefix": key.prefix, "key": plaintext, "webhook_secret": secret},
            *([] if secret is None else [f"webhook secret: {secret}"]),
            f"api key: {plaintext}",
        )
        return None


def _new_tenant(options: dict[str, Any]) -> tuple[Tenant, str]:
    try:
        return create_tenant(
            options["tenant"],
            weight=options["weight"],
            highest_band=options["band"],
            max_running=options["max_running"],
            by=cli_actor(),
        )
    except ValidationError as error:
        fields = error.message_dict.items()
        raise CommandError("; ".join(f"{field}: {' '.join(texts)}" for field, texts in fields)) from None


def _in_days(days: float | None) -> datetime | None:
    if days is None:
        return None
    try:
        return timezone.now() + timedelta(days=days)
    except (OverflowError, ValueError):
        raise CommandError(f"--expires-days {days:g} is beyond the calendar") from None
