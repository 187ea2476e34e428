"""Problem documents as a client reads them."""

from __future__ import annotations

import json
from typing import Any

SUBMIT = "/api/v1/queue/submit"
JOB: dict[str, Any] = {"model": "zimg", "payload": {"prompt": "a sunset"}}
FIELDS = ("type", "title", "status", "detail", "code", "retryable")


def problem(answer: Any, status: int, code: str, pointer: str | None = None) -> dict[str, Any]:
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    content = json.loads(answer.content)
    assert set(FIELDS) <= set(content)
    assert (content["status"], content["code"]) == (status, code), content
    if pointer is not None:
        assert pointer in [error["pointer"] for error in content["errors"]], content
    return content  # type: ignore[no-any-return]
