"""The parser of JSON bodies for REST framework, apart from `json_body`, which workers import too."""

from __future__ import annotations

from typing import Any

from rest_framework.parsers import BaseParser

from foundation.http_api.json_body import expect_body, read_json, too_large


class StrictJsonParser(BaseParser):
    """Parses JSON bodies for `request.data`; a view's `max_body_bytes` limits the body before it is read, its
    `body_setting` and `larger_body` are in the refusal, and its `escaped_fields` may have any text."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        view = (parser_context or {}).get("view")
        limit = expect_body(view, (parser_context or {})["request"].META)
        raw = stream.read(limit + 1)
        if len(raw) > limit:
            raise too_large(limit, view)
        return read_json(raw, getattr(view, "escaped_fields", ()))
