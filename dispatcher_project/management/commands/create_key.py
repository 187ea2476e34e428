from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser
from django.db import transaction
from django.db.models import IntegerField
from django.utils import timezone

import jobs.ports
from dispatcher_project.cli.command import TerminalCommand
from foundation.http_api.json_body import BodyType, read_body
from foundation.http_api.problems import Problem
from gpus.models import ModelConfig
from gpus.protocol import BANDS
from gpus.registry.audit import cli_actor
from jobs.api import bodies
from jobs.domain.access import Scope
from jobs.models import ApiKey, Tenant
from jobs.models.tenant import rule_text
from jobs.operations.tenants import (
    CHANGEABLE,
    RULES,
    create_key,
    create_tenant,
    renew_webhook_secret,
    sync_rules,
    write_rules,
)


class Command(TerminalCommand):
    help = (
        "Create an API key and print it, once. A tenant that does not exist yet is created too, and its "
        "webhook secret printed. Limits that are given become the tenant's; `none` ends one."
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
        for rule in _LIMITS:
            text = f"of the tenant: {rule_text(rule, without='none')}"
            parser.add_argument(_option(rule), dest=rule, type=_or_none(_kind(rule)), metavar="N", help=text)
        parser.add_argument(
            "--band",
            dest="highest_band",
            choices=BANDS,
            help="of the tenant: highest band (default normal)",
        )
        parser.add_argument(
            "--tenant-model",
            dest="tenant_models",
            action="append",
            metavar="NAME",
            help="of the tenant: may submit to this model; may be repeated; `none` ends the restriction",
        )

    def act(self, options: dict[str, Any]) -> int | None:
        rules, by = _rules(options), cli_actor()
        body = _checked(
            bodies.KeyBody,
            {"name": options["name"], "scopes": options["scope"], "allowed_models": options["model"]},
        )
        is_changed = False
        with transaction.atomic():  # no tenant without its key, no limits without either
            tenant, secret = Tenant.objects.filter(name=options["tenant"]).first(), None
            try:
                if tenant is None:
                    tenant, secret = _new_tenant(options["tenant"], rules)
                elif rules:
                    tenant, is_changed = write_rules(tenant.name, rules, by=by)
            except ValidationError as error:
                fields = error.message_dict.items()
                text = "; ".join(f"{field}: {' '.join(texts)}" for field, texts in fields)
                raise CommandError(text) from None
            if secret is None and options["new_webhook_secret"]:
                secret = renew_webhook_secret(tenant, by=by)
            key, plaintext = create_key(
                tenant,
                ApiKey.Kind.OPERATOR if options["operator"] else ApiKey.Kind.TENANT,
                name=body.name,
                scopes=body.scopes,
                allowed_models=body.allowed_models,
                expires_at=_in_days(options["expires_days"]),
                by=by,
            )
        mirrored = True
        if is_changed:
            ports = jobs.ports.production_ports()
            wakes, mirrored = sync_rules(tenant.pk, ports.leases)
            ports.send_wakes(wakes)
        later = "" if mirrored else "; Redis does not answer: it takes effect once Redis is back"
        self.report(
            {
                "tenant": tenant.name,
                "prefix": key.prefix,
                "key": plaintext,
                "webhook_secret": secret,
                "limits_changed": is_changed,
                "live": mirrored,
            },
            *([f"limits of {tenant.name} changed{later}"] if is_changed else []),
            *([] if secret is None else [f"webhook secret: {secret}"]),
            f"api key: {plaintext}",
        )
        self._warn_of_unknown_models([*(options["model"] or ()), *(rules.get("allowed_models") or ())])
        return None

    def _warn_of_unknown_models(self, names: list[str]) -> None:
        known = set(ModelConfig.objects.filter(name__in=names).values_list("name", flat=True))
        unknown = sorted(set(names) - known)
        if unknown:
            self.stderr.write(
                f"warning: no model is registered as {', '.join(unknown)}; a key may name one before it is"
            )


_NONE = "none"
_NAMES = {"submits_per_second": "--rate", "submit_burst": "--burst"}
"""Options that are not named after their rule."""
_LIMITS = tuple(rule for rule in CHANGEABLE if rule not in ("highest_band", "allowed_models"))
"""The tenant's rules that are numbers, each with an option. The value `none` ends a limit."""


def _option(rule: str) -> str:
    return _NAMES.get(rule) or f"--{rule.replace('_', '-')}"


def _kind(rule: str) -> Callable[[str], float]:
    return int if isinstance(Tenant._meta.get_field(rule), IntegerField) else float


def _or_none(kind: Callable[[str], float]) -> Callable[[str], float | str]:
    def read(text: str) -> float | str:
        return _NONE if text == _NONE else kind(text)

    read.__name__ = "whole number" if kind is int else "number"  # argparse names it in errors
    return read


def _rules(options: dict[str, Any]) -> dict[str, Any]:
    """The tenant's rules among the options, as PATCH of a tenant takes them. Raises CommandError."""
    given = {rule: options[rule] for rule in _LIMITS}
    models = options["tenant_models"]
    given |= {
        "highest_band": options["highest_band"],
        "allowed_models": _NONE if models == [_NONE] else models,
    }
    values = {name: None if value == _NONE else value for name, value in given.items() if value is not None}
    return _checked(bodies.TenantChange, values).given() if values else {}


def _checked(body: type[BodyType], values: dict[str, Any]) -> BodyType:
    """The values, checked like the API's body. Raises CommandError."""
    try:
        return read_body(body, values)
    except Problem as problem:
        errors = (f"{error.pointer.removeprefix('/')}: {error.detail}" for error in problem.errors)
        raise CommandError(" ".join(errors) or problem.detail) from None


def _new_tenant(name: str, rules: dict[str, Any]) -> tuple[Tenant, str]:
    of_leases = {field: value for field, value in rules.items() if field in RULES}
    limits = {field: value for field, value in rules.items() if field not in RULES}
    return create_tenant(name, **of_leases, limits=limits, by=cli_actor())


def _in_days(days: float | None) -> datetime | None:
    if days is None:
        return None
    if not days > 0:
        raise CommandError(f"--expires-days {days:g}: must be greater than 0, or the key would be expired")
    try:
        return timezone.now() + timedelta(days=days)
    except (OverflowError, ValueError):
        raise CommandError(f"--expires-days {days:g} is too long: the date is out of range") from None
