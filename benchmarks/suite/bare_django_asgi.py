"""The bare Django view behind ASGI."""

from __future__ import annotations

from benchmarks.suite.bare_django import asgi

application = asgi()
