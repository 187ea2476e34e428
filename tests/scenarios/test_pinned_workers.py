"""Workers that hold the models themselves: two of them, on the CPU, one pool. They and their processes are
killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpus.models import Server
from jobs.models import Attempt
from tests.scenarios.pinned_worker import PinnedWorker
from tests.support.servers.callback_receiver import Receiver
from tests.support.system.judges import Judge
from tests.support.system.running import System
from tests.support.waiting import wait_for

pytestmark = pytest.mark.scenario

WILD = "pinned-wild"


class Workers:
    def __init__(self, system: System, folder: Path) -> None:
        self.system, self.folder = system, folder
        self.all = {name: PinnedWorker(system, name, folder) for name in ("box-1", "box-2")}
        for worker in self.all.values():
            worker.wait()

    def again(self, name: str) -> None:
        self.all[name] = PinnedWorker(self.system, name, self.folder).wait()

    def of(self, job_id: str) -> PinnedWorker:
        """Who runs it now."""

        def server() -> str:
            attempts = self.system.tenant.job(job_id)["attempts"]
            return str(attempts[-1]["server"]) if attempts and attempts[-1]["state"] == "sent" else ""

        return self.all[wait_for(server, what=f"{job_id} to run")]

    def states(self, job_id: str) -> list[str]:
        return [attempt["state"] for attempt in self.system.tenant.job(job_id)["attempts"]]


@pytest.fixture(scope="module")
def workers(shared_system: System, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    workers = Workers(shared_system, tmp_path_factory.mktemp("pinned"))
    yield workers
    for worker in workers.all.values():
        worker.kill()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def test_a_job_goes_through_a_pinned_worker_to_its_callback(system: System, workers: Workers) -> None:
    printed = dict(
        line.split(": ") for line in system.manage("create_key", "--tenant", "boxes").strip().splitlines()
    )
    receiver = Receiver()
    receiver.open()
    try:
        client = system.client(printed["api key"])
        job_id = client.submit("pinned-a", {"n": 1}, callback_url=receiver.url)
        job = client.finished(job_id)
        assert (job["status"], job["result"]["model"], job["result"]["echo"]) == (
            "completed",
            "pinned-a",
            {"n": 1},
        )
        assert job["attempts"][0]["server"] in workers.all
        (message,) = wait_for(lambda: receiver.messages(printed["webhook secret"]), what="the callback")
        assert (message["job_id"], message["status"]) == (job_id, "completed")
    finally:
        receiver.close()


def test_a_killed_model_process_costs_one_try_and_a_handlers_mistake_is_reported(
    system: System, workers: Workers, gate: Path, judge: Judge
) -> None:
    job_id = system.tenant.submit("pinned-a", {"until": str(gate)})
    worker = workers.of(job_id)
    before = wait_for(worker.model_process, what="a model process")
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: workers.states(job_id)[0] == "lost", what="the end of the first attempt")
    gate.touch()
    assert system.tenant.finished(job_id)["status"] == "completed"
    assert workers.states(job_id) == ["lost", "completed"]

    refused = system.tenant.finished(system.tenant.submit(WILD, {"do": "raises", "what": "input"}))
    assert (refused["status"], refused["error"]["code"]) == ("failed", "bad_input")
    with judge.rows():
        (attempt,) = Attempt.objects.filter(job_id=refused["job_id"])
        assert "Traceback" in attempt.error_message
        assert Attempt.objects.filter(job_id=job_id, slot_freed=False).count() == 0, (
            "no slot was in quarantine"
        )


def test_a_job_that_kills_three_processes_is_poison(system: System, workers: Workers) -> None:
    job = system.tenant.finished(system.tenant.submit(WILD, {"do": "crashes"}))
    assert (job["status"], job["error"]["code"]) == ("failed", "poison")
    assert len(job["attempts"]) == 3
    after = system.tenant.finished(system.tenant.submit(WILD, {"do": "echo"}))
    assert after["status"] == "completed"


def test_a_worker_that_is_killed_leaves_nothing_behind_and_its_job_runs_elsewhere(
    system: System, workers: Workers, tmp_path: Path, gate: Path, judge: Judge
) -> None:
    here = tmp_path / "fork"
    job_id = system.tenant.submit("pinned-wild", {"do": "forks", "here": str(here), "then": "waits"})
    worker = workers.of(job_id)
    stays = int(wait_for(lambda: here.exists() and here.read_text(), what="the fork"))
    session = worker.session()
    here.unlink()
    worker.kill()
    wait_for(
        lambda: not Path(f"/proc/{stays}").exists() and not worker.left(session), what="an empty session"
    )
    wait_for(lambda: len(workers.states(job_id)) == 2, what="a second attempt")
    assert workers.of(job_id) is not worker
    assert workers.states(job_id)[0] == "lost"
    wait_for(lambda: _server(judge, worker.name)["healthy"] is False, what="the server to be no capacity")
    system.tenant.cancel(job_id)
    assert system.tenant.finished(job_id)["status"] == "cancelled"

    workers.again(worker.name)
    wait_for(lambda: _cells(system, worker.name).get("free") == 1, what="its slot to be proven free")


def test_off_interrupts_at_no_cost_frees_the_memory_and_touches_no_other(
    system: System, workers: Workers, gate: Path, judge: Judge
) -> None:
    first, second = [system.tenant.submit("pinned-a", {"until": str(gate)}) for _ in range(2)]
    worker, other = workers.of(first), workers.of(second)
    assert worker is not other
    # a run counts as sent before its model process is there
    wait_for(lambda: worker.model_process() and other.model_process(), what="both model processes")
    kept = other.model_process()
    _switch(system, worker.name, "off")
    wait_for(lambda: not worker.model_process(), what="its memory back")
    wait_for(lambda: workers.states(first) == ["lost"], what="the end of its run in the database")
    assert system.tenant.job(first)["status"] == "queued"
    assert (workers.states(second), other.model_process()) == (["sent"], kept)

    _switch(system, worker.name, "on")
    assert workers.of(first) is worker
    gate.touch()
    assert [system.tenant.finished(job)["status"] for job in (first, second)] == ["completed"] * 2
    with judge.rows():
        assert not Attempt.objects.filter(job_id=first, counted=True).exists()


def test_a_deploy_lets_the_run_end_and_signs_off(
    system: System, workers: Workers, gate: Path, judge: Judge
) -> None:
    job_id = system.tenant.submit("pinned-b", {"until": str(gate)})
    worker = workers.of(job_id)
    worker.process.send_signal(signal.SIGTERM)
    gate.touch()
    assert worker.process.wait(60) == 0
    assert workers.states(job_id) == ["completed"]
    assert _server(judge, worker.name)["last_error"] == "Its worker was stopped."
    workers.again(worker.name)


def test_two_hundred_jobs_over_three_models_that_do_not_fit_together_swap_seldom(
    system: System, workers: Workers
) -> None:
    """Two of three fit. By turns in the line they would be loaded nearly once a job."""
    before = {name: _loads(system, name) for name in workers.all}
    payloads = [(f"pinned-{'abc'[number % 3]}", {"n": number}) for number in range(201)]
    ids = [
        job_id
        for model in ("pinned-a", "pinned-b", "pinned-c")
        for job_id in system.tenant.submit_batch(model, [body for name, body in payloads if name == model])
    ]
    jobs = [system.tenant.finished(job_id) for job_id in ids]
    assert {job["status"] for job in jobs} == {"completed"}
    assert {len(job["attempts"]) for job in jobs} == {1}
    loads = sum(_loads(system, name) - count for name, count in before.items())
    assert loads <= 40, f"{loads} loads for 201 jobs"


def test_a_job_of_any_model_that_is_loaded_goes_before_one_that_must_be_loaded(
    system: System, workers: Workers, gate: Path
) -> None:
    """Also of the model that did not run last; a job that waits for a load is not passed over for ever."""
    _switch(system, "box-2", "off")
    # else a model that was slow to load, on a busy machine, may stay in place of one of the two
    _switch(system, "box-1", "off")
    wait_for(lambda: not workers.all["box-1"].model_process(), what="an empty memory")
    _switch(system, "box-1", "on")

    def both_are_loaded() -> bool:
        before = _loads(system, "box-1")
        for model in ("pinned-b", "pinned-a"):
            system.tenant.finished(system.tenant.submit(model, {}))
        return _loads(system, "box-1") == before

    wait_for(both_are_loaded, what="two models in memory")
    before = _loads(system, "box-1")
    runs = system.tenant.submit("pinned-a", {"until": str(gate)})
    assert workers.of(runs).name == "box-1"
    needs_a_load, is_loaded = [system.tenant.submit(model, {}) for model in ("pinned-c", "pinned-b")]
    gate.touch()
    first, second = [system.tenant.finished(job) for job in (is_loaded, needs_a_load)]
    assert first["attempts"][0]["started_at"] < second["attempts"][0]["started_at"]
    assert _loads(system, "box-1") == before + 1
    _switch(system, "box-2", "on")


def _server(judge: Judge, name: str) -> dict[str, object]:
    with judge.rows():
        return dict(Server.objects.values("healthy", "last_error").get(name=name))


def _cells(system: System, name: str) -> dict[str, int]:
    return dict(system.operator.ask("GET", f"/admin/servers/{name}")["observed"]["slots"])


def _switch(system: System, name: str, desired: str) -> None:
    system.operator.ask("PATCH", f"/admin/servers/{name}", {"desired": desired})


def _loads(system: System, name: str) -> int:
    return (system.folder / "log" / f"{name}.log").read_text().count("model_loaded")
