"""A tenant with a model, a clock that tests move, and schedules whose sweeps tests run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.api_harness import ApiHarness
from tests.support.factories import make_model, make_tenant
from tests.support.fakes import ManualClock
from tests.support.schedules import Stage
from workflows.schedules.models import reopen


@pytest.fixture
def stage(db: None) -> Stage:
    api = ApiHarness(clock=ManualClock())
    make_model("zimg")
    ports = replace(api.ports, reopened=reopen)
    return Stage(make_tenant(), api.clock, ports)  # type: ignore[arg-type]
