"""A sweep process of the layout in use ticks by itself while processes of another layout live."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.db.models.functions import Now

from gpus.models import Process
from gpus.registry import processes
from gpus.registry.layouts import IndexState, Layouts
from jobs.execution.presence import Presence
from jobs.sweeps import layout_overlap
from jobs.sweeps.layout_overlap import RECONCILE_EVERY, LayoutOverlapSweeper
from tests.support.fakes import ManualClock, make_ports
from tests.support.waiting import wait_for


def test_each_step_ticks_and_every_fifth_reconciles(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(layout_overlap.connection, "close", lambda: None)
    company = LayoutOverlapSweeper(ran.append)
    for step in range(RECONCILE_EVERY):
        company.step()
        wait_for(lambda step=step: ran.count("tick") == step + 1 and not company.is_sweeping)
    assert ran == ["tick"] * RECONCILE_EVERY + ["reconcile"]


@pytest.mark.django_db
@pytest.mark.parametrize(("in_use", "steps"), [(6, 1), (7, 0)])
def test_it_runs_only_while_our_layout_is_in_use_and_another_one_lives(in_use: int, steps: int) -> None:
    clock = ManualClock()
    layouts = Layouts(lambda: {"main": IndexState(in_use)}, layout=6)
    called: list[int] = []
    presence = Presence(
        replace(make_ports(clock=clock), layouts=layouts),
        Process.Kind.SWEEPS,
        name="ours",
        on_layout_overlap=lambda: called.append(1),
    )
    presence.step()
    assert not called
    Process.objects.create(name="theirs", kind="web", layout=7, started_at=Now(), beat_at=Now())
    clock.move(60)
    presence.step()
    assert len(called) == steps
    assert processes.live_processes().count() == 2
