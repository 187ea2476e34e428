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
    help = (
        "Create an API key and print it, once. A tenant that does not exist yet is created too, and its "
        "webhook secret printed."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--tenant", required=True, help="the tenant whose jobs the key submits")
        parser.add_argument("--operator", action="store_true", help="allow /api/v1/admin too")
        parser.add_argument("--name", default="", help="what the key is for")
        parser.add_argument(
            "--scope",
            action="append",
            choices=[scope.value for scope in Scope],
            help="limit the key to this scope; may be repeated",
        )
        parser.add_argument("--model", action="append", help="limit submits to this model; may be repeated")
        parser.add_argument("--expires-days", type=float, metavar="DAYS", help="expiry (default: never)")
        parser.add_argument(
            "--new-webhook-secret",
            action="store_true",
            help="replace the webhook secret of an existing tenant; the old one stops working at once",
        )
        parser.add_argument("--weight", type=float, default=1.0, help="share of a new tenant (default 1)")
        parser.add_argument(
            "--band",
            choices=BANDS,
            default="normal",
            help="highest band of a new tenant (default normal)",
        )
        parser.add_argument(
            "--max-running", type=int, help="running jobs of a new tenant (default: no limit)"
        )

    def act(self, options: dict[str, Any]) -> int | None:
        with transaction.atomic():  # no tenant without its key
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
        raise CommandError(f"--expires-days {days:g} is too long: the date is out of range") from None
