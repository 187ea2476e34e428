"""The bodies of a tenant's routes, as JSON Schema 2020-12."""

from __future__ import annotations

from gpus.api.schemas import NAME, Schema
from gpus.protocol import BANDS
from jobs.models.tenant import MAX_WEIGHT, MIN_WEIGHT, MOST_RUNNING

_RULES: Schema = {
    "weight": {
        "type": "number",
        "minimum": MIN_WEIGHT,
        "maximum": MAX_WEIGHT,
        "description": "Share of GPU-seconds relative to other tenants.",
    },
    "highest_band": {
        "enum": list(BANDS),
        "description": "Jobs that ask for a higher one stand in this band, before the tenant's others.",
    },
    "max_running": {
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": MOST_RUNNING,
        "description": "Jobs at once in all pools of a fleet; null: no limit.",
    },
}


def tenant_change() -> Schema:
    return {"type": "object", "additionalProperties": False, "minProperties": 1, "properties": _RULES}


def components() -> dict[str, Schema]:
    """The tenants' part of the API's named schemas."""
    known = {"tenant": NAME, **_RULES}
    changed = {
        **known,
        "changed": {"type": "boolean", "description": "False: it was so already."},
        "live": {"type": "boolean", "description": "False: Redis is away; it follows when it is back."},
    }
    return {
        "TenantChange": tenant_change(),
        "Tenant": {"type": "object", "required": list(known), "properties": known},
        "ChangedTenant": {"type": "object", "required": list(changed), "properties": changed},
    }
