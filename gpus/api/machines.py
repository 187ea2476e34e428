"""Machines over HTTP: all servers of one, shown and switched in one request."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import read_body
from foundation.http_api.openapi import described
from gpus.api import answers, bodies
from gpus.api.base import MACHINE, RegistryView, actor, is_name, problem_of_refusal, refusing
from gpus.api.servers import servers_json
from gpus.models import Server
from gpus.protocol import DesiredState
from gpus.registry.controls import switch_machine, unknown_machine


class MachineDetail(RegistryView):
    needs = {"GET": "gpus.view_server", "PATCH": "gpus.change_server"}

    @described(
        "get_machine",
        "The servers of a machine",
        answers={200: answers.Machine},
        refusals=(403, 404),
        parameters=(MACHINE,),
        tag="admin",
    )
    def get(self, request: Request, machine: str) -> Response:
        return self._answer(_machine_name(machine), changed=())

    @described(
        "patch_machine",
        "Switch all servers of a machine on, draining or off",
        answers={200: answers.Machine},
        refusals=(403, 404),
        body=bodies.MachineChange,
        parameters=(MACHINE,),
        tag="admin",
        description="All of them or none, and no other server. What the states mean: PATCH of a server.",
    )
    def patch(self, request: Request, machine: str) -> Response:
        wanted = DesiredState(read_body(bodies.MachineChange, request.data).desired)
        name, by, ports = _machine_name(machine), actor(request), self.ports()
        done = refusing(lambda: switch_machine(name, wanted, by=by, leases=ports.leases))
        ports.send_wakes(done.wakes)
        return self._answer(name, changed=done.changed, live=done.mirrored)

    def _answer(self, machine: str, *, changed: Collection[str], live: bool = True) -> Response:
        rows = Server.objects.select_related("pool").prefetch_related("placements").filter(machine=machine)
        servers = servers_json(list(rows.order_by("name")), self.ports().leases)
        if not servers:
            raise problem_of_refusal(unknown_machine(machine))
        told: dict[str, Any] = {"machine": machine, "servers": servers, "changed": list(changed)}
        return Response({**told, "live": live and all(one["live"] for one in servers)})


def _machine_name(text: str) -> str:
    """Raises Problem 404."""
    if not is_name(text):
        raise problem_of_refusal(unknown_machine(text[:64]))
    return text
