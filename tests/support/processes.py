"""Processes, seen from outside."""

from __future__ import annotations

import os
import subprocess


def is_alive(pid: int) -> bool:
    """Zombies are dead: whoever started them has not looked yet."""
    try:
        os.kill(pid, 0)
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout
    except ProcessLookupError:
        return False
    return bool(state.strip()) and not state.startswith("Z")
