"""Views for operators: rules of tenants (share, highest band, limits), their API keys, webhook secrets and
pauses, and the list of all pauses."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.json_body import read_body
from foundation.http_api.openapi import described
from foundation.http_api.parameters import PARAMETERS, NamePages
from foundation.http_api.problems import FieldError, Problem, validation_problem
from gpus.api import answers as fleet_answers
from gpus.api.base import actor, is_name, read_optional_body
from gpus.api.bodies import PauseBody
from gpus.api.controls import WAITING, read_reason, switched_json
from gpus.models import Pause
from gpus.registry import queries
from jobs.api import answers, bodies
from jobs.api.base import OperatorView
from jobs.api.parameters import allow_only
from jobs.api.representations import pause_json
from jobs.models import ApiKey, Tenant
from jobs.operations.tenants import (
    CHANGEABLE,
    change_rules,
    create_key,
    pause_tenant,
    renew_webhook_secret,
    resume_tenant,
    revoke_key,
    rotate_key,
)
from jobs.reports.jobs import named

TENANT = OpenApiParameter("tenant", str, OpenApiParameter.PATH, description="The tenant's name.")


class Tenants(OperatorView):
    needs = {"GET": "jobs.view_tenant"}

    @described(
        "list_tenants",
        "Tenants by name, with their shares, bands and limits",
        answers={200: answers.TenantPage},
        refusals=(400, 403),
        parameters=PARAMETERS,
        tag="admin",
    )
    def get(self, request: Request) -> Response:
        allow_only(request, ("cursor", "limit"))
        pages = NamePages()
        page = pages.paginate_queryset(Tenant.objects.all(), request, view=self) or []
        return pages.get_paginated_response([tenant_json(tenant) for tenant in page])


class TenantRules(OperatorView):
    needs = {"GET": "jobs.view_tenant", "PATCH": "jobs.change_tenant"}

    @described(
        "get_tenant",
        "A tenant's share, band and limits",
        answers={200: answers.Tenant},
        refusals=(403, 404),
        parameters=(TENANT,),
        tag="admin",
    )
    def get(self, request: Request, tenant: str) -> Response:
        return Response(tenant_json(tenant_row(tenant)))

    @described(
        "change_tenant",
        "Change a tenant's share, band and limits",
        answers={200: answers.ChangedTenant},
        refusals=(403, 404),
        body=bodies.TenantChange,
        parameters=(TENANT,),
        tag="admin",
        description="Omitted fields keep their values. Waiting jobs are reordered at once (`live`).",
    )
    def patch(self, request: Request, tenant: str) -> Response:
        rules = read_body(bodies.TenantChange, request.data).given()
        try:
            done = change_rules(tenant_row(tenant).name, rules, by=actor(request), ports=self.ports)
        except ValidationError as error:
            raise _problem(error) from None
        self.ports.send_wakes(done.wakes)
        return Response({**tenant_json(done.tenant), "changed": done.changed, "live": done.mirrored})


def tenant_json(tenant: Tenant) -> dict[str, Any]:
    return {"tenant": tenant.name, **{name: getattr(tenant, name) for name in CHANGEABLE}}


def tenant_row(name: str) -> Tenant:
    """Return the tenant's row. Raises Problem 404."""
    row = Tenant.objects.filter(name=name).first() if is_name(name) else None
    if row is None:
        error = FieldError("/tenant", "unknown_tenant", "There is no such tenant.", place="path")
        raise Problem(404, "unknown_tenant", "There is no such tenant.", errors=[error])
    return row


def _problem(error: ValidationError) -> Problem:
    """Return the problem for values that pass the body's schema but not the model's validators."""
    return validation_problem(
        [
            FieldError(f"/{field}", "out_of_range", message)
            for field, messages in error.message_dict.items()
            for message in messages
        ]
    )


# -- keys and secrets ---------------------------------------------------------------------------

_PREFIX = OpenApiParameter(
    "prefix", str, OpenApiParameter.PATH, description="First part of the key, from the list of keys."
)


class Keys(OperatorView):
    needs = {"GET": "jobs.view_apikey", "POST": "jobs.add_apikey"}

    @described(
        "list_keys",
        "A tenant's API keys, the newest first",
        answers={200: answers.ApiKeys},
        refusals=(403, 404),
        parameters=(TENANT,),
        tag="admin",
    )
    def get(self, request: Request, tenant: str) -> Response:
        rows = _keys(tenant).order_by("-created", "pk")
        return Response({"results": [_key_json(row) for row in rows]})

    @described(
        "create_key",
        "Create an API key",
        answers={201: answers.NewApiKey},
        refusals=(403, 404),
        body=bodies.KeyBody,
        body_required=False,
        parameters=(TENANT,),
        tag="admin",
        description="Only this response contains the `key`.",
    )
    def post(self, request: Request, tenant: str) -> Response:
        body, row = read_optional_body(bodies.KeyBody, request.data), tenant_row(tenant)
        key, plaintext = create_key(
            row,
            ApiKey.Kind(body.kind),
            name=body.name,
            scopes=body.scopes,
            allowed_models=body.allowed_models,
            expires_at=body.expires_at,
            by=actor(request),
        )
        return Response({**_key_json(key), "key": plaintext}, status=201)


