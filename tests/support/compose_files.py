"""The services of a compose file."""

from __future__ import annotations

from typing import Any

import yaml

from dispatcher_project.supervisor.data_folder import ROOT


def text_of(name: str) -> str:
    return (ROOT / "deploy" / name).read_text()


def services(name: str) -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load(text_of(name))["services"])


ONE_HOST, SEVERAL, WORKER = "compose.yaml", "compose.several-hosts.yaml", "compose.worker.yaml"
