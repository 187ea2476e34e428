"""Signed URLs of a run's inputs in its result. They were made for its GPU server, and are not stored: a URL
as a whole text becomes the reference to the artifact, and a URL in a longer text loses its signature."""

from __future__ import annotations

import re
from typing import Any

from artifacts.models import Artifact
from artifacts.refs import ref
from foundation.json_text import unwrap
from foundation.signed_urls import replace_signed, without_signatures

_HASH = re.compile(r"(?:/|%2F)([0-9a-f]{64})(?![0-9a-f])", re.IGNORECASE)
"""The hash at the end of an object's path, also percent-encoded."""
_URL = re.compile(r"https?://[^\s?]*/a/[1-9][0-9]{0,18}/([0-9a-f]{64})\?\S*\Z")
"""A text that is the URL of an object in a store, and nothing else."""


def without_input_urls(result: Any, job_id: str) -> Any:
    """Return a result without signed URLs of artifacts that its job uses. URLs of other stores stay."""
    rows = Artifact.objects.filter(uses__job=job_id).values_list("sha256", "pk")
    inputs = dict(rows)

    def new(text: str) -> Any:
        found = _URL.match(text)
        if found is not None and found[1] in inputs:
            return ref(inputs[found[1]])
        names_input = any(one[1] in inputs for one in _HASH.finditer(text))
        return without_signatures(text) if names_input else text

    return replace_signed(unwrap(result), new) if inputs else result
