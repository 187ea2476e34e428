from __future__ import annotations

from collections.abc import Callable

from django.urls import URLPattern, path

from .views import ModelConfigDetail, ModelConfigs, Register, RegistryPorts


def registry_urls(ports: Callable[[], RegistryPorts]) -> list[URLPattern]:
    """The routes under ``/api/v1/admin`` that are about machines and models."""
    return [
        path("register", Register.as_view(ports=ports)),
        path("model-configs", ModelConfigs.as_view()),
        path("model-configs/<str:model>", ModelConfigDetail.as_view(ports=ports)),
    ]
