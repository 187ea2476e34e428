"""A tenant, an operator and another tenant with their keys, one model, and ports in memory."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from dispatcher_project.web import request_limits
from tests.support.api_harness import (
    GatewayClock,
    acme,
    all_remembered,
    api,
    operator,
    other,
    zimg,
)

__all__ = ["acme", "all_remembered", "api", "operator", "other", "zimg"]


@pytest.fixture
def anonymous() -> APIClient:
    return APIClient(raise_request_exception=False)


@pytest.fixture
def gateway_clock(monkeypatch: pytest.MonkeyPatch) -> GatewayClock:
    time = GatewayClock()
    monkeypatch.setattr(request_limits, "time", time)
    return time
