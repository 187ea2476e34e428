"""Signed requests to the local store: the query of their URL grants one method on one object until a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import parse_qsl, urlencode

from artifacts.keys import ObjectKey
from foundation.secrets import signed, verified

PURPOSE = "artifact"


@dataclass(frozen=True, slots=True)
class Grant:
    """What a signed request may do.

    size: of the body of a PUT. upload, number: of a part; "" and 0 for whole objects. content_type, name: of
    the answer to a GET.
    """

    method: str
    key: ObjectKey
    size: int = 0
    upload: str = ""
    number: int = 0
    content_type: str = ""
    name: str = ""


class BadSignature(Exception):
    """The URL was changed, was made under another secret key, or is for another method."""


class Expired(Exception):
    """The URL has expired."""


def signed_query(grant: Grant, expires_at: datetime) -> str:
    """Return the query that grants this until `expires_at`."""
    fields = {"expires": str(int(expires_at.timestamp()))}
    if grant.method == "PUT":
        fields["bytes"] = str(grant.size)
    if grant.upload:
        fields |= {"upload": grant.upload, "part": str(grant.number)}
    fields |= {name: value for name, value in (("type", grant.content_type), ("name", grant.name)) if value}
    return urlencode({**fields, "signature": _signature(grant.method, grant.key, fields)})


def read_grant(method: str, key: ObjectKey, query: str, now: datetime) -> Grant:
    """Return what a request's query grants. method: GET also covers HEAD. Raises BadSignature and Expired."""
    try:
        fields = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True, max_num_fields=10))
    except ValueError:
        raise BadSignature from None
    method = "GET" if method == "HEAD" else method
    signature = fields.pop("signature", "")
    token = f"{_text(method, key, fields)}.{signature}"
    if not signature.isascii() or verified(token, purpose=PURPOSE) is None:
        raise BadSignature
    if int(fields["expires"]) < now.timestamp():
        raise Expired
    return Grant(
        method,
        key,
        size=int(fields.get("bytes", 0)),
        upload=fields.get("upload", ""),
        number=int(fields.get("part", 0)),
        content_type=fields.get("type", ""),
        name=fields.get("name", ""),
    )


def _signature(method: str, key: ObjectKey, fields: Mapping[str, str]) -> str:
    return signed(_text(method, key, fields), purpose=PURPOSE).rpartition(".")[2]


def _text(method: str, key: ObjectKey, fields: Mapping[str, str]) -> str:
    """Return the signed text; hexadecimal, because `foundation.secrets` splits a token at its first dot."""
    return json.dumps([method, str(key), sorted(fields.items())]).encode().hex()
