"""Circuit breakers over HTTP: which are open, and closing one by hand."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.openapi import described
from foundation.http_api.parameters import allow_only
from gpus.api.base import MODEL, SERVER, RegistryView, actor, model_name, refusing, server_name
from gpus.health.circuits import all_circuits, reset_circuit
from gpus.protocol import CircuitKind

_CLOSES = "It takes jobs at once, and its failures are forgotten. What is closed already stays so."


class CircuitList(RegistryView):
    needs = {"GET": "gpus.view_server"}

    @described(
        "list_circuits",
        "Servers and models that failed last",
        answers={200: "Circuits"},
        refusals=(400, 403),
        tag="admin",
        description="Who is not listed is closed and did not fail last. An index that was made anew begins "
        "with closed circuits.",
    )
    def get(self, request: Request) -> Response:
        allow_only(request, ())
        found = all_circuits(self.ports().leases)
        return Response({"results": [one.as_json() for one in found.struck], "away": list(found.away)})


class _ResetView(RegistryView):
    def reset(self, request: Request, kind: CircuitKind, name: str) -> Response:
        ports = self.ports()
        done = refusing(lambda: reset_circuit(kind, name, by=actor(request), leases=ports.leases))
        ports.send_wakes(done.wakes)
        return Response({"kind": kind.value, "name": name, "changed": done.changed})


class ResetServerCircuit(_ResetView):
    needs = {"POST": "gpus.change_server"}

    @described(
        "reset_server_circuit",
        "Close the circuit of a server",
        answers={200: "CircuitReset"},
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
        answers={200: "CircuitReset"},
        refusals=(403, 404),
        parameters=(MODEL,),
        tag="admin",
        description=_CLOSES,
    )
    def post(self, request: Request, model: str) -> Response:
        return self.reset(request, CircuitKind.MODEL, model_name(model))
