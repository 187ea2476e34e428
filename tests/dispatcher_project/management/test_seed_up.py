"""The rows that `up` needs before it serves."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from django.conf import LazySettings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import CommandError

from dispatcher_client.workflow_simulation import simulate
from dispatcher_project.management.commands.seed_up import (
    _keep_admin,
    _register,
    _require_secret_key,
    _store_workflow,
)
from dispatcher_project.supervisor.children import DEMO_SLOTS
from dispatcher_project.supervisor.demo_workflow import DEFINITION, INPUTS, STYLES
from foundation.secrets import decrypt
from gpus.models import ModelConfig, Server
from jobs.operations.tenants import create_tenant
from tests.support.factories import make_model
from tests.support.fake_leases import FakeLeases
from tests.support.fakes import make_ports
from workflows.models import Version
from workflows.schedules.execution.fire import is_paused
from workflows.schedules.models import Schedule

pytestmark = pytest.mark.django_db


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


def test_the_demos_workflow_and_its_paused_schedule_are_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.ports.production_ports", lambda: make_ports(FakeLeases()))  # type: ignore[arg-type]
    for model in ("zimg", "trellis", "ltx2"):
        make_model(model)
    tenant = create_tenant("demo")[0]
    _store_workflow(tenant)
    version = Version.objects.get(workflow__name="film")
    schedule = Schedule.objects.get()
    assert (schedule.tenant, schedule.target["workflow"]["name"]) == (tenant, "film")
    assert is_paused(schedule, datetime.now(UTC))
    Version.objects.create(
        workflow=version.workflow, number=2, spec={}, sha256="x", created_at=version.created_at
    )
    schedule.delete()
    _store_workflow(tenant)  # the next start
    assert Version.objects.count() == 2, "the user's own version stays the newest"
    assert not Schedule.objects.exists(), "the user deleted it"


def test_the_demos_workflow_makes_a_film_of_the_chosen_image() -> None:
    def echo(payload: Any) -> Any:
        return {"echo": payload["echo"]}

    fakes = {
        **dict.fromkeys(("zimg", "trellis", "ltx2"), echo),
        "best": lambda asked: asked["choose_from"][2],
    }
    run = simulate(DEFINITION, INPUTS, fakes)
    assert (run.state, run.output) == ("completed", {"image": STYLES[2], "film_of": STYLES[2]})
    assert sum(key == "images" for key, _ in run.calls) == 4
    assert set(DEMO_SLOTS) >= {"zimg", "trellis", "ltx2"}


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
