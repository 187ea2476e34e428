"""`workflow`, `run`, `runs`, `answer`, `signal`: what they do, print and refuse."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from artifacts.models import Artifact
from dispatcher_project.cli import runs as runs_on_screen
from dispatcher_project.cli.runs import event_line
from dispatcher_project.management.commands import run as run_command
from dispatcher_project.management.commands import workflow as workflow_command
from foundation.ids import new_id
from gpus.models import AuditEntry, Process
from jobs.operations.tenants import create_key
from tests.support.factories import make_model, make_tenant
from tests.support.queue_harness import QueueHarness, queue
from tests.support.queue_workflows import DETECT, RECONSTRUCT, STREETVIEW
from tests.support.terminal import Terminal, terminal, while_waiting
from workflows.execution.advancer import Advancer
from workflows.models import MapState, Run, RunEvent, Version
from workflows.schedules.models import Schedule
from workflows.sweeps.cancelling_runs import sweep as cancelling_runs
from workflows.tasks import advance_now

__all__ = ["queue", "terminal"]
pytestmark = pytest.mark.django_db

CHOICE: dict[str, Any] = {
    "name": "choice",
    "inputs": {"type": "object", "required": ["images"]},
    "nodes": {
        "best": {"human": {"title": "Which one?", "choose_from": {"$ref": "inputs.images"}}},
        "paid": {"signal": {"name": "payment"}, "needs": ["best"]},
        "job": {
            "model": "m",
            "payload": {"of": {"$ref": "best"}},
            "needs": ["paid"],
            "when": "paid.euro > `1`",
        },
    },
    "output": {"best": {"$ref": "best"}},
}
YAML = """
nodes:
  best:
    human: {title: "Which one?", choose_from: [2026-01-01, b]}
