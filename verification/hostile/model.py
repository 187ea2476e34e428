"""A hostile model: it searches for the dispatcher's secrets (attack s17)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

_SECRETS = re.compile(
    rb"(DATABASE_URL|REDIS_URL|BROKER_URL|SECRET_KEY|API_KEY|FLOWER_BASIC_AUTH)=[^\x00]+|planted-secret"
)
_FILES = ("secrets.json", "secret_key", "environment.json", "up.json", "db.sqlite3")


class Look:
    """Model that searches its process, its files and its parent for the dispatcher's secrets."""

    vram_mb = 16

    def run(self, payload: Any, ctx: Any) -> Any:
        """Return the names of the places where secrets can be read; never the secrets."""
        read = ["own environment"] if _has_secrets("/proc/self/environ") else []
        read += (
            ["os.environ"]
            if _SECRETS.search("\0".join(f"{k}={v}" for k, v in os.environ.items()).encode())
            else []
        )
        pid = os.getppid()
        for name in ("its parent's environment", "its worker's environment"):
            read += [name] if pid > 1 and _has_secrets(f"/proc/{pid}/environ") else []
            pid = _parent_of(pid)
        folder = Path(payload["folder"])
        read += [name for name in _FILES if _read(folder / name)]
        read += ["open files"] if any(map(_has_open_secret, _open_files())) else []
        return {"uid": os.getuid(), "read": read}


def _has_secrets(path: str) -> bool:
    return bool(_SECRETS.search(_read(Path(path))))


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(1 << 20)
    except OSError:
        return b""


def _open_files() -> list[str]:
    return [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{fd}")
    ]


def _has_open_secret(name: str) -> bool:
    return any(name.endswith(known) for known in _FILES)


def _parent_of(pid: int) -> int:
    found = re.search(rb"^PPid:\s+(\d+)", _read(Path(f"/proc/{pid}/status")), re.MULTILINE)
    return int(found.group(1)) if found else 0


MODELS = {"hostile-look": Look}
