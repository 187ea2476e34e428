from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from gpus.models import AuditEntry
from gpus.registry.audit import cli_actor
from jobs.api.authentication import principal_of_key
from jobs.callbacks.message import current_secret
from jobs.models import ApiKey, Tenant
from tests.support.factories import make_model
from tests.support.fakes import make_ports
from tests.support.queue_harness import queue
from tests.support.terminal import Terminal, terminal

__all__ = ["queue", "terminal"]

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


def test_a_model_that_is_not_registered_is_warned_of() -> None:
    make_model("flux")
    err = StringIO()
    call_command("create_key", "--tenant", "acme", "--model", "flux", stdout=StringIO(), stderr=err)
    assert err.getvalue() == ""
    call_command(
        *("create_key", "--tenant", "acme", "--model", "flux", "--model", "flx", "--tenant-model", "zmig"),
        stdout=StringIO(),
        stderr=err,
    )
    assert err.getvalue().startswith("warning: no model is registered as flx, zmig;")


@pytest.mark.parametrize("days", ["0", "-1", "nan"])
def test_a_key_that_would_be_expired_is_refused_by_the_options_name(days: str) -> None:
    with pytest.raises(CommandError, match=r"--expires-days .* greater than 0"):
        create("--tenant", "acme", f"--expires-days={days}")
    assert not Tenant.objects.exists()


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


LIMITS = (
    *("--weight", "2.5", "--band", "bulk", "--max-running", "3", "--max-queued", "40"),
    *("--max-queued-seconds", "600", "--rate", "0.5", "--burst", "5", "--daily-gpu-seconds", "3600"),
    *("--tenant-model", "flux", "--tenant-model", "zimg"),
)
VALUES = {
    "weight": 2.5,
    "highest_band": "bulk",
    "max_running": 3,
    "max_queued": 40,
    "max_queued_seconds": 600.0,
    "submits_per_second": 0.5,
    "submit_burst": 5,
    "daily_gpu_seconds": 3600.0,
    "allowed_models": ["flux", "zimg"],
}


def rules_of(name: str) -> dict[str, object]:
    return Tenant.objects.values(*VALUES).get(name=name)


def test_a_new_tenant_gets_all_its_limits_and_they_are_audited() -> None:
    create("--tenant", "acme", *LIMITS)
    assert rules_of("acme") == VALUES
    entries = AuditEntry.objects.order_by("pk")
    assert [entry.action for entry in entries] == ["create_tenant", "create_key"]
    assert entries[0].detail == VALUES
    assert {entry.actor for entry in entries} == {cli_actor()}


def test_a_known_tenants_limits_change_and_others_stay(terminal: Terminal) -> None:
    create("--tenant", "acme", *LIMITS)
    run = terminal("create_key", "--tenant", "acme", "--max-running", "none", "--rate", "2", "--json")
    assert run.json["limits_changed"]
    assert rules_of("acme") == {**VALUES, "max_running": None, "submits_per_second": 2.0}
    entry = AuditEntry.objects.get(action="change_tenant")
    assert entry.detail == {"values": {"max_running": [3, None], "submits_per_second": [0.5, 2.0]}}
    same = terminal("create_key", "--tenant", "acme", "--rate", "2", "--json")
    assert not same.json["limits_changed"]
    assert AuditEntry.objects.filter(action="change_tenant").count() == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--max-running", "0"], "max_running: Must be"),
        (["--weight", "nan"], "weight: Must be"),
        (["--weight", "none"], "weight: "),
        (["--burst", "3"], "submit_burst: A burst needs a rate"),
        (["--rate", "1e9"], "submits_per_second: Must be at most"),
        (["--tenant-model", "a b"], "allowed_models/0: "),
        (["--model", "a b"], "allowed_models/0: "),
        (["--name", "x" * 51], "name: Must have at most 50 characters"),
        (["--max-queued", "1.5"], "invalid whole number value"),
        (["--max-running", "2", "--expires-days", "-1"], "greater than 0"),
    ],
)
@pytest.mark.parametrize("is_known", [False, True])
def test_a_refused_value_is_one_line_and_changes_nothing(
    terminal: Terminal, arguments: list[str], says: str, is_known: bool
) -> None:
    if is_known:
        create("--tenant", "acme")
    before = list(Tenant.objects.values()), ApiKey.objects.count(), AuditEntry.objects.count()
    run = terminal("create_key", "--tenant", "acme", *arguments)
    assert run.status
    assert says in run.said
    assert (list(Tenant.objects.values()), ApiKey.objects.count(), AuditEntry.objects.count()) == before
