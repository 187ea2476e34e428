"""Servers saved in the admin, mirrored to a real lease layer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpus.leasing.store import RedisFleets
from gpus.models import ModelConfig, Pool
from jobs import ports
from tests.admin_ui.forms import placement_form, server_form
from tests.support.admin_ports import FakePorts


@pytest.mark.django_db
def test_a_servers_slots_follow_its_saves_and_its_deletion(
    operator: Client,
    fake_ports: FakePorts,
    valkey: EmbeddedValkey,
    fleet: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    django_capture_on_commit_callbacks: Callable[..., AbstractContextManager[Any]],
) -> None:
    fleets = RedisFleets(valkey.url)
    leases = fleets(fleet)
    real = replace(fake_ports.ports(), leases=fleets)
    monkeypatch.setattr(ports, "production_ports", lambda: real)
    leases.begin_rebuild("test")
    while not leases.wipe("test"):
        pass
    leases.open_generation("test")
    pool = Pool.objects.create(name="flux", fleet=fleet)
    ModelConfig.objects.create(name="flux", pool=pool)
    form = server_form(name="box", pool="flux") | placement_form("flux", "http://10.0.0.3/generate")
    with django_capture_on_commit_callbacks(execute=True):
        operator.post(reverse("admin:gpus_server_add"), form)
    assert [(view.slot, view.state) for view in leases.slots("box")] == [("box/0", "free"), ("box/1", "free")]
    chosen = {"action": "drain", "_selected_action": ["box"]}
    operator.post(reverse("admin:gpus_server_changelist"), chosen)
    assert {view.state for view in leases.slots("box")} == {"off"}
    operator.post(reverse("admin:gpus_server_delete", args=["box"]), {"post": "yes"})
    assert leases.slots("box") == []
