"""Slots in quarantine over HTTP: which there are, and freeing one by an operator's word."""

from __future__ import annotations

from functools import lru_cache

from drf_spectacular.utils import OpenApiParameter
from jsonschema import Draft202012Validator
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import compiled
from foundation.http_api.openapi import described
from foundation.http_api.parameters import allow_only
from gpus.api.base import SERVER, RegistryView, actor, read_optional_body, refusing, server_name
from gpus.api.control_schemas import free_body
from gpus.registry.quarantine import free_slot, open_quarantines, quarantine_json

_INDEX = OpenApiParameter(
    "index",
    {"type": "integer", "minimum": 0},
    OpenApiParameter.PATH,
    description="The slot's number, from 0: 1 of `box-3/1`.",
)


class Quarantine(RegistryView):
    needs = {"GET": "gpus.view_quarantinedslot"}

    @described(
        "list_quarantine",
        "Slots in quarantine, the oldest first",
        answers={200: "Quarantine"},
        refusals=(400, 403),
        tag="admin",
        description="Slots whose GPU may still be busy with a run that nobody controls.",
    )
    def get(self, request: Request) -> Response:
        allow_only(request, ())
        return Response({"results": [quarantine_json(row) for row in open_quarantines()]})


class FreeSlot(RegistryView):
    needs = {"POST": "gpus.change_server"}

    @described(
        "free_slot",
        "Say that a slot in quarantine is free",
        answers={200: "SlotFreed"},
        refusals=(403, 404, 409),
        body="FreeBody",
        parameters=(SERVER, _INDEX),
        tag="admin",
        description="For an operator who knows that nothing runs there any more: the next job starts on it "
        "at once. Said of a GPU that is still busy, two runs share it. 409: it is not in quarantine.",
    )
    def post(self, request: Request, server: str, index: str) -> Response:
        body = read_optional_body(request.data or None, _validator())
        ports = self.ports()
        done = refusing(
            lambda: free_slot(
                f"{server_name(server)}/{index}",
                by=actor(request),
                leases=ports.leases,
                at=ports.clock.now(),
                reason=body.get("reason", ""),
            ),
            place="path",
        )
        ports.send_wakes(done.wakes)
        return Response({"slot": done.slot, "attempts": list(done.attempts), "live": done.mirrored})


@lru_cache(maxsize=1)
def _validator() -> Draft202012Validator:
    return compiled(free_body())
