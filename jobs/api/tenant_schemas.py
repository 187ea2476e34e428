"""The bodies of a tenant's routes, as JSON Schema 2020-12."""

from __future__ import annotations

from gpus.api.control_schemas import page_of
from gpus.api.schemas import NAME, Schema, object_of
from gpus.protocol import BANDS
from jobs.models.tenant import MAX_WEIGHT, MIN_WEIGHT, MOST_QUEUED, MOST_QUEUED_SECONDS, MOST_RUNNING

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
    "max_queued": {
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": MOST_QUEUED,
        "description": "Jobs that may wait, more are refused; null: DISPATCHER_TENANT_MAX_QUEUED.",
    },
    "max_queued_seconds": {
        "type": ["number", "null"],
        "minimum": 0.001,
        "maximum": MOST_QUEUED_SECONDS,
        "description": "How long a job may wait in all; then it fails with max_queued_exceeded. The shorter "
        "of this and the model's counts. null: the model's.",
    },
    "submits_per_second": {
        "type": ["number", "null"],
        "minimum": 0.001,
        "maximum": 1_000_000,
        "description": "Jobs submitted per second in the long run, more are refused; null: no limit.",
    },
    "submit_burst": {
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": 1_000_000,
        "description": "Jobs submitted at once after a pause; null: those of one second. Needs a rate.",
    },
    "daily_gpu_seconds": {
        "type": ["number", "null"],
        "minimum": 0.001,
        "maximum": 1e12,
        "description": "GPU-seconds per UTC day; null: no limit.",
    },
    "allowed_models": {
        "type": ["array", "null"],
        "items": NAME,
        "uniqueItems": True,
        "maxItems": 1000,
        "description": "The models that it may submit to; null: all.",
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
        "Tenant": object_of(known),
        "TenantPage": page_of("Tenant"),
        "ChangedTenant": object_of(changed),
    }
