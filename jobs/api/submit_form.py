"""What is wrong with the form of a submit: the published schema, and what no schema says."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator

from foundation.http_api.json_body import check, compiled
from foundation.http_api.plain_check import Plain, plain
from foundation.http_api.problems import FieldError
from foundation.json_text import canonical_json
from jobs.api import schemas
from jobs.api.parameters import NO_TIME, read_time
from jobs.domain.errors import Refused
from jobs.submission.request import MAX_METADATA_BYTES, SubmitRequest, read_request

ENVELOPE_BYTES = 64 * 1024
"""What a submit's body may have besides its payload."""

_Form = tuple[Plain, Draft202012Validator]
"""The quick yes, and who says what is wrong."""


class InvalidItem(Refused):
    """One job of a batch is not well-formed."""

    code = "validation_failed"
    status = 422


def submit_errors(body: Any) -> list[FieldError]:
    return _errors(body, _submit())


def batch_errors(body: Any) -> list[FieldError]:
    """Of the batch as a whole; its jobs are looked at one by one."""
    is_right, validator = _batch()
    return [] if is_right(body) else check(body, validator)


def read_item(item: Any) -> SubmitRequest | Refused:
    """One job of a batch."""
    errors = _errors(item, _item())
    if errors:
        return InvalidItem(errors[0].detail, pointer=errors[0].pointer)
    return read_request(item)


def _errors(body: Any, form: _Form) -> list[FieldError]:
    is_right, validator = form
    errors = [] if is_right(body) else check(body, validator)
    metadata = None if errors else body.get("metadata")
    if metadata and len(canonical_json(metadata).encode()) > MAX_METADATA_BYTES:
        errors = [FieldError("/metadata", "too_large", f"Must be at most {MAX_METADATA_BYTES} bytes.")]
    if not errors and body.get("run_at") is not None and read_time(body["run_at"]) is None:
        errors = [FieldError("/run_at", "invalid", NO_TIME)]
    return errors


@lru_cache(maxsize=1)
def _submit() -> _Form:
    return plain(schemas.submit()), compiled(schemas.submit())


@lru_cache(maxsize=1)
def _item() -> _Form:
    return plain(schemas.batch_item()), compiled(schemas.batch_item())


@lru_cache(maxsize=1)
def _batch() -> _Form:
    return plain(schemas.batch_envelope()), compiled(schemas.batch_envelope())
