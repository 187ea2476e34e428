"""`register`: looks at a server, registers its models, runs a test job each."""

from __future__ import annotations

import pytest

from dispatcher_project.management.commands import submit as submitting
from gpu_host.node.config import NodeConfig
from gpu_host.node.server import Node
from gpus.models import AuditEntry, ModelConfig, Placement, Server
from jobs.domain.states import JobState
from jobs.models import Job
from jobs.transitions import end_waiting
from tests.support.queue_harness import QueueHarness
from tests.support.servers.llm_server import LlmServer
from tests.support.terminal import Terminal, while_waiting

pytestmark = pytest.mark.django_db

SIMULATOR = "gpu_host.node.simulator:run"


def test_a_nodes_model_is_registered_with_fields_that_fit(queue: QueueHarness, terminal: Terminal) -> None:
    with Node(NodeConfig(handlers={"flux": SIMULATOR}, slots=3)) as node:
        run = terminal("register", node.url, "--yes", "--no-test", "--server", "box-1")
        again = terminal("register", node.url, "--yes", "--no-test", "--server", "box-1", "--json").json
    assert run.status == 0, run.said
    assert "registered flux on box-1" in run.said
    assert again["registered"][0]["created"] is False
    config, server = ModelConfig.objects.get(name="flux"), Server.objects.get(name="box-1")
    assert (config.model_type, config.poll_endpoint_template, server.slots) == ("async", "/status/{id}", 3)
    assert queue.announced == ["registry", "registry"], "workers look for new pools at once"
    assert AuditEntry.objects.filter(action="register_server", target="server:box-1").exists()


def test_nothing_is_registered_without_a_yes(terminal: Terminal) -> None:
    with Node(NodeConfig(handlers={"flux": SIMULATOR})) as node:
        run = terminal("register", node.url)
        dry = terminal("register", node.url, "--dry-run", "--json").json
    assert (run.status, "Confirm with --yes" in run.said) == (2, True)
    assert dry["register"][0]["model"] == "flux"
    assert not Server.objects.exists()


def test_one_of_several_models_must_be_chosen(terminal: Terminal) -> None:
    with LlmServer() as server:
        server.does.models = ("llama3:8b", "qwen")
        undecided = terminal("register", server.url, "--yes")
        unknown = terminal("register", server.url, "--model", "gpt", "--yes")
        chosen = terminal(
            "register", server.url, "--model", "llama3:8b", "--as", "llama", "--yes", "--no-test"
        )
        every = terminal("register", server.url, "--all", "--yes", "--no-test")
    assert "llama3-8b, qwen: choose one with --model, or --all" in undecided.said
    assert "no model gpt; it has llama3-8b, qwen" in unknown.said
    assert (chosen.status, every.status) == (0, 0), every.said
    assert ModelConfig.objects.get(name="llama").remote_model == "llama3:8b"
    assert set(ModelConfig.objects.values_list("name", "pool")) == {
        ("llama", "llama"), ("llama3-8b", "llama"), ("qwen", "llama"),
    }, "a server's models share its pool"  # fmt: skip
    assert Placement.objects.count() == 3


@pytest.mark.parametrize(("state", "status"), [(JobState.COMPLETED, 0), (JobState.FAILED, 1)])
def test_the_test_jobs_end_is_the_exit_status(
    queue: QueueHarness, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, state: JobState, status: int
) -> None:
    def work() -> None:
        end_waiting(
            Job.objects.get().id, JobState.FAILED, queue.clock.now(), code="timeout", message="too slow"
        )
        Job.objects.update(state=state)

    with Node(NodeConfig(handlers={"flux": SIMULATOR})) as node:
        while_waiting(monkeypatch, submitting, work)
        run = terminal("register", node.url, "--yes", "--payload", '{"echo": 1}')
    assert run.status == status, run.said
    assert Job.objects.get().payload == {"echo": 1}


def test_a_model_without_a_known_payload_gets_no_test_job(terminal: Terminal) -> None:
    with Node(NodeConfig(handlers={"flux": SIMULATOR})) as node:
        run = terminal("register", node.url, "--yes")
    assert "no test job: no payload is known" in run.said
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["http://127.0.0.1:1"], "Nothing answers at http://127.0.0.1:1"),
        (["box-1:8000"], "as an http(s) URL"),
        (["http://127.0.0.1:1", "--header", "X-Key"], "write a header as 'Name: value'"),
        (["http://127.0.0.1:1", "--ca", "/nowhere"], "cannot read the CA"),
        (["http://127.0.0.1:1", "--payload", "{"], "the payload: it is not valid JSON"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(
    terminal: Terminal, arguments: list[str], says: str
) -> None:
    run = terminal("register", *arguments)
    assert (run.status, says in run.said) == (2, True), run.said
