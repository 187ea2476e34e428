"""`manage.py unlock`."""

from __future__ import annotations

import pytest
from django.utils import timezone

from gpus.models import AuditEntry
from gpus.registry.audit import cli_actor
from jobs.models import SignInFailure
from tests.support.terminal import run_command

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("address", ["blah", "", "10.0.0.0/8", "2001:db8::/48", "1.2.3", "127.0.0.1/32"])
def test_a_text_that_is_not_an_address_is_refused(address: str) -> None:
    ran = run_command("unlock", address)
    assert ran.status == 2
    assert f"{address!r} is not an IP address" in ran.said


@pytest.mark.parametrize(
    ("failed", "address"),
    [("203.0.113.7", "203.0.113.7"), ("2001:db8::/64", "2001:db8::1"), ("2001:db8::/64", "2001:db8::/64")],
)
def test_it_prints_the_number_of_accounts(failed: str, address: str) -> None:
    SignInFailure.objects.create(address=failed, account="0" * 64, count=5, last_at=timezone.now())
    assert run_command("unlock", "203.0.113.8").said == "no failed sign-ins from 203.0.113.8\n"
    assert run_command("unlock", address).said == f"failed sign-ins of 1 account forgotten from {address}\n"
    assert run_command("unlock").said == "no failed sign-ins\n"


def test_it_is_audited() -> None:
    assert run_command("unlock", "203.0.113.7").status == 0
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.action, entry.target) == (cli_actor(), "unlock_sign_in", "address:203.0.113.7")
    assert entry.detail == {"rows": 0}
