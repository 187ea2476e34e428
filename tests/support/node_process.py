"""A GPU node in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


ENVIRONMENT = {
    **os.environ,
    "DJANGO_SETTINGS_MODULE": "dispatcher_project.settings.test",
    "DISPATCHER_NO_BOOTSTRAP": "1",
}


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def stop(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(20)
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
