"""A run in a real browser: its graph, a live update, a form, a restart, on a desk and on a phone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.utils import timezone

from admin_ui.parts.groups import write_groups
from foundation.ids import new_id
from gpus.models import AuditEntry
from jobs import ports
from tests.admin_ui.browser import ON_A_PHONE, WebBrowser, wait_until
from tests.support.factories import make_tenant
from tests.support.pictures import png
from workflows.domain.states import RunState
from workflows.execution.advancer import Advancer
from workflows.models import MapState, Node, Run
from workflows.operations.control import cancel_run
from workflows.operations.definitions import put_definition
from workflows.operations.start import start_run
from workflows.sweeps import due_waits
from workflows.tasks import advance_now

pytestmark = pytest.mark.django_db(transaction=True)
DESK, PHONE = (1400, 900), (390, 844)
SHOTS = os.environ.get("SCREENSHOTS")
"""A folder for pictures to look at."""
IMAGE = f"data:image/png;base64,{png()}"
FILM = {
    "nodes": {
        "brief": {"human": {"title": "What is the film about?", "form": {
            "type": "object", "required": ["title"],
            "properties": {"title": {"type": "string"}, "length": {"type": "integer", "minimum": 1},
                           "style": {"enum": ["oil", "ink"]}, "sound": {"type": "boolean"}},
        }}},
        "pick": {"human": {"title": "Choose a picture", "choose_from": [IMAGE, "no picture"]}},
        "frames": {"map": {"count": 12, "max_parallel": 4}, "human": {"title": "Frame", "choose_from": [1]},
                   "needs": ["pick"]},
        "bad": {"timer": {"seconds": {"$ref": "brief.nothing"}}},
        "film": {"timer": {"seconds": 3600}, "needs": ["frames", "bad"], "needs_rule": "all_done"},
        "notify": {"timer": {"seconds": 0}},
    },
    "on_failure": {"running": "finish", "node": "notify"},
}  # fmt: skip


@pytest.fixture
def boss(db: None) -> User:
    write_groups()
    user = User.objects.create_user("boss", is_staff=True)
    user.groups.add(Group.objects.get(name="operators"))
    return user


def start(definition: dict[str, Any]) -> Run:
    tenant, real = make_tenant(), ports.production_ports()
    put_definition(tenant.pk, "film", definition, ports=real)
    run = start_run(tenant.pk, "film", {"fox": "<b>red</b>"}, ports=real).run
    advance(run)
    return run


def advance(run: Run) -> None:
    advance_now(Advancer(ports.production_ports()), run.id)


def shoot(page: Any, name: str) -> None:
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


@pytest.mark.parametrize("phone", ON_A_PHONE)
def test_a_run_is_answered_fails_and_is_restarted_on_its_page(
    web_browser: WebBrowser, boss: User, phone: bool
) -> None:
    run = start(FILM)
    with web_browser.visit(boss, size=PHONE if phone else DESK, dark=phone) as visit:
        page = visit.go(f"/admin/workflows/run/{run.id}/change/")
        page.wait_for_selector(".graph-node.graph-running")
        assert page.locator(".graph-node").count() == 6
        visit.assert_sound()
        shoot(page, f"run-asks-{phone}")
        page.fill("input[name=field-0]", "A fox")
        page.click(f"form[action*='{Node.objects.get(key='brief').id}'] button")
        page.wait_for_selector("text=brief is answered.")
        advance(run)  # bad fails, the run goes on
        page.wait_for_selector(".graph-node.graph-failed")
        page.check("input[name=choice][value='0']")
        page.click("form[action*='answer'] button")
        page.wait_for_selector("text=pick is answered.")
        advance(run)
        page.wait_for_selector(".node-table :text('4 under way')")
        visit.assert_sound()
        shoot(page, f"run-maps-{phone}")
        cancel_run(run.id, ports=ports.production_ports())
        from workflows.sweeps import cancelling_runs

        cancelling_runs.sweep(ports.production_ports())
        advance(run)
        run.refresh_from_db()
        assert run.state == RunState.CANCELLED
        page.click(".buttons a:has-text('Restart from failed')")
        page.wait_for_selector("#dialog button[type=submit]")
        visit.assert_sound()
        page.click("#dialog button[type=submit]")
        page.wait_for_selector("text=1 restarted.")
        run.refresh_from_db()
        assert (run.state, run.round) == (RunState.RUNNING, 2)
        assert AuditEntry.objects.filter(actor="user:boss", action="restart_run").exists()
        visit.assert_quiet()


def test_the_page_of_a_sub_run_is_no_wider_than_the_window(web_browser: WebBrowser, boss: User) -> None:
    tenant = make_tenant()
    nothing = {"nodes": {"never": {"timer": {"seconds": 1}, "when": "`false`"}}}
    put_definition(tenant.pk, "part", nothing, ports=ports.production_ports())
    run = start({"nodes": {"part": {"workflow": "part"}}})
    part = Run.objects.get(parent_node__run=run)
    advance(part)
    with web_browser.visit(boss, size=DESK) as visit:
        page = visit.go(f"/admin/workflows/run/{part.id}/change/")
        page.wait_for_selector(f".facts dd:has-text('{run.id}')")
        visit.assert_sound()


def test_forms_work_without_scripts(web_browser: WebBrowser, boss: User) -> None:
    run = start({"nodes": {"a": {"signal": {"name": "go"}}, "b": {"timer": {"seconds": 0}, "needs": ["a"]}}})
    with web_browser.visit(boss, size=DESK, scripts=False) as visit:
        page = visit.go(f"/admin/workflows/run/{run.id}/change/")
        page.fill("textarea[name=field-0]", '{"by": "hand"}')
        page.click("text=Send signal")
        page.wait_for_selector("text=1 node took the signal go.")
        for _ in range(3):
            advance(run)
        due_waits.sweep(ports.production_ports())
        advance(run)
        page = visit.go(f"/admin/workflows/run/{run.id}/change/")
        page.check("input[name=node][value=b]")
        page.click("text=Restart chosen nodes…")
        page.click("button:has-text('Restart them')")
        page.wait_for_selector("text=The chosen nodes run again.")
    run.refresh_from_db()
    assert (run.round, run.node_states["a"]) == (2, "completed")
    assert Node.objects.get(run=run, key="a").output == {"by": "hand"}


def test_the_lists_and_the_inbox_are_sound(web_browser: WebBrowser, boss: User) -> None:
    run = start(FILM)
    with web_browser.visit(boss, size=PHONE) as visit:
        for path in (
            "workflows/run/",
            "workflows/wait/",
            "workflows/workflow/",
            f"workflows/version/{run.version_id}/change/",
        ):
            page = visit.go(f"/admin/{path}")
            visit.assert_sound()
            shoot(page, path.replace("/", "-"))
        page = visit.go("/admin/")
        page.wait_for_selector(".tile:has-text('2 questions')")


def test_a_graph_of_1000_nodes_and_a_large_map_is_drawn(web_browser: WebBrowser, boss: User) -> None:
    nodes: dict[str, Any] = {}
    for number in range(999):
        nodes[f"n{number}"] = {
            "timer": {"seconds": 3600},
            "needs": [f"n{number - 40}"] if number >= 40 else [],
        }
    nodes["all"] = {"map": {"count": 100_000}, "timer": {"seconds": 3600}}
    run = start({"nodes": nodes})
    row = Node.objects.filter(run=run, key="all").first() or Node.objects.create(
        run=run, key="all", base="all", kind="timer", state="running", started_at=timezone.now(), id=new_id()
    )
    MapState.objects.update_or_create(
        node=row,
        defaults={"total": 100_000, "next_index": 500, "running": 100, "completed": 390, "failed": 10},
    )
    with web_browser.visit(boss, size=DESK) as visit:
        page = visit.go(f"/admin/workflows/run/{run.id}/change/")
        wait_until(page, "document.querySelectorAll('.graph-node').length === 1000")
        shoot(page, "run-large")
        visit.assert_quiet()
