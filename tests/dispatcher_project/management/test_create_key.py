from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from gpus.models import AuditEntry
from jobs.api.authentication import principal_of_key
from jobs.callbacks.message import current_secret
from jobs.models import ApiKey, Tenant
from tests.support.fakes import make_ports

pytestmark = pytest.mark.django_db


def create(*arguments: str) -> dict[str, str]:
    out = StringIO()
    call_command("create_key", *arguments, stdout=out)
    return dict(line.split(": ", 1) for line in out.getvalue().splitlines())


def test_a_new_tenant_is_shown_its_key_and_its_secret_once() -> None:
    shown = create("--tenant", "acme", "--weight", "2")
    tenant = Tenant.objects.get()
    assert (tenant.name, tenant.weight) == ("acme", 2.0)
    assert shown["webhook secret"] == current_secret(tenant)
    principal = principal_of_key(shown["api key"], make_ports())
    assert principal is not None
    assert (principal.tenant_id, principal.is_operator) == (tenant.pk, False)
    assert shown["api key"].split(".")[1] not in str(list(ApiKey.objects.values()))


def test_a_known_tenant_gets_another_key_and_no_secret() -> None:
    create("--tenant", "acme")
    shown = create("--tenant", "acme", "--operator")
    assert set(shown) == {"api key"}
    principal = principal_of_key(shown["api key"], make_ports())
    assert principal is not None
    assert principal.is_operator
    assert Tenant.objects.count() == 1


@pytest.mark.parametrize("arguments", [("--tenant", "a b"), ("--tenant", "acme", "--weight", "0")])
def test_an_invalid_tenant_is_one_line(arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError):
        create(*arguments)
    assert not Tenant.objects.exists()


def test_a_refused_key_leaves_no_tenant_behind() -> None:
    with pytest.raises(CommandError):
        create("--tenant", "acme", "--scope", "operate")
    assert not Tenant.objects.exists()
    assert not AuditEntry.objects.exists()
