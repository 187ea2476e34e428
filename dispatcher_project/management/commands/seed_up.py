from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError
from kombu.exceptions import OperationalError as BrokerError
from redis.exceptions import RedisError

import jobs.ports
from artifacts.checks import check_store
from dispatcher_project.celery import app
from dispatcher_project.cli.doctor.parts import (
    SECRETS_REMEDY,
    about_secrets,
    unreadable_secrets,
    webhook_secrets,
)
from dispatcher_project.supervisor import demo_workflow
from dispatcher_project.supervisor.children import DEMO_FLEET
from dispatcher_project.supervisor.data_folder import ADMIN_IS_ANOTHERS, NEW_WEBHOOK_SECRETS, DataFolder
from gpu_host.node.config import TOKEN_VARIABLE
from gpus.leasing.connect import connect
from gpus.models import ModelConfig
from gpus.registry.audit import cli_actor
from gpus.registry.registry import register_server
from jobs.models import ApiKey, Tenant
from jobs.operations.tenants import create_key, create_tenant
from workflows.models import Workflow

_ADMIN = "admin"


class Command(BaseCommand):
    help = (
        "A step of `up`: migrate, create the admin login and one key of each kind, register the demo fleet."
    )
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        if wrong := check_store(None):  # S3 without its package
            raise CommandError(str(wrong[0].msg))
        try:
            call_command("migrate", verbosity=0, interactive=False)
        except OperationalError as error:
            raise CommandError(f"cannot use the database of DATABASE_URL: {error}") from None
        _require_redis_and_broker()
        _require_secret_key()
        folder = DataFolder(Path(settings.DATA_DIR))
        known = folder.read("secrets.json")
        known[ADMIN_IS_ANOTHERS] = not _keep_admin(known["admin_password"])
        operator, demo = _tenant("operator", known), _tenant("demo", known)
        known["api_key"] = _kept_key(known.get("api_key"), operator, ApiKey.Kind.OPERATOR)
        known["tenant_key"] = _kept_key(known.get("tenant_key"), demo, ApiKey.Kind.TENANT)
        folder.write("secrets.json", known)
        servers = folder.read(DEMO_FLEET).get("servers", [])
        _register(servers, os.environ.get(TOKEN_VARIABLE, ""))
        if servers:
            _store_workflow(demo)


def _keep_admin(password: str) -> bool:
    """Create the admin login if there is none. Return whether it has this password: an operator may have set
    another one, which stays."""
    users = get_user_model().objects
    admin = users.filter(username=_ADMIN).first()
    if admin is None:
        users.create_superuser(_ADMIN, "", password)
        return True
    return admin.check_password(password)


def _require_redis_and_broker() -> None:
    """Raise CommandError if one does not answer: at the start the likely reason is a wrong URL."""
    try:
        connect(settings.REDIS_URL).ping()
    except (RedisError, ValueError) as error:
        raise CommandError(f"cannot use the Redis of REDIS_URL: {error}") from None
    with app.connection_for_write() as connection:
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=5)
        except (BrokerError, *connection.connection_errors, *connection.channel_errors) as error:
            raise CommandError(f"cannot use the broker of BROKER_URL: {error}") from None


def _require_secret_key() -> None:
    """Raise CommandError if every webhook secret in the database was stored under another secret key:
    callbacks would fail, and new secrets would be stored under this key beside the old ones."""
    stored = webhook_secrets()
    unreadable = unreadable_secrets(stored)
    if stored and len(unreadable) == len(stored):
        raise CommandError(f"{about_secrets(unreadable, len(stored))}: {SECRETS_REMEDY}")


def _tenant(name: str, known: dict[str, Any]) -> Tenant:
    """Get or create a tenant. A new webhook secret stays in `known` until `up` has printed it, once."""
    tenant = Tenant.objects.filter(name=name).first()
    if tenant is None:
        # the examples of the docs use every priority
        tenant, secret = create_tenant(name, highest_band="urgent")
        known.setdefault(NEW_WEBHOOK_SECRETS, {})[name] = secret
    return tenant


def _kept_key(known: str | None, tenant: Tenant, kind: ApiKey.Kind) -> str:
    """The key of the last start if this database still accepts it, else a new one."""
    if known and ApiKey.objects.is_valid(known):
        return known
    return create_key(tenant, kind, name=f"created by up for {tenant}")[1]


def _register(entries: list[dict[str, Any]], token: str) -> None:
    """Register the demo's servers at this start's ports, with their token. A model that exists keeps its
    configuration."""
    headers = {"Authorization": f"Bearer {token}"} if token else None
    leases = jobs.ports.production_ports().leases
    known = set(ModelConfig.objects.values_list("name", flat=True))
    for entry in entries:
        fields = None if entry["model"] in known else entry["model_fields"]
        register_server(**{**entry, "model_fields": fields}, headers=headers, by=cli_actor(), leases=leases)


def _store_workflow(tenant: Tenant) -> None:
    """Store the demo's workflow, and a paused schedule of it, unless the tenant has a workflow of that
    name: a user may have changed both."""
    if Workflow.objects.filter(tenant=tenant, name=demo_workflow.NAME).exists():
        return
    # only the first start pays for these imports
    from foundation.http_api.json_body import read_body
    from workflows.operations.definitions import put_definition
    from workflows.schedules.body import ScheduleBody
    from workflows.schedules.operations.pause import pause_schedule
    from workflows.schedules.operations.read import read_schedule
    from workflows.schedules.operations.store import create_schedule

    ports = jobs.ports.production_ports()
    put_definition(tenant.pk, demo_workflow.NAME, demo_workflow.DEFINITION, ports=ports)
    target = {"name": demo_workflow.NAME, "inputs": demo_workflow.INPUTS}
    body = read_body(ScheduleBody, {"cron": "0 * * * *", "workflow": target})
    schedule = create_schedule(read_schedule(tenant.pk, demo_workflow.SCHEDULE, body, ports=ports))
    pause_schedule(schedule, ports=ports, reason="an example: resume it, and it starts a film every hour")
