"""`manage.py keys`, and the options of `create_key`."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from gpus.models import AuditEntry
from jobs.api.authentication import principal_of_key
from jobs.models import ApiKey
from tests.support.fakes import make_ports

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def keys(*arguments: str) -> Any:
    return json.loads(run("keys", *arguments, "--json"))


def made(*arguments: str) -> str:
    lines = dict(
        line.split(": ", 1) for line in run("create_key", "--tenant", "acme", *arguments).splitlines()
    )
    return lines["api key"]


def test_a_key_can_have_limited_scopes_models_and_time() -> None:
    plaintext = made("--scope", "read", "--scope", "submit", "--model", "flux", "--expires-days", "2")
    principal = principal_of_key(plaintext, make_ports())
    assert principal is not None
    assert (principal.scopes, principal.models) == (frozenset({"read", "submit"}), frozenset({"flux"}))
    (row,) = keys("list", "--tenant", "acme")
    assert (row["scopes"], row["allowed_models"], row["revoked"]) == (["read", "submit"], ["flux"], False)
    assert row["expires_at"]
    assert row["last_used_at"]
    [shown] = run("keys").splitlines()[1:]
    assert f"{row['expires_at'][:10]} {row['expires_at'][11:16]}" in shown
    assert "read,submit  flux" in shown
    assert keys("list", "--tenant", "nobody") == []


@pytest.mark.parametrize("arguments", [
    ("--scope", "operate"), ("--expires-days", "-1"), ("--expires-days", "1e9"), ("--expires-days", "nan"),
    ("--expires-days", "99999"),
])  # fmt: skip
def test_an_invalid_key_is_one_line(arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError):
        made(*arguments)
    assert not ApiKey.objects.exists()


def test_a_key_is_replaced_and_revoked() -> None:
    old = made()
    answer = keys("rotate", old[:8], "--overlap-hours", "2")
    assert answer["replaces"] == old[:8]
    assert principal_of_key(answer["key"], make_ports()) is not None
    assert principal_of_key(old, make_ports()) is not None
    with pytest.raises(CommandError, match="already replaced"):
        run("keys", "rotate", old[:8])
    assert keys("revoke", old[:8], "--yes")["revoked"] is True
    entries = AuditEntry.objects.filter(action="revoke_key").count()
    assert run("keys", "revoke", old[:8], "--yes") == f"{old[:8]} is revoked already: nothing changed\n"
    assert AuditEntry.objects.filter(action="revoke_key").count() == entries == 1
    assert principal_of_key(old, make_ports()) is None
    assert "revoked" in run("keys")


def test_an_unknown_key_is_an_error() -> None:
    with pytest.raises(CommandError, match="no key has the prefix"):
        run("keys", "revoke", "nothing1", "--yes")
