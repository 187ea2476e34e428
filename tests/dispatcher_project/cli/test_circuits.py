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
from tests.support.queue_world import QueueWorld
from tests.support.terminal import Terminal

pytestmark = pytest.mark.django_db


def break_server(world: QueueWorld, times: int = 5) -> None:
    """So many different jobs in a row fail by the server's fault."""
    for _ in range(times):
        world.job()
        lease = world.claim(written=False)
        world.leases.release(
            lease.ref, ReleaseMode.ENDED, worker="w1", gpu_seconds=1.0, verdict=Verdict.SERVER
        )
        world.leases.confirm_ends([lease.ref])


def state(world: QueueWorld) -> str:
    circuit = circuit_of(CircuitKind.SERVER, "gpu-1", "m", world.ports.leases)
    assert circuit is not None
    return circuit.state.value


def test_the_list_is_the_apis(world: QueueWorld, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    world.server()
    assert terminal("circuits").said == "no circuit breaker has counted a failure\n"
    break_server(world)
    heads, line = terminal("circuits").said.splitlines()
    assert heads.split()[:4] == ["kind", "name", "pool", "circuit"]
    assert line.split()[:4] == ["server", "gpu-1", "m", "open"]
    monkeypatch.setattr(IsOperator, "has_permission", lambda *_: True)
    view = CircuitList.as_view(ports=lambda: world.ports)
    answer = view(APIRequestFactory().get("/api/v1/admin/circuits"))
    expected = json.loads(json.dumps(answer.data, cls=DjangoJSONEncoder))
    assert len(expected["results"]) == 1
    assert terminal("circuits", "--json").json == expected


def test_a_reset_closes_the_circuit_and_wakes_waiting_jobs(world: QueueWorld, terminal: Terminal) -> None:
    world.server()
    break_server(world)
    assert state(world) == "open"
    world.job()
    world.wakes.clear()
    assert terminal("circuits", "reset", "server", "gpu-1").said == "the circuit of server gpu-1 is closed\n"
    assert state(world) == "closed"
    assert world.wakes
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
    world: QueueWorld, terminal: Terminal, arguments: list[str], said: str
) -> None:
    run = terminal("circuits", *arguments)
    assert (run.status, run.said) == (2, said)


def test_without_redis_the_list_says_so_and_a_reset_fails(world: QueueWorld, terminal: Terminal) -> None:
    world.server()
    world.redis_is_gone = True
    assert "pool m is not listed: its Redis does not answer" in terminal("circuits").said
    assert terminal("circuits", "reset", "server", "gpu-1").status == 2
    assert not AuditEntry.objects.exists()
