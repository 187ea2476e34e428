"""The models and workflows of a tenant, to which a definition refers that is to be stored."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

from artifacts.uses import missing_among
from foundation.stored_schema import document_of
from jobs.domain.errors import Refused
from jobs.limits.submit_limits import limits_of
from jobs.ports import Ports
from jobs.submission.request import (
    Allowed,
    CheckBudget,
    Submit,
    SubmitRequest,
    certain_refusal,
    certain_refusals,
)
from workflows.definition.outside import Outside
from workflows.domain.template import UNKNOWN
from workflows.execution.runs import check_inputs, check_value, find_version


class OutsideOfTenant(Outside):
    """Of one request: its checks against schemas have one budget."""

    def __init__(self, tenant_id: int, ports: Ports) -> None:
        self._tenant_id, self._ports = tenant_id, ports
        self._checks = CheckBudget()
        self._allowed = Allowed(limits_of(tenant_id, ports).allowed_models, None, self._checks)

    def now(self) -> datetime:
        return self._ports.clock.now()

    def has_model(self, name: str) -> bool:
        return self._ports.registry.model_spec(name) is not None and self._allowed.covers(name)

    def result_schema(self, model: str) -> Any:
        found = self._ports.registry.model_spec(model)
        return document_of(None if found is None else found.result_schema)

    def refusals_of_job(self, options: Mapping[str, Any], payload: Any) -> Iterator[Refused]:
        body = Submit(
            model=options["model"],
            payload={} if payload is UNKNOWN else payload,
            max_retries=options.get("max_retries"),
            max_run_seconds=options.get("max_run_seconds"),
        )
        now = self._ports.clock.now()
        yield from certain_refusals(
            SubmitRequest(body), self._allowed, now, self._ports, has_payload=payload is not UNKNOWN
        )

    def missing_artifacts(self, ids: Collection[str]) -> set[str]:
        return missing_among(self._tenant_id, ids)

    def refusal_of_inputs(self, workflow: str, version: int | None, inputs: Any) -> Refused | None:
        found = find_version(self._tenant_id, workflow, version)
        if found is None:
            return None
        schema = found.spec.get("inputs")
        return certain_refusal(
            lambda: check_inputs(True if schema is None else schema, inputs, self._ports, self._checks)
        )

    def refusal_of_value(self, schema: Any, value: Any) -> Refused | None:
        return certain_refusal(lambda: check_value(schema, value, self._ports, "", self._checks))
