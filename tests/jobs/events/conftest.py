"""Fixtures: a web process over a real Valkey, and jobs changed by the real transitions."""

from __future__ import annotations

from tests.support.api_harness import api
from tests.support.live_web import redis_url, tenant, web

__all__ = ["api", "redis_url", "tenant", "web"]
