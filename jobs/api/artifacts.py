"""Views of artifacts: promise an upload, complete it, read, list and delete. The bytes themselves pass
between client and store (`artifacts.store`)."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from django.conf import settings
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.request import Request
from rest_framework.response import Response

from artifacts.models import Artifact
from artifacts.removal import remove_now
from artifacts.store.contract import SignedRequest, StoreUnavailable
from artifacts.uploads import (
    Promise,
    Wanted,
    complete,
    confirm,
    promise,
    promise_parts,
    require_one_put,
)
from foundation.http_api.json_body import read_body
from foundation.http_api.openapi import described
from foundation.http_api.parameters import PARAMETERS, allow_only, choice_parameter
from foundation.http_api.problems import FieldError, Problem
from foundation.ids import is_id
from gpus.registry.audit import record
from jobs.api import answers, bodies
from jobs.api.base import JobView, operator_of, principal_of, tenant_of
from jobs.api.parameters import JobPages
from jobs.domain.access import VIEW_PAYLOAD, Principal, Scope
from jobs.domain.errors import ArtifactStoreOfOneHost, ArtifactStoreUnavailable
from jobs.ports import Ports
from jobs.submission.artifact_refs import require_one_host, require_own_store

ARTIFACT_ID = OpenApiParameter("artifact_id", str, OpenApiParameter.PATH, description="Id of the artifact.")
_STATES = [state.value for state in Artifact.State]


class Artifacts(JobView):
    scopes = {"GET": Scope.READ, "POST": Scope.SUBMIT}

    @described(
        "create_artifact",
        "Promise an upload, and get the request that uploads it",
        answers={201: answers.PromisedArtifact, 200: answers.PromisedArtifact},
        refusals=(403, 413, 429),
        body=bodies.NewArtifact,
        description="201: send the file by `upload`, or in `parts`. 200: the tenant has a file with these "
        "bytes already. The store checks length and SHA-256. Then refer to it in payloads by "
        '`{"$artifact": "<id>"}`.',
        tag="artifacts",
    )
    def post(self, request: Request) -> Response:
        tenant_id = tenant_of(request)
        body = read_body(bodies.NewArtifact, request.data)
        store, now = self.ports.artifact_store, self.ports.clock.now()
        require_shared_store(self.ports)
        if not body.parts:
            require_one_put(body.bytes, store, otherwise='send it in parts ("parts": true)')
        made = promise(
            Wanted(
                tenant_id,
                body.sha256,
                body.bytes,
                content_type=body.content_type or "",
                name=body.name or "",
                made_by_key=principal_of(request).name,
            ),
            store,
            now,
        )
        parts = promise_parts(made.artifact, store) if body.parts and made.upload else None
        shown = None
        if parts is not None:
            size = parts.upload.part_bytes
            shown = {
                "count": parts.upload.parts,
                "missing": [
                    {
                        "number": number,
                        "first": (number - 1) * size,
                        "bytes": int(signed.headers["Content-Length"]),
                        **signed_json(signed),
                    }
                    for number, signed in parts.missing.items()
                ],
            }
        return Response(_promise_json(made, shown), status=201 if made.upload else 200)

    @described(
        "list_artifacts",
        "Your artifacts, newest first",
        answers={200: answers.ArtifactPage},
        refusals=(400,),
        parameters=(OpenApiParameter("state", str, enum=_STATES), *PARAMETERS),
        tag="artifacts",
    )
    def get(self, request: Request) -> Response:
        allow_only(request, ("state", "cursor", "limit"))
        rows = visible_artifacts(principal_of(request))
        state = choice_parameter(request, "state", _STATES)
        if state is not None:
            rows = rows.filter(state=state)
        pages = JobPages()
        page: list[Artifact] = pages.paginate_queryset(rows, request, view=self) or []
        return pages.get_paginated_response([meta_json(row) for row in page])


class _AnyAccept(BaseContentNegotiation):
    """The answer has no body whose type a client could choose."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(self, request: Request, renderers: Any, format_suffix: Any = None) -> Any:
        return renderers[0], renderers[0].media_type


class _OneArtifact(JobView):
    scopes = {"GET": Scope.READ}

    def confirmed(self, request: Request, artifact_id: str) -> Artifact:
        """Return the artifact; the store is asked for its upload if that is not known yet."""
        row = visible_artifact(request, artifact_id)
        confirm([row], self.ports.artifact_store, self.ports.clock.now())
        return row


