"""A model's own schema for its payloads; compiled once per text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry
from referencing.exceptions import Unresolvable

from gpus.canonical import canonical_json
from jobs.errors import PayloadInvalid


def check_payload(schema: Mapping[str, Any] | bool | None, payload: Any) -> None:
    """Raises PayloadInvalid with a pointer to the place that fits least."""
    if schema is None:
        return
    try:
        error = best_match(_compiled(canonical_json(schema)).iter_errors(payload))
    except (Unresolvable, RecursionError):
        raise PayloadInvalid(
            "The model's schema leads nowhere; tell its owner.", pointer="/payload"
        ) from None
    if error is not None:
        path = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in error.absolute_path)
        raise PayloadInvalid(error.message[:200], pointer=f"/payload{path}")


@lru_cache(maxsize=512)
def _compiled(text: str) -> Draft202012Validator:
    return Draft202012Validator(
        json.loads(text), registry=Registry()
    )  # the registry: no $ref leaves the schema
