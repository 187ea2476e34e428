"""Who sees what clients sent and got: payloads, results, and the messages that carry them."""

from __future__ import annotations

from collections.abc import Sequence

from django.http import HttpRequest

from jobs.reports.jobs import VIEW_PAYLOAD

BODIES = ("body", "body_json")


def sees_payloads(request: HttpRequest) -> bool:
    return bool(request.user.has_perm(VIEW_PAYLOAD))


def without_bodies(request: HttpRequest, fields: Sequence[str]) -> Sequence[str]:
    """A page's fields; the body of a message only for those who may see payloads."""
    return fields if sees_payloads(request) else [name for name in fields if name not in BODIES]
