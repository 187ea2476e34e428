from __future__ import annotations

from collections.abc import Callable

from django.urls import URLPattern, path

from gpus.api.controls import (
    CircuitList,
    FreeSlot,
    PauseModel,
    PauseSystem,
    Quarantine,
    ResetModelCircuit,
    ResetServerCircuit,
    ResumeModel,
    ResumeSystem,
)
from gpus.api.servers import MachineDetail, ServerDetail, Servers, Telemetry
from gpus.api.views import (
    Audit,
    ConfigVersions,
    Inspect,
    ModelConfigDetail,
    ModelConfigs,
    Register,
    RevertConfig,
)
from gpus.health.registration import RegistryPorts


def registry_urls(ports: Callable[[], RegistryPorts]) -> list[URLPattern]:
    """The routes under ``/api/v1/admin`` for servers, models and controls. ports: dependencies of the
    views."""
    return [
        path("register", Register.as_view(ports=ports)),
        path("inspect", Inspect.as_view(ports=ports)),
        path("servers", Servers.as_view(ports=ports)),
        path("servers/<str:server>", ServerDetail.as_view(ports=ports)),
        path("servers/<str:server>/telemetry", Telemetry.as_view(ports=ports)),
        path("servers/<str:server>/slots/<str:index>/free", FreeSlot.as_view(ports=ports)),
        path("quarantine", Quarantine.as_view(ports=ports)),
        path("machines/<str:machine>", MachineDetail.as_view(ports=ports)),
        path("model-configs", ModelConfigs.as_view()),
        path("model-configs/<str:model>", ModelConfigDetail.as_view(ports=ports)),
        path("model-configs/<str:model>/versions", ConfigVersions.as_view()),
        path("model-configs/<str:model>/revert", RevertConfig.as_view(ports=ports)),
        path("models/<str:model>/pause", PauseModel.as_view(ports=ports)),
        path("models/<str:model>/resume", ResumeModel.as_view(ports=ports)),
        path("pause", PauseSystem.as_view(ports=ports)),
        path("resume", ResumeSystem.as_view(ports=ports)),
        path("circuits", CircuitList.as_view(ports=ports)),
        path("servers/<str:server>/circuit/reset", ResetServerCircuit.as_view(ports=ports)),
        path("models/<str:model>/circuit/reset", ResetModelCircuit.as_view(ports=ports)),
        path("audit", Audit.as_view()),
    ]
