"""`drain`, `on`, `off`, `pause`, `resume`: the services, by name, with an audit entry."""

from __future__ import annotations

import pytest

from dispatcher_project.cli import switching
from gpus.models import AuditEntry, Pause, Server
from jobs.domain.retry import Ending, RetryPolicy
from jobs.transitions import End, end_attempt
from tests.support.queue_harness import QueueHarness
from tests.support.terminal import Terminal, while_waiting

pytestmark = pytest.mark.django_db


def test_a_drained_server_gets_no_job_until_it_is_on_again(queue: QueueHarness, terminal: Terminal) -> None:
    queue.server()
    assert terminal("drain", "gpu-1").said == "gpu-1 set to draining\n"
    queue.job()
    assert queue.leases.claim("m", worker="w", attempt_id="a") is None
    queue.wakes.clear()
    assert terminal("on", "gpu-1", "--json").json["desired"] == "on"
    assert queue.wakes, "waiting workers are woken"
    assert queue.leases.claim("m", worker="w", attempt_id="a") is not None
    assert [entry.detail["after"] for entry in AuditEntry.objects.order_by("id")] == ["draining", "on"]
    assert {entry.actor[:4] for entry in AuditEntry.objects.all()} == {"cli:"}


def test_all_servers_are_switched_off_only_with_all_and_yes(queue: QueueHarness, terminal: Terminal) -> None:
    queue.server("gpu-1")
    queue.server("gpu-2")
    assert terminal("off").said == "give servers by name, --machine or --all: exactly one of these"
    assert terminal("off", "gpu-1", "--all").status == 2
    unknown = terminal("off", "gpu-1", "gpu-3")
    assert unknown.said == "no server is named gpu-3; there are gpu-1, gpu-2"
    assert set(Server.objects.values_list("desired", flat=True)) == {"on"}, "all or nothing"
    assert terminal("off", "--all").said == "switch off 2 servers and stop their jobs? Confirm with --yes"
    assert set(Server.objects.values_list("desired", flat=True)) == {"on"}
    assert terminal("off", "--all", "--yes").status == 0
    assert set(Server.objects.values_list("desired", flat=True)) == {"off"}


def test_a_pattern_selects_the_gpus_of_a_box_alone(queue: QueueHarness, terminal: Terminal) -> None:
    for name in ("box-gpu0", "box-gpu1", "other-gpu0"):
        queue.server(name)
    assert terminal("drain", "box-*").status == 0
    drained = Server.objects.filter(desired="draining").order_by("name").values_list("name", flat=True)
    assert list(drained) == ["box-gpu0", "box-gpu1"]
    assert terminal("drain", "none-*").said.startswith("no server is named none-*;")


def test_a_machine_is_switched_in_one_transaction(queue: QueueHarness, terminal: Terminal) -> None:
    for name, machine in (("box-gpu0", "box"), ("llm", "box"), ("box-gpu1", "other"), ("alone", None)):
        queue.server(name)
        Server.objects.filter(name=name).update(machine=machine)
    assert terminal("off", "--machine", "box").said == "box-gpu0 set to off\nllm set to off\n"
    off = Server.objects.filter(desired="off").order_by("name").values_list("name", flat=True)
    assert list(off) == ["box-gpu0", "llm"]
    queue.wakes.clear()
    output = terminal("on", "--machine", "box", "--json").json
    assert (output["servers"], output["desired"], output["mirrored"]) == (["box-gpu0", "llm"], "on", True)
    assert AuditEntry.objects.filter(action="switch_machine", target="machine:box").count() == 2
    assert {entry.actor[:4] for entry in AuditEntry.objects.all()} == {"cli:"}
    unknown = terminal("drain", "--machine", "boxes")
    assert (unknown.status, unknown.said) == (
        2,
        "no server belongs to a machine boxes; the machines are box, other",
    )
    assert terminal("drain", "llm", "--machine", "box").said.startswith("give servers by name")


def test_wait_shows_running_jobs_until_none_is_left(
    queue: QueueHarness, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.server()
    job = queue.job()
    lease = queue.claim()

    def finish() -> None:
        end = End(job.id, lease.attempt_id, 1, lease.slot, Ending(), RetryPolicy(), queue.clock.now())
        assert end_attempt(end).won

    while_waiting(monkeypatch, switching, finish)
    lines = terminal("drain", "gpu-1", "--wait").said.splitlines()
    assert lines[2].split()[:4] == ["gpu-1/0", job.id, "m", "running"]
    assert lines[-1] == "idle: no job is running there"


def test_wait_ends_after_its_timeout(
    queue: QueueHarness, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    while_waiting(monkeypatch, switching, lambda: None)
    queue.server()
    queue.job()
    queue.claim()
    run = terminal("drain", "gpu-1", "--wait", "--timeout", "0.001", "--json")
    assert (run.status, len(run.json["running"])) == (3, 1)
    late = terminal("drain", "gpu-1", "--wait", "--timeout", "0.001")
    assert (late.status, late.said.splitlines()[-1]) == (3, "1 job still running there after 0.001 s")
    assert "1 job still running there; --wait waits for them" in terminal("drain", "gpu-1").said


def test_without_redis_the_change_takes_effect_later(queue: QueueHarness, terminal: Terminal) -> None:
    queue.server()
    queue.redis_is_gone = True
    run = terminal("drain", "gpu-1")
    assert (run.status, "takes effect once Redis is back" in run.said) == (0, True)
    assert Server.objects.get().desired == "draining"


def test_a_tenant_is_paused_and_resumed_by_name(queue: QueueHarness, terminal: Terminal) -> None:
    queue.server()
    name = queue.tenant.name
    assert terminal("pause", "tenant", name, "--reason", "owes us").said == f"tenant {name} paused\n"
    pause = Pause.objects.get()
    assert (pause.name, pause.reason) == (str(queue.tenant.pk), "owes us")
    queue.job()
    assert queue.leases.claim("m", worker="w", attempt_id="a") is None
    assert "nothing changed" in terminal("pause", "tenant", name).said
    assert terminal("resume", "tenant", name, "--json").json["changed"] is True
    assert queue.leases.claim("m", worker="w", attempt_id="a") is not None
    assert {entry.target for entry in AuditEntry.objects.all()} == {f"tenant:{name}"}


def test_the_system_and_models_are_paused_and_resumed(queue: QueueHarness, terminal: Terminal) -> None:
    queue.server()
    assert (
        terminal("pause", "system").said
        == "pause the whole system, so that no job starts on any server? Confirm with --yes"
    )
    assert not Pause.objects.exists()
    assert terminal("pause", "system", "--yes").said == "system paused\n"
    assert terminal("pause", "model", "m").said == "model m paused\n"
    assert {pause.kind for pause in Pause.objects.all()} == {"system", "model"}
    assert terminal("resume", "system").said == "system resumed\n"
    assert "nothing changed" in terminal("resume", "system").said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["system", "x"], "`pause system` takes no name"),
        (["model"], "name the model: `pause model NAME`"),
        (["model", "nope"], "No model 'nope' is registered."),
        (["tenant", "nope"], "no tenant is named nope"),
    ],
)
def test_a_wrong_target_of_a_pause_is_one_line(terminal: Terminal, arguments: list[str], says: str) -> None:
    run = terminal("pause", *arguments)
    assert (run.status, says in run.said) == (2, True)
    assert not Pause.objects.exists()
