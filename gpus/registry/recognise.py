"""Inspects a model server before it is registered, and proposes fields for the registration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import structlog
from django.conf import settings

from artifacts.file_fields import checked_schema
from foundation.foreign_schema import CHEAP_STEPS, ForeignSchema, SchemaRefused
from gpus.registry.model_fields import RegistryRefused
from gpus.runners.base import Transport, getter
from gpus.runners.recognition import (
    COMPATIBLE,
    GENERIC,
    MAX_PROPOSALS,
    OWN_PROTOCOL,
    PAGE_BYTES,
    PAGE_SECONDS,
    SITE_SECONDS,
    Proposal,
    Site,
    Unreachable,
    server_name,
    with_distinct_names,
)
from gpus.runners.registry import RUNNERS
from gpus.runners.transport import HttpTransport

log = structlog.get_logger(__name__)


CERTAINTIES = {OWN_PROTOCOL: "own_protocol", COMPATIBLE: "compatible", GENERIC: "generic"}


@dataclass(frozen=True, slots=True)
class Findings:
    """proposals: the most certain first. problems: sentences about pages that could not be read."""

    url: str
    proposals: tuple[Proposal, ...]
    problems: tuple[str, ...]


def look_at(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    ca_pem: str | None = None,
    transport: Transport | None = None,
    page_seconds: float = PAGE_SECONDS,
    site_seconds: float = SITE_SECONDS,
) -> Findings:
    """Read the server's pages with each runner that recognises its protocol.

    url: of the server, or of one of its endpoints. headers: secret ones that it asks for. page_seconds,
    site_seconds: longest time for one page, and for all. Raises
    RegistryRefused for an invalid URL, or a server that does not answer.
    """
    _check_address(url)
    site = Site(
        url,
        getter(
            transport or HttpTransport(),
            headers=headers or {},
            timeout_seconds=page_seconds,
            connect_timeout_seconds=settings.DISPATCHER.connect_timeout_seconds,
            max_bytes=PAGE_BYTES,
            ca_pem=ca_pem,
        ),
        seconds=site_seconds - page_seconds,
    )
    found: list[Proposal] = []
    try:
        site.page(site.url)
        for name, runner in RUNNERS.all().items():
            recognise = getattr(runner, "recognise", None)
            if recognise is None:
                continue
            try:
                found += recognise(site)
            except Unreachable:
                raise
            except Exception as error:  # a runner of another package may raise anything
                log.exception("recognition_failed", model_type=name)
                site.problems.append(
                    f"The runner {name} failed to read the server's pages: {type(error).__name__}."
                )
    except Unreachable as error:
        raise RegistryRefused(
            "server_unreachable",
            f"Nothing answers at {url}: {error}. Start the server, or correct the address.",
            pointer="/url",
        ) from None
    if not site.answers:
        why = " ".join(site.problems[:3])
        raise RegistryRefused(
            "server_unreadable", f"{url} gave no usable answer. {why}".strip(), pointer="/url"
        )
    found.sort(key=lambda one: -one.certainty)
    best = with_distinct_names([one for one in found if one.certainty == found[0].certainty][:MAX_PROPOSALS])
    return Findings(url, tuple(_with_usable_schema(one) for one in best), tuple(site.problems[:10]))


def registration(proposal: Proposal) -> dict[str, Any]:
    """The body of POST /admin/register, without secret headers."""
    return {
        "model": proposal.model,
        "server": server_name(proposal.endpoint),
        "endpoint": proposal.endpoint,
        "slots": proposal.slots,
        "model_type": proposal.model_type,
        **proposal.options,
    }


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        if "@" in parts.netloc:
            raise RegistryRefused(
                "invalid_url",
                "Give the address without a user and password, and send them as a header: "
                "Authorization: Basic …",
                pointer="/url",
            )
    except ValueError:
        usable = False
    if not usable or " " in url or not url.isprintable() or len(url) > 500:
        raise RegistryRefused(
            "invalid_url",
            "Give the server's address as an http(s) URL, such as http://box-1:8000.",
            pointer="/url",
        )


def _with_usable_schema(proposal: Proposal) -> Proposal:
    """Without a `payload_schema` that the registry would refuse, or that refuses the test payload."""
    schema = proposal.options.get("payload_schema")
    if schema is None:
        return proposal
    try:
        fits = _takes(checked_schema(schema), proposal.test_payload)
    except SchemaRefused:
        fits = False
    if fits:
        return proposal
    options = {name: value for name, value in proposal.options.items() if name != "payload_schema"}
    return replace(proposal, options=options)


def _takes(schema: ForeignSchema, payload: Any) -> bool:
    """Whether the schema is cheap to check (`foundation.foreign_schema`) and accepts the payload."""
    is_cheap = schema.validator is not None and schema.steps(json.dumps(payload).encode()) <= CHEAP_STEPS
    return is_cheap and schema.mismatch(payload) is None