class ArtifactDetail(_OneArtifact):
    content_negotiation_class = _AnyAccept
    scopes = {"GET": Scope.READ, "DELETE": Scope.SUBMIT}
    needs = {"GET": VIEW_PAYLOAD, "DELETE": "jobs.change_job"}

    @described(
        "get_artifact",
        "The bytes of an artifact: a redirect to the store, which takes ranges",
        answers={302: None},
        refusals=(403, 404, 409, 410),
        parameters=(ARTIFACT_ID,),
        description="The `Location` needs no API key, and expires. Do not send the key to it.",
        tag="artifacts",
    )
    def get(self, request: Request, artifact_id: str) -> HttpResponse:
        allow_only(request, ())
        row = self.confirmed(request, artifact_id)
        if row.state != Artifact.State.STORED:
            raise Problem(409, "artifact_not_uploaded", "The upload of the artifact is not complete.")
        signed = self.ports.artifact_store.sign_get(
            row.key,
            settings.DISPATCHER.artifact_url_seconds,
            content_type=row.content_type,
            name=row.name,
        )
        return HttpResponse(status=302, headers={"Location": signed.url, "Cache-Control": "no-store"})

    @described(
        "delete_artifact",
        "Delete an artifact that no job refers to",
        answers={204: None},
        refusals=(403, 404, 409),
        parameters=(ARTIFACT_ID,),
        tag="artifacts",
    )
    def delete(self, request: Request, artifact_id: str) -> Response:
        row = visible_artifact(request, artifact_id)
        require_shared_store(self.ports)  # else the row goes, and the file stays
        audit = partial(
            record, operator_of(request), "remove_artifact", f"artifact:{row.pk}", tenant=row.tenant_id
        )
        with suppress(StoreUnavailable):  # the row is gone; a sweep removes the object
            remove_now(row.pk, self.ports.artifact_store, self.ports.clock.now(), audit=audit)
        return Response(status=204)


class ArtifactMeta(_OneArtifact):
    @described(
        "get_artifact_meta",
        "An artifact without its bytes",
        answers={200: answers.ArtifactMeta},
        refusals=(404,),
        parameters=(ARTIFACT_ID,),
        tag="artifacts",
    )
    def get(self, request: Request, artifact_id: str) -> Response:
        allow_only(request, ())
        return Response(meta_json(self.confirmed(request, artifact_id)))


class CompleteArtifact(JobView):
    scopes = {"POST": Scope.SUBMIT}

    @described(
        "complete_artifact",
        "Finish an upload: join its parts, and check that the store has all bytes",
        answers={200: answers.ArtifactMeta},
        refusals=(400, 403, 404, 409, 503),
        parameters=(ARTIFACT_ID,),
        description="Needed after an upload in parts; it may be repeated. 409 `artifact_not_uploaded`: "
        "parts are missing.",
        tag="artifacts",
    )
    def post(self, request: Request, artifact_id: str) -> Response:
        row = visible_artifact(request, artifact_id)
        complete(row, self.ports.artifact_store, self.ports.clock.now(), self.ports.artifact_completions)
        return Response(meta_json(row))


def visible_artifacts(principal: Principal) -> Any:
    """Return all artifacts for an operator, otherwise those of the principal's tenant."""
    if principal.is_operator:
        return Artifact.objects.all()
    if principal.tenant_id is None:
        return Artifact.objects.none()
    return Artifact.objects.filter(tenant_id=principal.tenant_id)


def visible_artifact(request: Request, artifact_id: str) -> Artifact:
    """Return an artifact. Raises Problem 404, also for another tenant's, and 410 for a removed one."""
    row = None
    if is_id(artifact_id):
        row = visible_artifacts(principal_of(request)).filter(pk=artifact_id).first()
    if row is None:
        error = FieldError("/artifact_id", "unknown_artifact", "There is no such artifact.", place="path")
        raise Problem(
            404, "unknown_artifact", "There is no such artifact, or it is not yours.", errors=[error]
        )
    if row.state == Artifact.State.GONE:
        raise Problem(410, "artifact_gone", "The artifact was erased, deleted, or unused for too long.")
    return row  # type: ignore[no-any-return]


def meta_json(row: Artifact) -> answers.ArtifactMeta:
    """Return the body of an artifact."""
    return {
        "id": row.pk,
        "state": str(row.state),
        "bytes": row.bytes,
        "sha256": row.sha256,
        "content_type": row.content_type,
        "name": row.name,
        "made_by_job": row.made_by_job or None,
        "created_at": row.created_at.isoformat(),
        "stored_at": row.stored_at.isoformat() if row.stored_at else None,
        "expires_at": row.expires_at.isoformat(),
    }


def _promise_json(made: Promise, parts: Any) -> dict[str, Any]:
    return {
        "id": made.artifact.pk,
        "exists": made.upload is None,
        "upload": signed_json(made.upload) if made.upload else None,
        "parts": parts,
    }


def signed_json(signed: SignedRequest) -> Any:
    """Return the body of a signed request."""
    return {
        "method": signed.method,
        "url": signed.url,
        "headers": dict(signed.headers),
        "expires_at": signed.expires_at.isoformat(),
    }


def require_shared_store(ports: Ports) -> None:
    """Raise Problem 503 if processes of several hosts use a folder that only one of them has, or if the
    folder of this process is not the store of the database."""
    try:
        require_one_host(ports)
        require_own_store(ports)
    except (ArtifactStoreOfOneHost, ArtifactStoreUnavailable) as refused:
        is_retryable = isinstance(refused, ArtifactStoreUnavailable)
        raise Problem(refused.status, refused.code, str(refused), retryable=is_retryable) from None
