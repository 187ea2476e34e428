"""Only names of the trial are looked up slowly, and in vain."""

from __future__ import annotations

import os
import subprocess
import sys

from dispatcher_project.supervisor.data_folder import ROOT

_PROGRAM = """
import socket, sitecustomize
sitecustomize.SECONDS = 0
print(socket.getaddrinfo("127.0.0.1", 1)[0][4])
try:
    socket.getaddrinfo("a.slow.test", 1)
except socket.gaierror as error:
    print(error.args[0] == socket.EAI_NONAME)
"""


def test_a_name_of_the_trial_is_not_found() -> None:
    path = str(ROOT / "verification/hostile/slow_names")
    environment = {**os.environ, "PYTHONPATH": path}
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, env=environment, check=True
    )
    assert ran.stdout == "('127.0.0.1', 1)\nTrue\n"