"""
PYTHON = """
from dispatcher_client import Workflow
wf = Workflow("of_python")
wf.timer(seconds=1, key="pause")
broken = 3
"""


@pytest.fixture(autouse=True)
def tenant(queue: QueueHarness) -> Any:
    make_model("m")
    return make_tenant("operator")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "choice.json"
    path.write_text(json.dumps(CHOICE))
    return str(path)


def advance(queue: QueueHarness) -> None:
    cancelling_runs(queue.ports)
    for run in Run.objects.filter(finished_at=None):
        advance_now(Advancer(queue.ports), run.id)


def started(queue: QueueHarness, terminal: Terminal, file: str) -> str:
    terminal("workflow", "put", file)
    run_id = terminal("workflow", "run", "choice", '{"images": ["a", "b"]}', "--json").json["run_id"]
    advance(queue)
    return str(run_id)


def test_a_definition_is_stored_shown_and_compared(terminal: Terminal, file: str) -> None:
    assert terminal("workflow", "check", file).said == "ok: 3 nodes\n"
    assert not Version.objects.exists()
    assert terminal("workflow", "put", file).said == "choice v1, of operator\n"
    assert terminal("workflow", "put", file).said == "choice v1 has this content already, of operator\n"
    other = {"output": {"other": {"$ref": "best"}}}
    Path(file).write_text(json.dumps(other | CHOICE | other))  # its keys in another order, too
    assert terminal("workflow", "put", file, "--json").json["version"] == 2
    assert json.loads(terminal("workflow", "show", "choice", "--version", "1").said) == CHOICE
    assert [
        row["version"] for row in terminal("workflow", "versions", "choice", "--json").json["results"]
    ] == [*(2, 1)]
    assert "v2" in terminal("workflow", "versions", "choice").said
    diff = terminal("workflow", "diff", "choice").said.splitlines()
    assert len([line for line in diff if line.startswith(("+", "-"))]) == 4, diff
    assert diff[:2] == ["--- choice v1", "+++ choice v2"]
    assert any(line.startswith("+") and "other" in line for line in diff)
    assert terminal("workflow", "diff", "choice", "2", "2").said == "no difference\n"
    assert terminal("workflow", "list", "--json").json == {
        "results": [{"name": "choice", "latest": 2, "tenant": "operator"}]
    }
    assert "choice" in terminal("workflow", "list").said
    drawn = terminal("workflow", "mermaid", file).said
    # PostgreSQL does not keep the order of the keys of JSON
    assert sorted(drawn) == sorted(terminal("workflow", "mermaid", "choice", "--version", "2").said)
    assert "n_best --> n_paid" in drawn


def test_yaml_and_python_are_read(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "asks.yaml"
    path.write_text(YAML)
    assert terminal("workflow", "put", str(path)).said == "asks v1, of operator\n"
    shown = terminal("workflow", "show", "asks", "--json").json["definition"]
    assert shown["nodes"]["best"]["human"]["choose_from"] == ["2026-01-01", "b"]
    (tmp_path / "of_python_file.py").write_text(PYTHON)
    monkeypatch.chdir(tmp_path)
    assert terminal("workflow", "put", "of_python_file:wf").said == "of_python v1, of operator\n"


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.json", "{", "a.json: it is not valid JSON"),
        ("a.json", '{"nodes": {}, "nodes": {}}', "more than one"),
        ("a.json", '{"nodes": {"a": {"model": "nix"}}}', "/nodes/a/model: There is no model nix"),
        ("a.yaml", "nodes: [", "a.yaml line "),
        ("a.yaml", "nodes: &x {}\nother: *x", "a.yaml line 2: aliases are not allowed"),
        ("a.yaml", "a: 1\na: 2", "a.yaml line 1: a key is there twice"),
        ("a.yaml", "1: 2", "is not a text"),
        ("gone.json", None, "gone.json cannot be read: No such file"),
        ("no_such_module_x:wf", None, "neither such a file nor a module"),
        ("json:wf", None, "has no attribute"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_with_the_place(  # noqa: PLR0917
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str | None, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path(name).write_text(text)
    for action in ("check", "put"):
        refused = terminal("workflow", action, name)
        assert (refused.status, why in refused.said) == (2, True), refused.said


def test_a_check_warns_of_sub_workflows_that_are_not_stored(
    terminal: Terminal, file: str, tmp_path: Path
) -> None:
    parent = tmp_path / "parent.json"
    inputs = {"images": [1]}
    nodes: dict[str, Any] = {
        "sub": {"workflow": "choice", "inputs": inputs},
        "old": {"workflow": "choice", "version": 2, "inputs": inputs},
    }
    parent.write_text(json.dumps({"nodes": nodes}))
    for action, said in (("check", "ok: 2 nodes\n"), ("put", "parent v1, of operator\n")):
        out, err = StringIO(), StringIO()
        call_command("workflow", action, str(parent), stdout=out, stderr=err)
        assert out.getvalue() == said
        assert err.getvalue().splitlines() == [
            "warning: /nodes/sub/workflow: there is no workflow choice yet (tenant operator)",
            "warning: /nodes/old/workflow: there is no version 2 of the workflow choice yet "
            "(tenant operator)",
        ]
    terminal("workflow", "put", file)
    (warning,) = terminal("workflow", "check", str(parent), "--json").json["warnings"]
    assert warning == {
        "pointer": "/nodes/old/workflow",
        "text": "there is no version 2 of the workflow choice yet",
    }
    nodes["old"]["version"] = 1
    parent.write_text(json.dumps({"nodes": nodes}))
    assert terminal("workflow", "check", str(parent)).said == "ok: 2 nodes\n"
    nodes["sub"]["inputs"] = {"images": {"$ref": "old"}}
    nodes["new"] = {"workflow": "choice"}
    parent.write_text(json.dumps({"nodes": nodes}))
    (warning,) = terminal("workflow", "check", str(parent), "--json").json["warnings"]
    assert warning["pointer"] == "/nodes/new/inputs"
    assert warning["text"].startswith("the newest version of choice refuses this: ")


def test_a_python_workflow_with_a_mistake_names_its_line(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mistake = "from dispatcher_client import Workflow\nwf = Workflow('w')\nwf.timer()\n"
    (tmp_path / "mistaken_workflow.py").write_text(mistake)
    refused = terminal("workflow", "check", "mistaken_workflow:wf")
    assert (refused.status, refused.said) == (
        2,
        "mistaken_workflow.py:3: a timer has either seconds or until",
    )


def test_a_run_is_started_listed_answered_and_signalled(
    queue: QueueHarness, terminal: Terminal, file: str
) -> None:
    run_id = started(queue, terminal, file)
    refused = terminal("workflow", "run", "choice", "{}")
    assert refused.status == 2
    assert refused.said.startswith('choice: /inputs: "images" is a required property'), refused.said
    assert run_id in terminal("runs", "--status", "running", "--workflow", "choice").said
    assert run_id in terminal("runs", "--tenant", "operator").said
    assert [row["run_id"] for row in terminal("runs", "--json").json["results"]] == [run_id]
    assert terminal("runs", "--status", "failed").said == "no run matches\n"
    shown = terminal("run", run_id.lower()).said
    assert "waits for best" in shown
    assert "pending" in shown
    assert terminal("run", run_id, "--json").json["nodes"][0]["question"]["choose_from"] == ["a", "b"]
    assert "Which one?" in terminal("answer").said
    (open_wait,) = terminal("answer", "--json").json["results"]
    assert (open_wait["run_id"], open_wait["key"]) == (run_id, "best")
    wrong = terminal("answer", run_id, "best", "c")
    assert (wrong.status, 'none of the choices: "a",' in wrong.said) == (2, True), wrong.said
    misspelt = terminal("answer", run_id, "bset", "b")
    assert "no node bset. These wait for an answer: best." in misspelt.said
    assert open_wait["round"] == 1
    late = terminal("answer", run_id, "best", "b", "--round", "2")
    assert (late.status, "it is in round 1" in late.said) == (2, True), late.said
    assert terminal("answer", run_id, "best", "b").said == f"{run_id} best: answered\n"
    assert terminal("answer", run_id, "best", '"a"').status == 2
    assert terminal("answer").said == "nothing waits for an answer\n"
    assert terminal("signal", "payment").status == 1
    advance(queue)
    for _ in range(2):
        sent = terminal("signal", "payment", '{"euro": 1}', "--run", run_id, "--idempotency-key", "k")
        assert sent.said == "taken by 1 node of operator\n"
    advance(queue)
    assert terminal("run", run_id, "--json").json["output"] == {"best": "b"}
    assert set(AuditEntry.objects.values_list("action", flat=True)) >= {"answer_wait", "send_signal"}


def test_a_signal_goes_to_the_tenant_whose_runs_wait_for_it(
    queue: QueueHarness, terminal: Terminal, tmp_path: Path
) -> None:
    path = tmp_path / "paid.json"
    path.write_text(json.dumps({"nodes": {"paid": {"signal": {"name": "payment"}}}}))
    assert terminal("signal", "payment").said == "taken by 0 nodes of operator\n"
    for tenant in ("acme", "beta"):
        make_tenant(tenant)
        assert terminal("workflow", "run", str(path), "--tenant", tenant).status == 0
    advance(queue)
    assert terminal("signal", "payment").said == (
        "name a tenant with --tenant: runs of acme, beta wait for payment"
    )
    assert terminal("signal", "payment", "--tenant", "beta").said == "taken by 1 node of beta\n"
    assert terminal("signal", "payment").said == "taken by 1 node of acme\n"


def test_a_python_file_is_no_json(terminal: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "film.py"
    path.write_text(PYTHON)
    said = terminal("workflow", "check", str(path)).said
    assert said == f"{path} is Python: name the Workflow in it as module:name, such as film:wf"


def test_runs_are_filtered_and_paged(queue: QueueHarness, terminal: Terminal, file: str) -> None:
    assert terminal("runs").said == "no runs; `workflow run NAME` starts one\n"
    first = started(queue, terminal, file)
    part = {"name": "whole", "nodes": {"sub": {"workflow": "choice", "inputs": {"images": [1]}}}}
    Path(file).write_text(json.dumps(part))
    terminal("workflow", "put", file)
    whole = terminal("workflow", "run", "whole", "--tag", "night", "--json").json["run_id"]
    for _ in range(3):
        advance(queue)
    (below,) = Run.objects.filter(depth=1)

    def listed(*options: str) -> list[str]:
        return [row["run_id"] for row in terminal("runs", "--json", *options).json["results"]]

    assert listed() == [whole, first]
    assert listed("--parent", "any") == [below.id, whole, first]
    assert listed("--parent", whole.lower()) == [below.id]
    assert listed("--tag", "night") == [whole]
    assert listed("--waiting") == [below.id, first]
    assert f"{whole} sub" in terminal("runs", "--parent", whole).said
    assert f"sub-run of {whole} sub" in terminal("run", below.id).said
    terminal("run", first, "--pause")
    assert listed("--paused") == [first]
    page = terminal("runs", "--limit", "1")
    assert f"… older ones: --before {whole}" in page.said
    assert listed("--before", whole) == [first]
    assert terminal("runs", "--limit", "1", "--json").json["before"] == whole
    assert terminal("runs", "--before", first).said == "no run matches\n"
    refused = terminal("runs", "--parent", "no-such-id")
    assert "neither none, any nor the id of a run" in refused.said


def test_a_key_means_one_run(terminal: Terminal, file: str) -> None:
    terminal("workflow", "put", file)
    run = ("workflow", "run", "choice", '{"images": ["a"]}', "--idempotency-key", "nightly-1")
    first, again = terminal(*run, "--json").json["run_id"], terminal(*run)
    assert again.said.startswith(f"{first} was started before; "), again.said
    assert Run.objects.count() == 1
    other = terminal(*run, "--priority", "2")
    assert (other.status, Run.objects.count()) == (2, 1), "another request with the same key"
    bad = terminal(*run[:-1], "two words")
    assert (bad.status, "printable ASCII" in bad.said) == (2, True), bad.said


def test_a_run_is_paused_resumed_cancelled_and_restarted(
    queue: QueueHarness, terminal: Terminal, file: str
) -> None:
    run_id = started(queue, terminal, file)
    assert terminal("run", run_id, "--pause").said == f"{run_id} starts no further nodes\n"
    assert "paused" in terminal("runs").said
    assert terminal("run", run_id, "--resume").said == f"{run_id} goes on\n"
    early = terminal("run", run_id, "--restart")
    assert (early.status, "still under way" in early.said) == (2, True), early.said
    assert terminal("run", run_id, "--cancel").said == f"{run_id} is being cancelled\n"
    advance(queue)
    assert Run.objects.get().state == "cancelled"
    ended = terminal("run", run_id, "--follow")
    assert (ended.status, "cancelled" in ended.said) == (1, True)
    assert terminal("run", run_id, "--restart", "--node", "best").said == f"{run_id} runs again, round 2\n"
    assert terminal("run", run_id, "--restart", "--node", "nix").status == 2
    assert terminal("run", run_id, "--node", "best").said == "--node is for --restart"
    assert terminal("run", "nix").said.startswith("there is no run nix")
    assert set(AuditEntry.objects.values_list("action", flat=True)) >= {
        *("pause_run", "resume_run", "cancel_run", "restart_run")
    }


def test_a_run_is_followed_to_its_end(
    queue: QueueHarness, terminal: Terminal, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = started(queue, terminal, file)

    def goes_on() -> None:
        answers = terminal("answer", "--json").json["results"]
        if answers:
            terminal("answer", run_id, "best", "a")
        else:
            terminal("signal", "payment", '{"euro": 1}')
        advance(queue)

    while_waiting(monkeypatch, run_command, goes_on)
    followed = terminal("run", run_id, "--follow")
    assert followed.status == 0
    lines = [line.split()[1:] for line in followed.said.splitlines()]
    assert ["node_started", "node=best"] in lines
    assert ["node_ended", "node=best", "state=completed"] in lines
    assert any("completed" in line and "choice" in line for line in lines)
    event = RunEvent(
        at=queue.clock.now(), type="node_ended", data={"code": "c", "node": "n", "state": "failed"}
    )
    assert str(event_line(event)).split()[1:] == ["node_ended", "node=n", "state=failed", "code=c"]


def test_names_that_no_key_has_are_warned_of(
    queue: QueueHarness, terminal: Terminal, file: str, tenant: Any
) -> None:
    create_key(tenant, name="reviewer")
    human = {"title": "Which?", "choose_from": ["a"], "answer_by": ["reviewer", "reveiwer"]}
    Path(file).write_text(json.dumps({"name": "choice", "nodes": {"best": {"human": human}}}))
    warning = {
        "pointer": "/nodes/best/human/answer_by/1",
        "text": "the tenant has no API key named reveiwer",
    }
    for action in ("check", "put"):
        assert terminal("workflow", action, file, "--json").json["warnings"] == [warning]
    run_id = terminal("workflow", "run", "choice", "--json").json["run_id"]
    advance(queue)
    assert "reviewer, reveiwer" in terminal("answer").said
    assert terminal("answer", "--json").json["results"][0]["answer_by"] == human["answer_by"]
    assert terminal("answer", run_id, "best", "a").said == f"{run_id} best: answered\n"
    assert AuditEntry.objects.filter(action="answer_wait").count() == 1


def test_a_file_runs_without_being_stored(
    queue: QueueHarness, terminal: Terminal, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = terminal("workflow", "run", file, '{"images": ["a"]}', "--priority", "2", "--json").json
    assert (started["workflow"], started["version"], started["priority"]) == ("_choice", 1, 2)
    assert terminal("workflow", "list").said.startswith("no workflows")
    assert json.loads(terminal("workflow", "show", "_choice").said) == CHOICE
    assert AuditEntry.objects.get(action="start_run").detail == {"workflow": "_choice", "version": 1}
    refused = terminal("workflow", "run", file, "{}")
    assert (refused.status, f"{file}: /inputs" in refused.said) == (2, True), refused.said
    assert "--version is of a stored" in terminal("workflow", "run", file, "{}", "--version", "1").said
    terminal("workflow", "put", file)
    monkeypatch.chdir(Path(file).parent)
    (Path(file).parent / "choice").write_text("{}")
    named = terminal("workflow", "run", "choice", '{"images": ["a"]}', "--json").json
    assert named["workflow"] == "choice", "a file of that name does not hide the stored workflow"


def test_no_workflow_is_stored_under_a_name_that_a_path_has(terminal: Terminal, file: str) -> None:
    assert "/name: runs is reserved" in terminal("workflow", "put", file, "runs").said
    assert not Version.objects.exists()


def test_a_run_is_waited_for(
    queue: QueueHarness, terminal: Terminal, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal("workflow", "put", file)
    late = terminal("workflow", "run", "choice", '{"images": [1]}', "--wait", "0.01")
    assert late.status == 3
    assert re.fullmatch(r"\w+ running; `.*run \w+` shows more\n", late.said)
    while_waiting(monkeypatch, workflow_command, lambda: advance(queue))
    asks = terminal("workflow", "run", "choice", '{"images": [1]}', "--wait", "0.3")
    assert (asks.status, "running, waits for best; " in asks.said) == (3, True), asks.said

    def fails() -> None:
        advance(queue)
        Run.objects.filter(finished_at=None).update(cancel_requested_at=queue.clock.now())
        advance(queue)

    while_waiting(monkeypatch, workflow_command, fails)
    ended = terminal("workflow", "run", "choice", '{"images": [1]}', "--wait", "--json")
    assert (ended.status, ended.json["status"]) == (1, "cancelled")


def test_a_workflow_of_several_tenants_needs_a_name(terminal: Terminal, file: str) -> None:
    make_tenant("other")
    make_tenant("second")
    for tenant in ("second", "other"):
        terminal("workflow", "put", file, "--tenant", tenant)
    refused = terminal("workflow", "show", "choice")
    assert (refused.status, "--tenant" in refused.said) == (2, True)
    assert terminal("workflow", "show", "choice", "--tenant", "other").status == 0
    terminal("workflow", "put", file)
    assert terminal("workflow", "show", "choice", "--json").status == 0
    assert terminal("workflow", "show", "nix").said.startswith("there is no workflow nix of any tenant; `wo")
    make_tenant("empty")
    wrong = terminal("workflow", "show", "choice", "--tenant", "empty").said
    assert wrong.startswith(
        "there is no workflow choice of the tenant empty; --tenant names another: operator"
    )


def test_named_objects_stay_with_their_tenant(terminal: Terminal, file: str, tmp_path: Path) -> None:
    make_tenant("other")
    terminal("workflow", "put", file, "--tenant", "other")
    assert terminal("workflow", "put", file).said == "choice v1 has this content already, of other\n"
    schedule = tmp_path / "schedule.json"
    schedule.write_text(
        json.dumps({"every_seconds": 600, "workflow": {"name": "choice", "inputs": {"images": [1]}}})
    )
    assert terminal("schedule", "put", "often", str(schedule), "--json").status == 0
    assert Schedule.objects.get().tenant.name == "other"
    assert terminal("schedule", "show", "often").status == 0
    refused = terminal("schedule", "put", "often", str(schedule), "--tenant", "operator")
    assert refused.said.endswith("(tenant operator; --tenant names another)"), refused.said
    missing = terminal("schedule", "show", "often", "--tenant", "operator").said
    assert missing == "there is no schedule often of the tenant operator; --tenant names another: other"


def test_changes_by_commands_are_audited(terminal: Terminal, queue: QueueHarness, file: str) -> None:
    run_id = started(queue, terminal, file)
    terminal("run", run_id, "--cancel")
    advance(queue)
    terminal("run", run_id, "--restart", "--node", "best")
    terminal("run", run_id, "--cancel")
    advance(queue)
    assert terminal("run", run_id, "--erase").status == 2, "it asks"
    assert terminal("run", run_id, "--erase", "--yes").said == f"{run_id}: its data is erased\n"
    assert Run.objects.get().erased_at is not None
    entries = list(AuditEntry.objects.order_by("id").values_list("action", "target"))
    assert entries == [
        ("put_workflow", "workflow:choice"),
        ("start_run", f"run:{run_id}"),
        ("cancel_run", f"run:{run_id}"),
        ("restart_run", f"run:{run_id}"),
        ("cancel_run", f"run:{run_id}"),
        ("erase_run_data", f"run:{run_id}"),
    ]
    shown = terminal("run", run_id).said
    assert "run_cancelled" in shown
    assert "run_cancelled:" not in shown, "the text is erased"


def test_no_files_of_a_run_are_erased_from_a_host_that_may_not_have_the_webs_folder(
    terminal: Terminal, queue: QueueHarness, file: str
) -> None:
    run_id = started(queue, terminal, file)
    terminal("run", run_id, "--cancel")
    advance(queue)
    now = queue.ports.clock.now()
    Process.objects.create(name="web-9:7:a", kind="web", layout=1, started_at=now, beat_at=now)
    film = {"tenant_id": Run.objects.get().tenant_id, "sha256": "0" * 64, "bytes": 1}
    row = Artifact.objects.create(id=new_id(), created_at=now, expires_at=now, **film)
    run = terminal("run", run_id, "--erase", "--yes")
    assert (run.status, "DISPATCHER_ARTIFACT_STORE" in run.said) == (2, True), run.said
    assert Run.objects.get().erase_requested_at is None
    row.delete()
    assert terminal("run", run_id, "--erase", "--yes").status == 0, "there are no files"


def test_a_failed_run_names_its_node_once(terminal: Terminal, queue: QueueHarness, tmp_path: Path) -> None:
    parent = tmp_path / "parent.json"
    parent.write_text(json.dumps({"nodes": {"sub": {"workflow": "nowhere"}}}))
    terminal("workflow", "put", str(parent))
    run_id = terminal("workflow", "run", "parent", "--json").json["run_id"]
    advance(queue)
    failed = "node_failed: sub failed: unknown_workflow: there is no workflow nowhere"
    assert failed in terminal("run", run_id).said.splitlines()


def test_a_run_says_why_it_waits_when_it_ends_what_it_cost_and_where_its_page_is(
    terminal: Terminal, queue: QueueHarness, file: str
) -> None:
    run_id = started(queue, terminal, file)
    shown = terminal("run", run_id).said
    assert "best: answer: It waits for the answer of a person." in shown
    assert "ends in unknown: no time is known yet of job" in shown
    assert "cost 0.0 GPU-seconds" in shown
    assert f"/workflows/run/{run_id}/change/" in shown
    document = terminal("run", run_id, "--json").json
    assert document["ends_in"]["seconds"] is None
    assert document["cost"]["gpu_seconds"] == 0
    assert "waiting since" in terminal("answer").said
    terminal("run", run_id, "--pause")
    assert "ends in unknown: the run is paused" in terminal("run", run_id).said
    terminal("run", run_id, "--cancel")
    advance(queue)
    assert "run_cancelled: The run was cancelled." in terminal("run", run_id).said


def test_a_run_says_when_its_waits_and_its_deadline_end(
    terminal: Terminal, queue: QueueHarness, tmp_path: Path
) -> None:
    ask = {"human": {"title": "?", "choose_from": [1], "expires_seconds": 600}}
    path = tmp_path / "asks.json"
    path.write_text(
        json.dumps(
            {"nodes": {"ask": ask, "t": {"timer": {"seconds": 60}}, "j": {"model": "m", "payload": {}}}}
        )
    )
    terminal("workflow", "put", str(path))
    run_id = terminal("workflow", "run", "asks", "--deadline-seconds", "30", "--json").json["run_id"]
    advance(queue)
    shown = " ".join(terminal("run", run_id).said.split())
    end = r"ends in at least \S+ \S+, if answers come at once, after its deadline; no time is known yet of j"
    assert re.search(end, shown), shown
    assert re.search(r"ask: answer: It waits for the answer of a person\. \(until \S+ \S+ UTC\)", shown), (
        shown
    )
    assert terminal("run", run_id, "--json").json["ends_in"]["misses_deadline"] is True


def test_a_maps_row_counts_its_items(terminal: Terminal, queue: QueueHarness, tmp_path: Path) -> None:
    path = tmp_path / "many.json"
    path.write_text(json.dumps({"nodes": {"all": {"timer": {"seconds": 3600}, "map": {"count": 3}}}}))
    terminal("workflow", "put", str(path))
    run_id = terminal("workflow", "run", "many", "--json").json["run_id"]
    advance(queue)
    MapState.objects.update(completed=1, failed=1, running=1)
    assert "2 of 3, 1 failed" in terminal("run", run_id).said
    [node] = terminal("run", run_id, "--json").json["nodes"]
    assert node["items"] == {"total": 3, "completed": 1, "failed": 1, "running": 1, "left": 0}
    MapState.objects.update(completed=0, failed=0, running=3)


def test_a_run_gets_a_callback_url(terminal: Terminal, queue: QueueHarness, file: str) -> None:
    terminal("workflow", "put", file)
    url = "https://93.184.215.14/done"
    terminal("workflow", "run", "choice", '{"images": [1]}', "--callback-url", url)
    assert Run.objects.get().callback_url == url
    refused = terminal("workflow", "run", "choice", '{"images": [1]}', "--callback-url", "ftp://x")
    assert refused.status == 2
    assert Run.objects.count() == 1


def test_a_definition_of_queue_workflows_is_converted(terminal: Terminal, tmp_path: Path) -> None:
    definitions, pipelines = tmp_path / "definitions", tmp_path / "pipelines"
    definitions.mkdir()
    pipelines.mkdir()
    source = definitions / "streetview.json"
    source.write_text(json.dumps(STREETVIEW))
    missing = terminal("workflow", "convert", str(source))
    assert (missing.status, "give --pipelines FOLDER" in missing.said) == (2, True)
    for pipeline in (DETECT, RECONSTRUCT):
        (pipelines / f"{pipeline['name']}.schema.json").write_text(json.dumps(pipeline))
    found = terminal("workflow", "convert", str(source), "--json").json
    assert found["definition"]["name"] == "streetview_inspect"
    assert "detect/sv_fetch" in {note["place"] for note in found["notes"]}
    assert json.loads(terminal("workflow", "convert", str(source)).said) == found["definition"]
    source.write_text("[]")
    assert terminal("workflow", "convert", str(source)).status == 2


def test_nodes_on_screen_are_limited(
    queue: QueueHarness, terminal: Terminal, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = started(queue, terminal, file)
    monkeypatch.setattr(runs_on_screen, "MAX_NODES", 0)
    assert terminal("run", run_id, "--nodes", "--json").json["nodes"] == []
