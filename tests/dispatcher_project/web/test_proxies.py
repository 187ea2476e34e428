"""What FORWARDED_ALLOW_IPS may name."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from django.core.exceptions import ImproperlyConfigured

from dispatcher_project.web.__main__ import check_proxies


@pytest.mark.parametrize("named", ["", "127.0.0.1", "10.0.0.1, ::1", "172.16.0.0/12,fd00::/8"])
def test_addresses_and_networks_are_accepted(named: str) -> None:
    check_proxies(named)


@pytest.mark.parametrize("named", ["*", "127.0.0.1,*", "proxy.lan", "10.0.0.1/8", "garbage"])
def test_anything_else_is_refused(named: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="FORWARDED_ALLOW_IPS"):
        check_proxies(named)


def test_the_web_server_does_not_start_with_an_invalid_proxy() -> None:
    command = [sys.executable, "-m", "dispatcher_project.web", "--port", "0"]
    environment = {**os.environ, "FORWARDED_ALLOW_IPS": "*"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert ended.stderr.strip() == (
        "web: FORWARDED_ALLOW_IPS must name the addresses or networks of your proxies, not '*'"
    )
