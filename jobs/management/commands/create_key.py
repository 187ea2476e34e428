"""`manage.py create_key --tenant acme [--operator]`: makes an API key, and the tenant if it is new."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from gpus.protocol import BANDS
from gpus.registry.audit import cli_actor
from jobs.domain.errors import Refused
from jobs.domain.scopes import Scope
from jobs.models import ApiKey, Tenant
from jobs.operations.api_keys import create_key
from jobs.operations.tenants import create_tenant


class Command(BaseCommand):
    help = "Makes an API key and shows it once; a new tenant's webhook secret too."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--tenant", required=True, help="whose jobs the key submits")
        parser.add_argument("--operator", action="store_true", help="may also use everything under /admin")
        parser.add_argument("--name", default="", help="what the key is for")
        parser.add_argument(
            "--scope", action="append", choices=[s.value for s in Scope], help="may be repeated"
        )
        parser.add_argument("--model", action="append", help="it may submit to; may be repeated")
        parser.add_argument("--expires-days", type=float, help="from now; default: never")
        parser.add_argument("--weight", type=float, default=1.0, help="a new tenant's share")
        parser.add_argument(
            "--band", choices=BANDS, default="normal", help="the highest band of a new tenant"
        )
        parser.add_argument("--max-running", type=int, help="jobs of a new tenant at once; default: no limit")

    def handle(self, *args: Any, **options: Any) -> None:
        tenant = Tenant.objects.filter(name=options["tenant"]).first()
        if tenant is None:
            try:
                tenant, secret = create_tenant(
                    options["tenant"],
                    weight=options["weight"],
                    highest_band=options["band"],
                    max_running=options["max_running"],
                    by=cli_actor(),
                )
            except ValidationError as error:
                raise CommandError("; ".join(error.messages)) from None
            self.stdout.write(f"webhook secret: {secret}")
        kind = ApiKey.Kind.OPERATOR if options["operator"] else ApiKey.Kind.TENANT
        try:
            _, plaintext = create_key(
                tenant,
                kind,
                name=options["name"],
                scopes=options["scope"],
                allowed_models=options["model"],
                expires_at=_in_days(options["expires_days"]),
                by=cli_actor(),
            )
        except Refused as refused:
            raise CommandError(str(refused)) from None
        self.stdout.write(f"api key: {plaintext}")


def _in_days(days: float | None) -> datetime | None:
    if days is None:
        return None
    try:
        return timezone.now() + timedelta(days=days)
    except (OverflowError, ValueError):
        raise CommandError(f"--expires-days {days:g} is beyond the calendar") from None
