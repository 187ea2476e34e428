"""The admin's cookies travel over https only where that is how people come."""

from __future__ import annotations

import os
import subprocess
import sys

from django.conf import settings

from dispatcher_project.supervisor.data_folder import ROOT


def test_cookies_are_secure_behind_https_and_work_without_it() -> None:
    assert not settings.SESSION_COOKIE_SECURE
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "from dispatcher_project.settings.base import *\n"
            "print(SESSION_COOKIE_SECURE, CSRF_COOKIE_SECURE)",
        ],
        cwd=ROOT,
        env={**os.environ, "DISPATCHER_PUBLIC_URL": "https://gpu.example"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split() == ["True", "True"]
