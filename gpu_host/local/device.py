"""What a model process is pinned to: a GPU, a part of one (MIG), or none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


class NoSuchDevice(Exception):
    """The message says which there are."""


@dataclass(frozen=True, slots=True)
class Device:
    """uuid: of the GPU or MIG instance; empty for the CPU. label: short, for names."""

    uuid: str
    label: str

    @property
    def is_gpu(self) -> bool:
        return bool(self.uuid)

    def environment(self) -> Mapping[str, str]:
        """What makes a process see this device and no other."""
        return {"CUDA_VISIBLE_DEVICES": self.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


CPU = Device("", "cpu")


def is_uuid(said: str) -> bool:
    """Of a GPU or a MIG instance, or the beginning of one."""
    return said.startswith(("GPU-", "MIG-"))


def choose_device(said: str, uuids: list[str]) -> Device:
    """said: ``none``, an index, or a UUID (or a beginning of one that is unique). uuids: by index, and MIG
    instances after the GPUs; empty for a GPU that does not answer. Raises NoSuchDevice."""
    if said == "none":
        return CPU
    if re.fullmatch(r"\d+", said):
        index = int(said)
        gpus = [uuid for uuid in uuids if not uuid.startswith("MIG-")]
        if index < len(gpus) and gpus[index]:
            return Device(gpus[index], f"gpu{index}")
        why = "does not answer" if index < len(gpus) else "is not there"
        raise NoSuchDevice(f"GPU {said} {why}: {_known(uuids)}")
    found = [uuid for uuid in uuids if uuid and uuid.lower().startswith(said.lower())]
    if len(found) != 1:
        raise NoSuchDevice(f"{said!r} names {len(found)} GPUs: {_known(uuids)}")
    uuid = found[0]
    return Device(uuid, uuid.split("-")[0].lower() + "-" + uuid.split("-")[1][:8])


def _known(uuids: list[str]) -> str:
    if not uuids:
        return "there is no NVIDIA GPU here (use --gpu none)"
    return f"there are {', '.join(uuid or f'{at} (no answer)' for at, uuid in enumerate(uuids))}"
