"""A JSON Schema of a specification, with its compiled form beside it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class StoredSchema:
    """A schema as it was read. compiled_form: made once, by `foundation.foreign_schema.compiled`."""

    document: Mapping[str, Any] | bool
    compiled_form: Any = field(default=None, init=False, repr=False, compare=False)


def document_of(schema: StoredSchema | Mapping[str, Any] | bool | None) -> Mapping[str, Any] | bool:
    """Return the document of a schema. None: the schema that any value matches."""
    if schema is None:
        return True
    return schema.document if isinstance(schema, StoredSchema) else schema
