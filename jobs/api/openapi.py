"""The published contract: drf-spectacular makes the paths, the types of bodies and answers the components."""

from __future__ import annotations

from typing import Any

from foundation.http_api.openapi import OPTIONAL_BODY, components


def add_components(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """A postprocessing hook of drf-spectacular."""
    found = result.setdefault("components", {})
    found["schemas"] = {**found.get("schemas", {}), **components()}
    for operations in result["paths"].values():
        for operation in operations.values():
            body = operation.get("requestBody")
            if body is not None:
                body["required"] = not operation.pop(OPTIONAL_BODY, False)
    return result