class RotateKey(OperatorView):
    needs = {"POST": "jobs.change_apikey"}

    @described(
        "rotate_key",
        "Replace an API key by a new one with the same permissions; both work for a while",
        answers={201: answers.NewApiKey},
        refusals=(403, 404, 409),
        body=bodies.OverlapBody,
        body_required=False,
        parameters=(TENANT, _PREFIX),
        tag="admin",
        description="Only this response contains the `key`. 409: the key is revoked, expired or "
        "already replaced.",
    )
    def post(self, request: Request, tenant: str, prefix: str) -> Response:
        overlap, key = _overlap(request), _key(tenant, prefix)
        new, plaintext = rotate_key(key, overlap_seconds=overlap, by=actor(request))
        return Response({**_key_json(new), "key": plaintext}, status=201)


class RevokeKey(OperatorView):
    needs = {"POST": "jobs.change_apikey"}

    @described(
        "revoke_key",
        "Revoke an API key: it stops working within two seconds",
        answers={200: answers.ApiKey},
        refusals=(403, 404),
        parameters=(TENANT, _PREFIX),
        tag="admin",
    )
    def post(self, request: Request, tenant: str, prefix: str) -> Response:
        key = _key(tenant, prefix)
        if not key.revoked:
            revoke_key(key, by=actor(request))
        return Response(_key_json(key))


class WebhookSecret(OperatorView):
    needs = {"POST": "jobs.change_tenant"}

    @described(
        "renew_webhook_secret",
        "Create a new webhook secret; for a while callbacks are signed with the old one, too",
        answers={201: answers.WebhookSecret},
        refusals=(403, 404),
        body=bodies.OverlapBody,
        body_required=False,
        parameters=(TENANT,),
        tag="admin",
    )
    def post(self, request: Request, tenant: str) -> Response:
        overlap, row = _overlap(request), tenant_row(tenant)
        secret = renew_webhook_secret(row, overlap_seconds=overlap, by=actor(request))
        return Response({"webhook_secret": secret, "old_until": row.webhook_secret_before_until}, status=201)


def _keys(tenant: str) -> QuerySet[ApiKey]:
    return ApiKey.objects.filter(tenant=tenant_row(tenant)).select_related("tenant", "rotated_to")


def _key(tenant: str, prefix: str) -> ApiKey:
    row = _keys(tenant).filter(prefix=prefix).first() if prefix.isalnum() else None
    if row is None:
        error = FieldError("/prefix", "unknown_key", "The tenant has no such key.", place="path")
        raise Problem(404, "unknown_key", "The tenant has no such key.", errors=[error])
    return row


def _overlap(request: Request) -> float:
    return read_optional_body(bodies.OverlapBody, request.data).overlap_seconds


def _key_json(key: ApiKey) -> answers.ApiKey:
    return {
        "prefix": key.prefix,
        "name": key.name,
        "tenant": key.tenant.name,
        "kind": str(key.kind),
        "scopes": key.scopes,
        "allowed_models": key.allowed_models,
        "created_at": key.created,
        "expires_at": key.expiry_date,
        "last_used_at": key.last_used_at,
        "revoked": key.revoked,
        "is_valid": not key.revoked and not key.has_expired,
        "rotated_to": key.rotated_to.prefix if key.rotated_to else None,
    }


# -- pauses -------------------------------------------------------------------------------------


class Pauses(OperatorView):
    needs = {"GET": "gpus.view_pause"}

    @described(
        "list_pauses",
        "Pauses of the system, models and tenants",
        answers={200: fleet_answers.Pauses},
        refusals=(403,),
        tag="admin",
    )
    def get(self, request: Request) -> Response:
        return Response({"results": [pause_json(pause, name) for pause, name in named(queries.pauses())]})


class PauseTenant(OperatorView):
    needs = {"POST": "jobs.change_tenant"}

    @described(
        "pause_tenant",
        "Pause a tenant",
        answers={200: fleet_answers.Switched},
        refusals=(403, 404),
        body=PauseBody,
        body_required=False,
        parameters=(TENANT,),
        tag="admin",
        description=WAITING,
    )
    def post(self, request: Request, tenant: str) -> Response:
        reason, row = read_reason(request), tenant_row(tenant)
        done = pause_tenant(row, by=actor(request), ports=self.ports, reason=reason)
        return Response(switched_json(Pause.Kind.TENANT, row.name, done, paused=True))


class ResumeTenant(OperatorView):
    needs = {"POST": "jobs.change_tenant"}

    @described(
        "resume_tenant",
        "End the pause of a tenant",
        answers={200: fleet_answers.Switched},
        refusals=(403, 404),
        parameters=(TENANT,),
        tag="admin",
    )
    def post(self, request: Request, tenant: str) -> Response:
        row, ports = tenant_row(tenant), self.ports
        done = resume_tenant(row, by=actor(request), ports=ports)
        ports.send_wakes(done.wakes)
        return Response(switched_json(Pause.Kind.TENANT, row.name, done, paused=False))
