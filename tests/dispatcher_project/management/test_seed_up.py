"""The rows that `up` needs before it serves."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import CommandError

from dispatcher_project.management.commands.seed_up import _keep_admin, _register, _require_secret_key
from foundation.secrets import decrypt
from gpus.models import ModelConfig, Server
from jobs.operations.tenants import create_tenant
from tests.support.fake_leases import FakeLeases
from tests.support.fakes import make_ports

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def test_the_admin_is_created_once_with_the_folders_password() -> None:
    assert _keep_admin("sesame")
    assert get_user_model().objects.get(username="admin").is_superuser
    assert _keep_admin("sesame"), "the next start"


def test_an_existing_admin_keeps_the_password() -> None:
    get_user_model().objects.create_superuser("admin", "", "of before")
    assert not _keep_admin("sesame")
    assert get_user_model().objects.get(username="admin").check_password("of before")


@pytest.mark.parametrize("token", ["of this start", ""])
def test_the_demos_servers_are_registered_with_their_token(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases: Any = FakeLeases()
    monkeypatch.setattr("jobs.ports.production_ports", lambda: make_ports(leases))
    entry = {
        "server": "one",
        "model": "zimg",
        "endpoint": "http://127.0.0.1:1/zimg",
        "slots": 1,
        "model_fields": {},
    }
    _register([entry], "of the last start")
    _register([entry], token)
    kept = json.loads(decrypt(Server.objects.get(name="one").headers_encrypted))
    assert kept == {"Authorization": f"Bearer {token or 'of the last start'}"}


def test_a_model_with_a_schema_that_only_an_older_version_accepted_does_not_stop_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leases: Any = FakeLeases()
    monkeypatch.setattr("jobs.ports.production_ports", lambda: make_ports(leases))
    entry = {"server": "one", "model": "zimg", "endpoint": "http://127.0.0.1:1/", "slots": 1}
    _register([{**entry, "model_fields": {}}], "")
    ModelConfig.objects.update(payload_schema={"pattern": "(?=a)b"})
    _register([{**entry, "slots": 2, "model_fields": {}}], "")
    assert Server.objects.get(name="one").slots == 2


def test_a_database_of_another_secret_key_is_refused(settings: LazySettings) -> None:
    create_tenant("acme")
    _require_secret_key()
    settings.DISPATCHER = replace(settings.DISPATCHER, secret_key="of another data folder")
    with pytest.raises(
        CommandError, match=r"1 of 1 stored secrets .*webhook secret of acme.*DJANGO_SECRET_KEY"
    ):
        _require_secret_key()
    call_command("create_key", tenant="acme", new_webhook_secret=True)  # the old key is lost
    create_tenant("mixed")
    _require_secret_key()
