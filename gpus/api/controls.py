"""API views of operator controls: pause and resume, reset a circuit breaker, free a quarantined slot.

Views that pause tenants are in `jobs/api`.
"""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.openapi import described
from foundation.http_api.parameters import allow_only
from gpus.api import answers, bodies
from gpus.api.base import (
    MODEL,
    SERVER,
    RegistryView,
    actor,
    call_service,
    model_name,
    read_optional_body,
    server_name,
)
from gpus.health.circuits import all_circuits, reset_circuit
from gpus.models import Pause
from gpus.protocol import CircuitKind
from gpus.registry.controls import Changed, pause, resume
from gpus.registry.quarantine import free_slot, open_quarantines, quarantine_json

WAITING = (
    "No job of it starts until it is resumed. Running jobs finish; submitted jobs wait and keep their place."
)
_CLOSES = "It takes jobs at once, and its failures are reset. A closed circuit stays closed."
_INDEX = OpenApiParameter(
    "index",
    {"type": "integer", "minimum": 0},
    OpenApiParameter.PATH,
    description="The slot's number, from 0: 1 of `box-3/1`.",
)


class _SwitchView(RegistryView):
    def switched(self, kind: Pause.Kind, name: str, done: Changed, *, paused: bool) -> Response:
        self.ports().send_wakes(done.wakes)
        return Response(switched_json(kind, name, done, paused=paused))


class PauseModel(_SwitchView):
    needs = {"POST": "gpus.change_modelconfig"}

    @described(
        "pause_model",
        "Pause a model",
        answers={200: answers.Switched},
        refusals=(403, 404),
        body=bodies.PauseBody,
        body_required=False,
        parameters=(MODEL,),
        tag="admin",
        description=WAITING,
    )
    def post(self, request: Request, model: str) -> Response:
        reason, name = read_reason(request), model_name(model)
        by, leases = actor(request), self.ports().leases
        done = call_service(lambda: pause(Pause.Kind.MODEL, name, by=by, reason=reason, leases=leases))
        return self.switched(Pause.Kind.MODEL, name, done, paused=True)


class ResumeModel(_SwitchView):
    needs = {"POST": "gpus.change_modelconfig"}

    @described(
        "resume_model",
        "End the pause of a model",
        answers={200: answers.Switched},
        refusals=(403, 404),
        parameters=(MODEL,),
        tag="admin",
    )
    def post(self, request: Request, model: str) -> Response:
        name = model_name(model)
        done = resume(Pause.Kind.MODEL, name, by=actor(request), leases=self.ports().leases)
        return self.switched(Pause.Kind.MODEL, name, done, paused=False)


class PauseSystem(_SwitchView):
    needs = {"POST": "gpus.add_pause"}

    @described(
        "pause_system",
        "Pause everything",
        answers={200: answers.Switched},
        refusals=(403,),
        body=bodies.PauseBody,
        body_required=False,
        tag="admin",
        description=WAITING,
    )
    def post(self, request: Request) -> Response:
        reason = read_reason(request)
        done = pause(Pause.Kind.SYSTEM, by=actor(request), reason=reason, leases=self.ports().leases)
        return self.switched(Pause.Kind.SYSTEM, "", done, paused=True)


class ResumeSystem(_SwitchView):
    needs = {"POST": "gpus.add_pause"}

    @described(
        "resume_system",
        "End the pause of everything",
        answers={200: answers.Switched},
        refusals=(403,),
        tag="admin",
    )
    def post(self, request: Request) -> Response:
        done = resume(Pause.Kind.SYSTEM, by=actor(request), leases=self.ports().leases)
        return self.switched(Pause.Kind.SYSTEM, "", done, paused=False)


def read_reason(request: Request) -> str:
    """The reason in an optional body. Raises Problem 422."""
    return read_optional_body(bodies.PauseBody, request.data).reason


def switched_json(kind: Pause.Kind, name: str, done: Changed, *, paused: bool) -> answers.Switched:
    """The answer to a pause or its end."""
    return {
        "kind": kind.value,
        "name": name,
        "paused": paused,
        "changed": done.changed,
        "live": done.mirrored,
    }


class CircuitList(RegistryView):
    needs = {"GET": "gpus.view_server"}

    @described(
        "list_circuits",
        "Circuit breakers with failures",
        answers={200: answers.Circuits},
        refusals=(400, 403),
        tag="admin",
        description="Servers and models whose last attempt failed. All others are closed. After a rebuild of "
        "the index all circuits are closed.",
    )
    def get(self, request: Request) -> Response:
        allow_only(request, ())
        found = all_circuits(self.ports().leases)
        return Response({"results": [one.as_json() for one in found.entries], "away": list(found.away)})


class _ResetView(RegistryView):
    def reset(self, request: Request, kind: CircuitKind, name: str) -> Response:
        ports = self.ports()
        done = call_service(lambda: reset_circuit(kind, name, by=actor(request), leases=ports.leases))
        ports.send_wakes(done.wakes)
        return Response({"kind": kind.value, "name": name, "changed": done.changed})


class ResetServerCircuit(_ResetView):
    needs = {"POST": "gpus.change_server"}

    @described(
        "reset_server_circuit",
        "Close the circuit of a server",
        answers={200: answers.CircuitReset},
        refusals=(403, 404),
        parameters=(SERVER,),
        tag="admin",
        description=_CLOSES,
    )
    def post(self, request: Request, server: str) -> Response:
        return self.reset(request, CircuitKind.SERVER, server_name(server))


class ResetModelCircuit(_ResetView):
    needs = {"POST": "gpus.change_modelconfig"}

    @described(
        "reset_model_circuit",
        "Close the circuit of a model",
        answers={200: answers.CircuitReset},
        refusals=(403, 404),
        parameters=(MODEL,),
        tag="admin",
        description=_CLOSES,
    )
    def post(self, request: Request, model: str) -> Response:
        return self.reset(request, CircuitKind.MODEL, model_name(model))


class Quarantine(RegistryView):
    needs = {"GET": "gpus.view_quarantinedslot"}

    @described(
        "list_quarantine",
        "Quarantined slots, the oldest first",
        answers={200: answers.Quarantine},
        refusals=(400, 403),
        tag="admin",
        description="Slots whose GPU may still be busy with a run out of control.",
    )
    def get(self, request: Request) -> Response:
        allow_only(request, ())
        return Response({"results": [quarantine_json(row) for row in open_quarantines()]})


class FreeSlot(RegistryView):
    needs = {"POST": "gpus.change_server"}

    @described(
        "free_slot",
        "Free a quarantined slot",
        answers={200: answers.SlotFreed},
        refusals=(403, 404, 409),
        body=bodies.FreeBody,
        parameters=(SERVER, _INDEX),
        tag="admin",
        description="For an operator who knows that no job runs there any more: the next job starts on it at "
        "once. If the GPU is still busy, two runs share it. 409: the slot is not in quarantine.",
    )
    def post(self, request: Request, server: str, index: str) -> Response:
        body = read_optional_body(bodies.FreeBody, request.data or None)
        ports = self.ports()
        done = call_service(
            lambda: free_slot(
                f"{server_name(server)}/{index}",
                by=actor(request),
                leases=ports.leases,
                at=ports.clock.now(),
                reason=body.reason,
            ),
            place="path",
        )
        ports.send_wakes(done.wakes)
        return Response({"slot": done.slot, "attempts": list(done.attempts), "live": done.mirrored})
