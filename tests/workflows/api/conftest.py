"""The fixtures of the job API: tenants with keys, one model, ports in memory."""

from __future__ import annotations

from tests.support.api_world import acme, operator, other, world, zimg

__all__ = ["acme", "operator", "other", "world", "zimg"]
