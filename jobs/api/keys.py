"""A tenant's API keys and its webhook secret, for operators. Secrets are shown once, when they are made."""

from __future__ import annotations

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.openapi import described
from foundation.http_api.problems import FieldError, Problem
from gpus.api.base import actor, read_optional_body
from jobs.api import answers, bodies
from jobs.api.dead_letters import OperatorView
from jobs.api.tenants import TENANT, tenant_row
from jobs.models import ApiKey
from jobs.operations.api_keys import create_key, revoke_key, rotate_key
from jobs.operations.tenants import renew_webhook_secret

_PREFIX = OpenApiParameter("prefix", str, OpenApiParameter.PATH, description="As the list shows it.")


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
        "Make an API key",
        answers={201: answers.NewApiKey},
        refusals=(403, 404),
        body=bodies.KeyBody,
        body_required=False,
        parameters=(TENANT,),
        tag="admin",
        description="`key` is shown only in this answer.",
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
        "Replace an API key: a new one that may do the same; both work for a while",
        answers={201: answers.NewApiKey},
        refusals=(403, 404, 409),
        body=bodies.OverlapBody,
        body_required=False,
        parameters=(TENANT, _PREFIX),
        tag="admin",
        description="`key` is shown only in this answer. 409: it is revoked, expired or replaced already.",
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
        "A new webhook secret; callbacks are signed with the old one too for a while",
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
