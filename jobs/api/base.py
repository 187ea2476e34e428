"""Base classes and helpers of all job views: permissions, ports, and jobs visible to the reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from rest_framework.request import Request
from rest_framework.views import APIView

from foundation.http_api.problems import Problem
from gpus.api.permissions import IsOperator
from jobs import ports
from jobs.api import answers
from jobs.api.authentication import HasScopeOrPermission
from jobs.api.parameters import job_id_of, unknown_job
from jobs.api.representations import job_json, nodes_of_jobs, summary_json
from jobs.domain.access import VIEW_PAYLOAD, Principal, Scope, may_see_details, may_see_payloads
from jobs.models import Job
from jobs.ports import Ports
from jobs.reports.jobs import find_job, jobs_visible_to
from jobs.reports.progress import read_progress


class JobView(APIView):
    """Base of views for API keys and staff. needs: Django permission that a staff session must have, by
    method. scopes: scope that an API key must have, by method."""

    permission_classes: tuple[Any, ...] = (HasScopeOrPermission,)
    needs: Mapping[str, str] = {"GET": "jobs.view_job", "POST": "jobs.change_job"}
    scopes: Mapping[str, str] = {"GET": Scope.READ}

    @property
    def ports(self) -> Ports:
        return ports.production_ports()


class OperatorView(JobView):
    """Base of views for operators only."""

    permission_classes = (IsOperator,)
    needs = {"GET": "jobs.view_job", "POST": "jobs.change_job", "DELETE": "jobs.change_job"}


def principal_of(request: Request) -> Principal:
    return cast("Principal", request.user)


def tenant_of(request: Request) -> int:
    """Return the tenant id of the API key. Raises Problem 403 for a staff session, which has no tenant."""
    tenant_id = principal_of(request).tenant_id
    if tenant_id is None:
        raise Problem(403, "tenant_required", "A staff session belongs to no tenant. Use a tenant's API key.")
    return tenant_id


def operator_of(request: Request) -> str | None:
    """Return the operator, for the audit; a tenant's own requests have no entry."""
    principal = principal_of(request)
    return principal.name if principal.is_operator else None


def shown_job(request: Request, job: Job) -> answers.Job:
    """Return the job's body with what the reader may see."""
    reader, real = principal_of(request), ports.production_ports()
    return job_json(
        job,
        real.clock.now(),
        node=nodes_of_jobs([job], real).get(job.id),
        with_result=may_see_payloads(reader),
        in_full=may_see_details(reader),
    )


def job_summaries(request: Request, jobs: Sequence[Job]) -> list[answers.JobSummary]:
    """Return the bodies of jobs in a list."""
    reader = principal_of(request)
    with_result, in_full = may_see_payloads(reader), may_see_details(reader)
    read_progress(jobs)
    nodes = nodes_of_jobs(jobs, ports.production_ports())
    return [
        summary_json(job, node=nodes.get(job.id), with_result=with_result, in_full=in_full) for job in jobs
    ]


def require_payloads(request: Request) -> None:
    """Raise Problem 403 unless the reader may see payloads."""
    reader = principal_of(request)
    if may_see_payloads(reader):
        return
    if reader.user is None:
        raise Problem(403, "scope_required", f"This key lacks the scope `{Scope.READ}`.")
    raise Problem(403, "permission_required", f"This needs the permission {VIEW_PAYLOAD}.")


def visible_job(
    request: Request, job_id: str, *, attempts_before: int | None = None, with_payload: bool = False
) -> Job:
    """Return the job with its last attempts, without its payload unless `with_payload`.

    attempts_before: only attempts with a lower number. Raises Problem 404, also for another tenant's job."""
    job = find_job(
        principal_of(request),
        job_id_of(job_id),
        attempts_before=attempts_before,
        with_payload=with_payload,
    )
    if job is None:
        raise unknown_job()
    return job


def require_visible(request: Request, job_id: str) -> str:
    """Return the id of a job that the reader may see. Raises Problem 404."""
    job_id = job_id_of(job_id)
    if not jobs_visible_to(principal_of(request)).filter(id=job_id).exists():
        raise unknown_job()
    return job_id
