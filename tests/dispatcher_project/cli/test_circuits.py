"""`circuits`: what failed last, and closing one by hand."""

from __future__ import annotations

import json

import pytest
from django.core.serializers.json import DjangoJSONEncoder
from rest_framework.test import APIRequestFactory

from gpus.api.controls import CircuitList
from gpus.api.permissions import IsOperator
from gpus.errors import Verdict
from gpus.health.circuits import circuit_of
from gpus.models import AuditEntry
from gpus.protocol import CircuitKind, ReleaseMode
from tests.support.queue_harness import QueueHarness
from tests.support.terminal import Terminal

pytestmark = pytest.mark.django_db


def break_server(queue: QueueHarness, times: int = 5) -> None:
    """So many different jobs in a row fail by the server's fault."""
    for _ in range(times):
        queue.job()
        lease = queue.claim(written=False)
        queue.leases.release(
            lease.ref, ReleaseMode.ENDED, worker="w1", gpu_seconds=1.0, verdict=Verdict.SERVER
        )
        queue.leases.confirm_ends([lease.ref])


def state(queue: QueueHarness) -> str:
    circuit = circuit_of(CircuitKind.SERVER, "gpu-1", "m", queue.ports.leases)
    assert circuit is not None
    return circuit.state.value


def test_the_list_is_the_apis(
    queue: QueueHarness, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.server()
    assert terminal("circuits").said == "no circuit breaker has counted a failure\n"
    break_server(queue)
    heads, line = terminal("circuits").said.splitlines()
    assert heads.split()[:4] == ["kind", "name", "pool", "circuit"]
    assert line.split()[:4] == ["server", "gpu-1", "m", "open"]
    monkeypatch.setattr(IsOperator, "has_permission", lambda *_: True)
    view = CircuitList.as_view(ports=lambda: queue.ports)
    answer = view(APIRequestFactory().get("/api/v1/admin/circuits"))
    expected = json.loads(json.dumps(answer.data, cls=DjangoJSONEncoder))
    assert len(expected["results"]) == 1
    assert terminal("circuits", "--json").json == expected


def test_a_reset_closes_the_circuit_and_wakes_waiting_jobs(queue: QueueHarness, terminal: Terminal) -> None:
    queue.server()
    break_server(queue)
    assert state(queue) == "open"
    queue.job()
    queue.wakes.clear()
    assert terminal("circuits", "reset", "server", "gpu-1").said == "the circuit of server gpu-1 is closed\n"
    assert state(queue) == "closed"
    assert queue.wakes
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.target, entry.actor[:4]) == ("reset_circuit", "server:gpu-1", "cli:")
    again = terminal("circuits", "reset", "server", "gpu-1")
    assert (again.status, again.said) == (0, "server gpu-1 has no failures counted: nothing changed\n")
    answer = terminal("circuits", "reset", "model", "m", "--json").json
    assert answer == {"kind": "model", "name": "m", "changed": False}
    assert AuditEntry.objects.count() == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["reset"], "name what to reset: `circuits reset server NAME` or `circuits reset model NAME`"),
        (
            ["reset", "server"],
            "name what to reset: `circuits reset server NAME` or `circuits reset model NAME`",
        ),
        (["list", "server", "gpu-1"], "a kind and a name are for reset; `circuits` lists all"),
        (["reset", "server", "gpu-9"], "No server 'gpu-9' is registered."),
    ],
)
def test_a_wrong_command_line_is_one_line(
    queue: QueueHarness, terminal: Terminal, arguments: list[str], said: str
) -> None:
    run = terminal("circuits", *arguments)
    assert (run.status, run.said) == (2, said)


def test_without_redis_the_list_says_so_and_a_reset_fails(queue: QueueHarness, terminal: Terminal) -> None:
    queue.server()
    queue.redis_is_gone = True
    assert "pool m is not listed: its Redis does not answer" in terminal("circuits").said
    assert terminal("circuits", "reset", "server", "gpu-1").status == 2
    assert not AuditEntry.objects.exists()
