"""`webhook_secret`: the secret that signs a tenant's callbacks, shown or renewed, with an audit entry."""

from __future__ import annotations

import pytest

from gpus.models import AuditEntry
from jobs.models import Tenant
from jobs.operations.tenants import create_tenant
from tests.support.terminal import Terminal

pytestmark = pytest.mark.django_db


def test_the_secret_is_shown_and_renewed_with_an_overlap(terminal: Terminal) -> None:
    _, secret = create_tenant("acme")
    assert terminal("webhook_secret", "acme").said.splitlines() == [secret]
    assert "Confirm with --yes" in terminal("webhook_secret", "acme", "--renew").said
    renewed = terminal("webhook_secret", "acme", "--renew", "--yes", "--overlap-hours", "2", "--json").json
    new, old = renewed["webhook_secrets"]
    assert old == secret != new
    assert terminal("webhook_secret", "acme").said.splitlines()[1].startswith(f"{secret} signs, too, until ")
    actions = AuditEntry.objects.order_by("pk").values_list("action", flat=True)
    assert list(actions) == [
        "read_webhook_secret", "renew_webhook_secret", "read_webhook_secret", "read_webhook_secret",
    ]  # fmt: skip


def test_a_secret_of_another_secret_key_is_one_line(terminal: Terminal) -> None:
    create_tenant("acme")
    Tenant.objects.update(webhook_secret_encrypted="gAAAAA")
    assert "--renew" in terminal("webhook_secret", "acme").said
