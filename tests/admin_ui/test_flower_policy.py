"""A real Flower behind the admin's proxy, under our Content-Security-Policy in a real browser."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import override_settings

from admin_ui import FLOWER_PREFIX
from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from tests.admin_ui.browser import WebBrowser, wait_until
from tests.support.ports import free_port

pytestmark = pytest.mark.django_db(transaction=True)
PAGES = {"": "#workers-table_wrapper", "tasks": "#tasks-table_wrapper", "broker": "table"}
LOGIN = "admin:only-for-this-test"


@pytest.fixture
def flower(valkey: EmbeddedValkey, tmp_path: Path, settings: Any) -> Iterator[None]:
    port = free_port()
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "dispatcher_project.settings.test",
        "BROKER_URL": valkey.url.replace("unix://", "redis+socket://").replace("?db=", "?virtual_host="),
        "FLOWER_BASIC_AUTH": LOGIN,
    }
    with (tmp_path / "flower.log").open("wb") as log:
        command = [sys.executable, "-m", "celery", "-A", "dispatcher_project", "flower", f"--port={port}"]
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
    try:
        url, until = f"http://127.0.0.1:{port}", time.monotonic() + 90
        while not _answers(f"{url}/{FLOWER_PREFIX}/healthcheck"):
            assert process.poll() is None, (tmp_path / "flower.log").read_text()
            assert time.monotonic() < until, "Flower did not start"
            time.sleep(0.05)
        with override_settings(DISPATCHER=replace(settings.DISPATCHER, flower_url=url), FLOWER_LOGIN=LOGIN):
            yield
    finally:
        process.kill()  # how it stops is not tested here
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_flowers_pages_keep_to_the_policy(web_browser: WebBrowser, flower: None) -> None:
    boss = User.objects.create_superuser("boss", password="correct horse")
    with web_browser.visit(boss) as visit:
        for page, shows in PAGES.items():
            tab = visit.go(f"/{FLOWER_PREFIX}/{page}")
            wait_until(tab, f"document.querySelector('{shows}') !== null")
        visit.assert_quiet()
