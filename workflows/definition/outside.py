"""What a definition refers to: models and other workflows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from jobs.domain.errors import Refused


class Outside:
    """Here every model exists, and takes and returns anything. `workflows.execution.outside` has those of a
    tenant.

    Values are checked as far as they are literal. A check that takes too long finds nothing."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def has_model(self, name: str) -> bool:
        """Return True if a model of that name may be used."""
        return True

    def result_schema(self, model: str) -> Any:
        """Return the JSON Schema of a model's results; True: any."""
        return True

    def refusals_of_job(self, options: Mapping[str, Any], payload: Any) -> Iterable[Refused]:
        """Yield why each job of a model node would be refused. options: of the node. payload: UNKNOWN if
        references make a part of it."""
        return ()

    def missing_artifacts(self, ids: Collection[str]) -> Collection[str]:
        """Return those of these ids of artifacts that jobs could not refer to."""
        return ()

    def refusal_of_inputs(self, workflow: str, version: int, inputs: Any) -> Refused | None:
        """Return why each run of a version would be refused."""
        return None

    def refusal_of_value(self, schema: Any, value: Any) -> Refused | None:
        """Return why a value does not match a JSON Schema."""
        return None
