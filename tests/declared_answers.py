"""Compares the answers of views with the types that their routes declare (`foundation.http_api.openapi`)."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from pydantic import TypeAdapter
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response
from rest_framework.views import APIView

_adapter = cache(TypeAdapter)


def differs(declared: Any, data: Any) -> str:
    """What is wrong with an answer; empty: nothing. Reading it drops undeclared fields."""
    answer = json.loads(JSONRenderer().render(data))
    try:
        read = _adapter(declared).validate_python(answer, strict=True)
    except ValueError as error:
        return str(error)
    return "" if read == answer else f"declared: {read}\nanswered: {answer}"


def compare_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, until the end of the test: an answer that is not as declared fails the test."""
    finish = APIView.finalize_response

    def compared(view: Any, request: Any, response: Any, *args: Any, **options: Any) -> Any:
        answers = getattr(getattr(view, request.method.lower(), None), "answers", {})
        if isinstance(response, Response) and answers.get(response.status_code) is not None:
            wrong = differs(answers[response.status_code], response.data)
            assert not wrong, f"{request.method} {request.path}: {wrong}"
        return finish(view, request, response, *args, **options)

    monkeypatch.setattr(APIView, "finalize_response", compared)
