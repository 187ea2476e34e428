"""A run's page: graph, forms of waits, actions with audit and permissions, bounded and harmless."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from foundation.ids import new_id
from gpus.models import AuditEntry
from jobs.models import Tenant
from tests.support.factories import make_tenant
from workflows.domain.states import NodeState, RunState
from workflows.models import MapState, Node, Run, RunEvent, RunTag, Version, Wait, Workflow
from workflows.reports.graph import graph_of, plan_of

pytestmark = pytest.mark.django_db
HOSTILE = "<script>alert(1)</script>\u202eevil\u0000\ud800"
FORM = {
    "type": "object",
    "required": ["name", "steps"],
    "properties": {
        "name": {"type": "string", "title": "Name <b>of it</b>"},
        "steps": {"type": "integer", "minimum": 1},
        "style": {"enum": ["oil", 3]},
        "big": {"type": "boolean"},
        "more": {"type": "object"},
    },
}


def make_run(spec: dict[str, Any], tenant: Tenant | None = None, **states: str) -> Run:
    tenant = tenant or make_tenant()
    workflow = Workflow.objects.create(tenant=tenant, name=f"w{Workflow.objects.count()}", latest=1)
    version = Version.objects.create(
        workflow=workflow, number=1, spec=spec, sha256="0" * 64, created_at=timezone.now()
    )
    run = Run(
        version=version, tenant=tenant, node_states=states, place_us=1, created_at=timezone.now(), event_seq=1
    )
    run.save()
    RunEvent.objects.create(run=run, seq=1, type="started", at=run.created_at)
    return run


def ask(run: Run, key: str, **options: Any) -> Wait:
    node = Node.objects.create(
        run=run, key=key, base=key, kind="human", state="running", started_at=timezone.now()
    )
    return Wait.objects.create(node=node, kind="human", options=options)


def human(**options: Any) -> dict[str, Any]:
    return {"human": {"title": "Which?", **options}}


def page_of(client: Client, run: Run) -> str:
    answer = client.get(reverse("admin:workflows_run_change", args=[run.id]))
    assert answer.status_code == 200
    return answer.content.decode()


def send(client: Client, wait: Wait, **fields: str) -> Any:
    page = reverse("admin:workflows_run_answer", args=[wait.node.run_id, wait.node_id])
    return client.post(page, fields, follow=True)


def test_a_choice_is_answered_by_its_place_and_audited(boss: Client) -> None:
    run = make_run({"nodes": {"best": human(choose_from=[1, True, "1"])}}, best="running")
    wait = ask(run, "best", title="Which?", choose_from=[1, True, "1"])
    assert "Which?" in page_of(boss, run)
    assert b"Choose one" in send(boss, wait, choice="7").content
    assert b"best is answered" in send(boss, wait, choice="1").content
    wait.refresh_from_db()
    assert (wait.answer, wait.answered_by) == (True, "user:boss")
    assert AuditEntry.objects.get(action="answer_wait").target == f"run:{run.id}"
    assert b"does not wait" in send(boss, wait, choice="0").content


def test_a_question_for_some_keys_names_them_and_an_operator_may_answer(boss: Client) -> None:
    run = make_run({"nodes": {"best": human(choose_from=[1], answer_by=["lead", "<b>"])}}, best="running")
    wait = ask(run, "best", choose_from=[1], answer_by=["lead", "<b>"])
    assert "For the API keys lead, &lt;b&gt;. Operators may answer, too." in page_of(boss, run)
    inbox = boss.get(reverse("admin:workflows_wait_changelist")).content.decode()
    assert "lead, &lt;b&gt;" in inbox
    assert b"best is answered" in send(boss, wait, choice="0").content


def test_the_error_of_a_step_that_raises_is_shown(boss: Client) -> None:
    run = make_run({"nodes": {"best": human(choose_from=[1, 2])}}, best="running")
    run.step_error, run.step_failures, run.failing_step = "KeyError: '<b>'", 2, 0
    run.failing_since = run.step_retry_at = timezone.now()
    run.save()
    page = page_of(boss, run)
    assert "raised 2 times in a row" in page
    assert "KeyError: &#x27;&lt;b&gt;&#x27;" in page
    assert "raised 2 errors in a row, and is tried again" in page
    Run.objects.update(steps=1)
    assert "KeyError" not in page_of(boss, run)


def test_a_form_is_made_from_its_schema(boss: Client) -> None:
    run = make_run({"nodes": {"ask": human(form=FORM)}}, ask="running")
    wait = ask(run, "ask", title="Say", form=FORM)
    page = page_of(boss, run)
    assert "Name &lt;b&gt;of it&lt;/b&gt;" in page
    wait.refresh_from_db()  # PostgreSQL keeps no order of keys
    field = {name: f"field-{number}" for number, name in enumerate(wait.options["form"]["properties"])}
    texts = {"name": "fox", "steps": "x", "style": "3", "big": "on", "more": '{"a": [1]}'}
    sent = {field[name]: text for name, text in texts.items()}
    assert b"not a whole number" in send(boss, wait, **sent).content
    refused = send(boss, wait, **{**sent, field["steps"]: "0"}).content.decode()
    assert f'aria-describedby="{wait.node_id}-{field["steps"]}-error"' in refused
    assert "less than the minimum" in refused, "the schema's other rules are checked, too"
    assert 'value="fox"' in refused, "what was typed stays"
    assert b"is answered" in send(boss, wait, **{**sent, field["steps"]: "4"}).content
    wait.refresh_from_db()
    assert wait.answer == {"name": "fox", "steps": 4, "style": 3, "big": True, "more": {"a": [1]}}


def listen(run: Run, key: str, signal: str, **options: Any) -> Wait:
    node = Node.objects.create(
        run=run, key=key, base=key, kind="signal", state="running", started_at=timezone.now()
    )
    return Wait.objects.create(node=node, kind="signal", signal=signal, options={"name": signal, **options})


def send_signal(client: Client, wait: Wait, **fields: str) -> Any:
    page = reverse("admin:workflows_run_signal", args=[wait.node.run_id, wait.node_id])
    return client.post(page, fields, follow=True)


PAID = {
    "type": "object",
    "required": ["sum"],
    "properties": {"sum": {"type": "integer", "minimum": 1}, "note": {"type": "string"}},
}


@pytest.mark.database
def test_a_signal_is_sent_to_the_nodes_of_the_run_that_wait_for_it_and_audited(boss: Client) -> None:
    spec = {"nodes": {key: {"signal": {"name": "paid", "body_schema": PAID}} for key in ("a", "b")}}
    run = make_run(spec, a="running", b="running")
    first, second = (listen(run, key, "paid", body_schema=PAID) for key in ("a", "b"))
    elsewhere = make_run(spec, run.tenant, a="running", b="pending")
    other = listen(elsewhere, "a", "paid", body_schema=PAID)
    page = page_of(boss, run)
    assert page.count("Signal paid") == 1, "one form, however many nodes wait"
    assert "a and 1 more wait for it" in page
    first.refresh_from_db()
    field = {
        name: f"field-{number}" for number, name in enumerate(first.options["body_schema"]["properties"])
    }
    refused = send_signal(boss, first, **{field["sum"]: "0", field["note"]: "kept"}).content.decode()
    assert "less than the minimum" in refused
    assert 'value="kept"' in refused
    assert not AuditEntry.objects.filter(action="send_signal").exists()
    assert b"2 nodes took the signal paid" in send_signal(boss, first, **{field["sum"]: "3"}).content
    second.refresh_from_db()
    assert (second.answer, second.answered_by) == ({"sum": 3}, "signal")
    entry = AuditEntry.objects.get(action="send_signal")
    assert (entry.actor, entry.target, entry.detail["waits"]) == ("user:boss", f"run:{run.id}", 2)
    assert b"No node waits" in send_signal(boss, first, **{field["sum"]: "3"}).content, "a second click"
    other.refresh_from_db()
    assert other.answered_at is None
    assert b"1 node took" in send_signal(boss, first, everywhere="on", **{field["sum"]: "3"}).content


def test_a_signal_takes_a_permission(viewer: Client) -> None:
    run = make_run({"nodes": {"a": {"signal": {"name": "paid"}}}}, a="running")
    wait = listen(run, "a", "paid")
    assert "Send signal" not in page_of(viewer, run)
    assert send_signal(viewer, wait).status_code == 403
    wait.refresh_from_db()
    assert wait.answered_at is None


def test_the_address_of_a_form_with_errors_leads_to_the_page(boss: Client) -> None:
    run = make_run({"nodes": {"a": {"signal": {"name": "paid"}}}}, a="running")
    wait = listen(run, "a", "paid")
    for name in ("answer", "signal"):
        answer = boss.get(reverse(f"admin:workflows_run_{name}", args=[run.id, wait.node_id]))
        assert answer.url == reverse("admin:workflows_run_change", args=[run.id])  # type: ignore[attr-defined]


def test_a_question_of_an_earlier_round_is_not_answered(boss: Client) -> None:
    run = make_run({"nodes": {"best": human(choose_from=[1, 2])}}, best="running")
    wait = ask(run, "best", choose_from=[1, 2])
    Node.objects.create(
        run=run, key="best", base="best", round=2, kind="human", state="running", started_at=timezone.now()
    )
    assert b"restarted meanwhile" in send(boss, wait, choice="0").content
    wait.refresh_from_db()
    assert wait.answered_at is None


def test_a_user_without_payload_rights_sees_no_question_and_answers_none(viewer: Client) -> None:
    run = make_run({"nodes": {"best": human(choose_from=["a secret"])}}, best="running")
    wait = ask(run, "best", title="Which?", choose_from=["a secret"])
    run.inputs = {"x": "a secret"}
    run.save()
    assert "a secret" not in page_of(viewer, run)
    assert send(viewer, wait, choice="0").status_code == 403


@pytest.mark.parametrize(
    ("action", "name", "changed"),
    [("pause_one", "pause_run", "paused_at"), ("cancel_one", "cancel_run", "cancel_requested_at")],
)
def test_actions_are_audited_and_need_a_permission(
    boss: Client, viewer: Client, action: str, name: str, changed: str
) -> None:
    run = make_run({"nodes": {"best": human(choose_from=[1])}}, best="running")
    page = reverse(f"admin:workflows_run_{action}", args=[run.id])
    assert viewer.post(page).status_code in (302, 403)
    run.refresh_from_db()
    assert getattr(run, changed) is None
    boss.post(page, {"_form_submitted": "on"})
    run.refresh_from_db()
    assert getattr(run, changed) is not None
    entry = AuditEntry.objects.get(action=name)
    assert (entry.actor, entry.target) == ("user:boss", f"run:{run.id}")


def test_hostile_names_and_values_are_shown_as_text(boss: Client) -> None:
    text = HOSTILE.replace("\0", "").encode("utf-8", "replace").decode()
    run = make_run(
        {"nodes": {"best": human(choose_from=[text]), "sig": {"signal": {"name": "s"}}}},
        best="running",
        sig="pending",
    )
    ask(run, "best", title=text, choose_from=[text, {text: text}, "https://elsewhere.example/<x>.png"])
    Run.objects.filter(id=run.id).update(
        inputs={text: [text]}, error_code="x", error_message=text, tags=[text], error_node="best"
    )
    page = page_of(boss, run)
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert 'src="https://elsewhere' not in page, "looking sends no request to another host"


def test_a_run_of_1000_nodes_and_a_map_of_100000_is_a_small_page(boss: Client) -> None:
    nodes = {
        f"n{number}": {"timer": {"seconds": 1}, "needs": [f"n{number - 1}"] if number else []}
        for number in range(998)
    }
    nodes["all"] = {"map": {"count": 100_000}, "timer": {"seconds": 1}}
    nodes["last"] = {"timer": {"seconds": 1}, "needs": [f"n{number}" for number in range(0, 998, 2)]}
    run = make_run({"nodes": nodes}, **dict.fromkeys(nodes, "pending"))
    row = Node.objects.create(
        run=run, key="all", base="all", kind="timer", state="running", started_at=timezone.now()
    )
    MapState.objects.create(
        node=row, total=100_000, next_index=4_000, running=1_000, completed=2_990, failed=10
    )
    Node.objects.bulk_create(
        Node(
            run=run, key=f"all[{index}]", base="all", index=index, kind="timer", state="running", id=new_id()
        )
        for index in range(4_000)
    )
    with CaptureQueriesContext(connection) as asked:
        page = page_of(boss, run)
    assert len(page) <= 200_000
    assert len(asked) <= 30
    assert "2990 done" in page
    with CaptureQueriesContext(connection) as asked:
        live = boss.get(reverse("admin:workflows_run_live", args=[run.id]))
    assert len(live.content) <= 120_000
    assert len(asked) <= 30


def test_a_live_update_without_news_is_empty(boss: Client) -> None:
    run = make_run({"nodes": {"a": {"timer": {"seconds": 1}}}}, a="completed")
    Run.objects.filter(id=run.id).update(state=RunState.COMPLETED, finished_at=timezone.now())
    page = reverse("admin:workflows_run_live", args=[run.id])
    first = boss.get(page)
    assert first.status_code == 200
    mark = first.context["mark"]
    with CaptureQueriesContext(connection) as asked:
        assert boss.get(page, {"mark": mark}).status_code == 204
    *sign_in, query = asked.captured_queries
    assert len(sign_in) == 2
    assert not re.search("spec|inputs|output|node_states", query["sql"])
    Run.objects.filter(id=run.id).update(event_seq=2)
    assert boss.get(page, {"mark": mark}).status_code == 200


def test_a_live_update_of_a_run_that_waits_asks_few_queries(boss: Client) -> None:
    run = make_run({"nodes": {"best": human(choose_from=[1])}}, best="running")
    ask(run, "best", choose_from=[1])
    page = reverse("admin:workflows_run_live", args=[run.id])
    boss.get(page)
    with CaptureQueriesContext(connection) as asked:
        assert boss.get(page, {"mark": "old"}).status_code == 200
    assert len(asked) <= 13


def test_a_form_stays_while_its_question_does(boss: Client) -> None:
    run = make_run({"nodes": {"best": human(choose_from=[1])}}, best="running")
    ask(run, "best", choose_from=[1])
    page = reverse("admin:workflows_run_live", args=[run.id])
    first = boss.get(page)
    assert b'id="run-waits"' in first.content
    again = boss.get(page, {"waits": first.context["waits_mark"]})
    assert b'id="run-waits"' not in again.content


def test_the_inbox_lists_open_questions_with_their_run(boss: Client) -> None:
    run = make_run({"nodes": {"best": human(choose_from=[1])}}, best="running")
    ask(run, "best", title="Which fox?", choose_from=[1])
    done = ask(run, "old", title="An old one", choose_from=[1])
    Wait.objects.filter(node=done.node).update(answered_at=timezone.now())
    page = boss.get(reverse("admin:workflows_wait_changelist")).content.decode()
    assert "Which fox?" in page
    assert "An old one" not in page
    assert f"{run.id}/change/#wait-" in page


def test_a_version_shows_what_it_changed(boss: Client) -> None:
    run = make_run({"nodes": {"a": {"timer": {"seconds": 1}}}}, a="pending")
    second = Version.objects.create(
        workflow=run.version.workflow,
        number=2,
        spec={"nodes": {"a": {"timer": {"seconds": 2}}}},
        sha256="1" * 64,
        created_at=timezone.now(),
    )
    page = boss.get(reverse("admin:workflows_version_change", args=[second.pk])).content.decode()
    assert "<ins>+" in page
    assert "<del>-" in page
    page = boss.get(reverse("admin:workflows_workflow_change", args=[second.workflow_id])).content.decode()
    assert "version 2" in page


def test_the_graph_has_each_node_of_the_definition_once() -> None:
    spec = {
        "nodes": {"b": {"timer": {"seconds": 1}, "needs": ["a"]}, "a": {"timer": {"seconds": 1}}},
        "on_failure": {"node": "notify", "running": "finish"},
    }
    spec["nodes"]["notify"] = {"timer": {"seconds": 1}}
    run = make_run(spec, a="completed", b="running", notify="pending")
    graph = graph_of(run, plan_of(run))
    assert [node.key for node in graph.nodes] == ["a", "b", "notify"]
    assert graph.edges == [(0, 1)]
    assert [node.state for node in graph.nodes] == [NodeState.COMPLETED, NodeState.RUNNING, NodeState.PENDING]
    assert json.dumps(graph.shape())


CHAIN = {
    "nodes": {
        "a": {"timer": {"seconds": 0}},
        "b": {"timer": {"seconds": 0}, "needs": ["a"]},
        "c": {"timer": {"seconds": 0}, "needs": ["b"]},
        "d": {"timer": {"seconds": 0}},
        "notify": {"timer": {"seconds": 0}},
    },
    "on_failure": {"running": "finish", "node": "notify"},
}


def ended_run(state: str = "completed", spec: dict[str, Any] = CHAIN, **states: str) -> Run:
    run = make_run(spec, **{**dict.fromkeys(spec["nodes"], "completed"), **states})
    Run.objects.filter(id=run.id).update(state=state, finished_at=timezone.now())
    run.refresh_from_db()
    return run


def restart(client: Client, run: Run, **fields: Any) -> Any:
    page = reverse("admin:workflows_run_restart", args=[run.id])
    return client.post(page, {"round": "1", **fields}, follow=True)


def test_chosen_nodes_run_again_after_a_look_at_what_follows_them(boss: Client) -> None:
    run = ended_run()
    page = page_of(boss, run)
    assert page.count('name="node"') == 4, "the node of on_failure can't be chosen"
    asked = restart(boss, run, node=["b"]).content.decode()
    assert "Chosen: 1" in asked
    assert "After them: 1" in asked
    run.refresh_from_db()
    assert run.state == RunState.COMPLETED, "nothing happens before it is confirmed"
    assert b"run again" in restart(boss, run, nodes="b").content
    run.refresh_from_db()
    assert (run.state, run.round) == (RunState.RUNNING, 2)
    assert [run.node_states[key] for key in "abcd"] == ["completed", "pending", "pending", "completed"]
    entry = AuditEntry.objects.get(action="restart_run")
    assert (entry.actor, entry.target) == ("user:boss", f"run:{run.id}")
    assert entry.detail["nodes"] == ["b"]
    assert 'name="node"' not in page_of(boss, run), "it runs"


def test_a_page_from_before_a_restart_restarts_nothing(boss: Client) -> None:
    run = ended_run()
    Run.objects.update(round=2)
    for fields in ({"node": ["a"]}, {"nodes": "a"}):
        assert b"was restarted meanwhile" in restart(boss, run, **fields).content
    run.refresh_from_db()
    assert run.state == RunState.COMPLETED


def test_a_second_click_and_wrong_nodes_are_refused_with_a_reason(boss: Client) -> None:
    run = ended_run()
    assert b"Choose at least one node." in restart(boss, run).content
    assert b"Choose at least one node." in restart(boss, run, nodes=" ").content
    assert b"There is no node &lt;b&gt;" in restart(boss, run, node=["<b>"]).content
    assert b"There is no node notify" in restart(boss, run, nodes="notify").content
    restart(boss, run, nodes="a")
    assert b"was restarted meanwhile" in restart(boss, run, nodes="a").content
    assert b"still under way" in restart(boss, run, nodes="a", round="2").content
    run.refresh_from_db()
    assert run.round == 2


def test_all_1000_nodes_can_be_chosen(boss: Client) -> None:
    nodes = {f"n{number}": {"timer": {"seconds": 0}} for number in range(1_000)}
    run = ended_run(spec={"nodes": nodes})
    page = boss.get(reverse("admin:workflows_run_restart", args=[run.id])).content.decode()
    assert page.count('name="node"') == 1_000
    assert "Choose among all nodes" in page_of(boss, run)
    asked = restart(boss, run, node=list(nodes)).content.decode()
    assert "Chosen: 1000" in asked
    assert len(asked) < 100_000
    restart(boss, run, nodes=" ".join(nodes))
    run.refresh_from_db()
    assert run.round == 2


def test_restart_and_erasure_take_a_permission(viewer: Client) -> None:
    run = ended_run()
    page = page_of(viewer, run)
    assert "Restart" not in page
    assert "Erase data" not in page
    assert restart(viewer, run, nodes="a").status_code == 403
    assert viewer.get(reverse("admin:workflows_run_restart", args=[run.id])).status_code == 403
    erase = reverse("admin:workflows_run_erase_one", args=[run.id])
    assert viewer.post(erase, {"_form_submitted": "on"}).status_code == 403
    run.refresh_from_db()
    assert (run.round, run.erase_requested_at) == (1, None)


def test_a_run_is_erased_after_a_question_and_says_so(boss: Client) -> None:
    run = ended_run("failed", a="failed")
    Run.objects.filter(id=run.id).update(inputs={"name": "Ada"}, error_code="x", error_message="of Ada")
    page = page_of(boss, run)
    assert "Ada" in page
    erase = reverse("admin:workflows_run_erase_one", args=[run.id])
    assert "Erase the data of this run?" in boss.get(erase).content.decode()
    run.refresh_from_db()
    assert run.erase_requested_at is None
    boss.post(erase, {"_form_submitted": "on"})
    entry = AuditEntry.objects.get(action="erase_run_data")
    assert (entry.actor, entry.target) == ("user:boss", f"run:{run.id}")
    page = page_of(boss, run)
    assert "Ada" not in page
    assert "The data of this run was erased" in page
    assert "SHA-256 of what it was" in page
    assert "Restart from failed" not in page
    assert 'name="node"' not in page
    assert boss.post(erase, {"_form_submitted": "on"}).status_code == 403, "there is nothing left to erase"
    assert b"data of the run was erased" in restart(boss, run, nodes="a").content


def test_a_run_that_has_not_ended_has_no_button_to_erase_it(boss: Client) -> None:
    run = make_run(CHAIN, **dict.fromkeys(CHAIN["nodes"], "pending"))
    assert "Erase data" not in page_of(boss, run)
    erase = reverse("admin:workflows_run_erase_one", args=[run.id])
    assert boss.post(erase, {"_form_submitted": "on"}).status_code == 403


@pytest.mark.database
def test_a_run_lists_its_sub_runs_and_these_name_their_parent(boss: Client) -> None:
    spec = {"nodes": {"part": {"map": {"count": 30}, "workflow": "w1"}}}
    run = make_run(spec, part="running")
    children = []
    for index in range(25):
        node = Node.objects.create(
            run=run, key=f"part[{index}]", base="part", index=index, kind="workflow", state="running"
        )
        child = make_run(CHAIN, run.tenant, a="running")
        Run.objects.filter(id=child.id).update(parent_node=node, depth=1)
        children.append(child)
    page = page_of(boss, run)
    assert children[-1].id in page
    assert children[0].id not in page, "the newest 20"
    listed = boss.get(reverse("admin:workflows_run_changelist"), {"parent": run.id}).content.decode()
    assert children[0].id in listed
    child = page_of(boss, children[3])
    assert run.id in child
    assert "part[3]" in child
    assert "Erase data" not in child, "its data is erased with that of its parent"


def test_the_list_of_runs_leaves_sub_runs_out_unless_it_is_asked(admin_client: Client) -> None:
    above = make_run({"nodes": {"sub": {"workflow": "w1"}}}, sub="running")
    node = Node.objects.create(run=above, key="sub", base="sub", kind="workflow", state="running")
    below = make_run({"nodes": {"ask": human(choose_from=[1])}}, above.tenant, ask="running")
    Run.objects.filter(id=below.id).update(parent_node=node, depth=1, tags=["night"])
    RunTag.objects.create(run=below, tenant=below.tenant, tag="night")
    ask(below, "ask", choose_from=[1])
    Run.objects.filter(id=above.id).update(paused_at=timezone.now())

    def listed(**query: str) -> set[str]:
        answer = admin_client.get(reverse("admin:workflows_run_changelist"), query)
        assert answer.status_code == 200
        return {run.id for run in answer.context["cl"].result_list}

    assert listed() == {above.id}
    assert listed(parent="any") == {above.id, below.id}
    assert listed(parent=above.id) == {below.id}
    assert listed(waits="open") == listed(q="night") == listed(q=below.version.workflow.name) == {below.id}
    assert listed(waits="paused") == {above.id}
    assert listed(version__workflow__id__exact=str(below.version.workflow_id)) == {below.id}
    page = admin_client.get(reverse("admin:workflows_run_change", args=[above.id])).content.decode()
    assert f"?parent={above.id}" in page


def test_the_page_says_when_a_run_ends_or_why_that_is_unknown(admin_client: Client) -> None:
    spec = {"nodes": {"ask": human(choose_from=[1], expires_seconds=600), "t": {"timer": {"seconds": 60}}}}
    run = make_run(spec, ask="running", t="pending")
    wait = ask(run, "ask", choose_from=[1])
    Wait.objects.filter(pk=wait.pk).update(due_at=timezone.now() + timedelta(seconds=600))
    Run.objects.filter(id=run.id).update(deadline_at=timezone.now() + timedelta(seconds=30))

    def ends() -> str:
        page = admin_client.get(reverse("admin:workflows_run_change", args=[run.id])).content.decode()
        shown = page.partition("Ends in about</dt><dd>")[2].partition("</dd>")[0]
        return re.sub("<[^>]*>", "", shown)

    found = ends()
    assert re.match(r"\S+ and answers \(\S+ without any\) after", found), found
    assert found.endswith("after its deadline")
    Run.objects.filter(id=run.id).update(paused_at=timezone.now())
    assert ends() == "unknown: paused"
