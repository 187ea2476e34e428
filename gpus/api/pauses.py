"""Pausing a model, or everything, over HTTP. Tenants are paused above this floor, in the same words."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import compiled
from foundation.http_api.openapi import described
from gpus.api.base import MODEL, RegistryView, actor, model_name, read_optional_body, refusing
from gpus.api.control_schemas import pause_body
from gpus.models import Pause
from gpus.registry.controls import Changed, pause, resume

WAITING = (
    "Nothing of it is started any more. What runs goes on, what is submitted waits, and keeps its place."
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
        answers={200: "Switched"},
        refusals=(403, 404),
        body="PauseBody",
        body_required=False,
        parameters=(MODEL,),
        tag="admin",
        description=WAITING,
    )
    def post(self, request: Request, model: str) -> Response:
        reason, name = read_reason(request), model_name(model)
        by, leases = actor(request), self.ports().leases
        done = refusing(lambda: pause(Pause.Kind.MODEL, name, by=by, reason=reason, leases=leases))
        return self.switched(Pause.Kind.MODEL, name, done, paused=True)


class ResumeModel(_SwitchView):
    needs = {"POST": "gpus.change_modelconfig"}

    @described(
        "resume_model",
        "End the pause of a model",
        answers={200: "Switched"},
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
        answers={200: "Switched"},
        refusals=(403,),
        body="PauseBody",
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
        answers={200: "Switched"},
        refusals=(403,),
        tag="admin",
    )
    def post(self, request: Request) -> Response:
        done = resume(Pause.Kind.SYSTEM, by=actor(request), leases=self.ports().leases)
        return self.switched(Pause.Kind.SYSTEM, "", done, paused=False)


def read_reason(request: Request) -> str:
    """Of a body that may be left out. Raises Problem 422."""
    return str(read_optional_body(request.data, _validator()).get("reason", ""))


def switched_json(kind: Pause.Kind, name: str, done: Changed, *, paused: bool) -> dict[str, Any]:
    return {
        "kind": kind.value,
        "name": name,
        "paused": paused,
        "changed": done.changed,
        "live": done.mirrored,
    }


@lru_cache(maxsize=1)
def _validator() -> Draft202012Validator:
    return compiled(pause_body())
