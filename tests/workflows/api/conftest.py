"""The fixtures of the job API: tenants with keys, one model, ports in memory."""

from __future__ import annotations

from tests.support.api_harness import acme, api, operator, other, zimg

__all__ = ["acme", "api", "operator", "other", "zimg"]
