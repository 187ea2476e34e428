from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.exceptions import ImproperlyConfigured

from gpus.registry.queries import RegistryCache
from jobs.callbacks import guard
from jobs.callbacks.guard import check_callback_url, origins_of, read_url, refused_origins
from jobs.callbacks.sending import KEEP_SECONDS, Resolver
from jobs.domain.errors import CallbackUrlRefused
from jobs.models import CallbackTry
from tests.support.factories import make_model, make_server
from tests.support.receivers import NOW, Receiver, Sent, deliver, say

pytestmark = pytest.mark.django_db

METADATA = ["169.254.169.254", "[fd00:ec2::254]", "168.63.129.16", "[::ffff:a9fe:a9fe]"]
EVERYTHING = ("0.0.0.0/0", "::/0")


@pytest.fixture(autouse=True)
def anywhere(settings: LazySettings) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, callback_networks=EVERYTHING)


def gpu_server(endpoint: str) -> None:
    make_server("gpu-1", model=make_model("zimg"), endpoint=endpoint)


def reachable(url: str) -> list[str]:
    refused = refused_origins(RegistryCache())

    async def ask() -> list[str]:
        found = await Resolver().allowed_addresses(read_url(url), refused, tenant_id=1)
        return [str(address) for address in found]

    return asyncio.run(ask())


def is_refused(url: str) -> bool:
    try:
        check_callback_url(url, refused_origins(RegistryCache()))
    except CallbackUrlRefused:
        return True
    return False


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://10.0.0.5:8100/run", "http://10.0.0.5:8100/other"),
        ("http://10.0.0.5:8100/run", "http://167772165:8100/"),
        ("http://10.0.0.5:8100", "https://[::ffff:10.0.0.5]:8100/"),
        ("http://10.0.0.5/run", "http://10.0.0.5/"),
        ("https://10.0.0.5/run", "http://10.0.0.5:443/"),
        ("http://gpu-1.lan:8100/run", "http://GPU-1.lan:8100/run"),
        ("http://gpu-1.lan:8100/run", "http://gpu-1.lan.:8100/run"),
        ("http://127.0.0.1:8100/run", "http://localhost:8100/run"),
        ("http://localhost:8100/run", "http://127.0.0.1:8100/run"),
        ("http://127.0.0.1:8100/run", "http://127.9.9.9:8100/run"),
        ("http://127.0.0.1:8100/run", "http://0.0.0.0:8100/run"),
        ("http://127.0.0.1:8100/run", "http://[::1]:8100/run"),
        ("http://[fd00::5]:8100/run", "http://[fd00:0:0::5]:8100/"),
    ],
)
def test_a_gpu_server_is_refused_at_submit_and_at_delivery(
    endpoint: str, url: str, names: dict[str, list[list[str]]]
) -> None:
    names["gpu-1.lan"] = names["gpu-1.lan."] = [["10.0.0.5"]]
    names["localhost"] = [["127.0.0.1"]]
    gpu_server(endpoint)
    assert is_refused(url)
    assert reachable(url) == []
    assert not is_refused("http://10.0.0.5:8101/run"), "another port of that machine"


def test_a_name_that_resolves_to_a_gpu_server_is_refused_at_delivery(
    names: dict[str, list[list[str]]],
) -> None:
    names["hooks.example.com"] = [["10.0.0.5", "10.0.0.6"]]
    gpu_server("http://10.0.0.5:8100/run")
    assert reachable("http://hooks.example.com:8100/") == ["10.0.0.6"]
    assert reachable("http://hooks.example.com:8101/") == ["10.0.0.5", "10.0.0.6"]


def test_callback_and_server_may_both_be_names(names: dict[str, list[list[str]]]) -> None:
    names["hooks.example.com"], names["gpu-1.lan"] = [["10.0.0.5"]], [["10.0.0.5", "fd00::5"]]
    gpu_server("http://gpu-1.lan:8100/run")
    assert reachable("http://hooks.example.com:8100/") == []
    assert reachable("http://[fd00::5]:8100/") == []
    names["gpu-1.lan"] = [["10.0.0.7"]]
    assert reachable("http://hooks.example.com:8100/") == ["10.0.0.5"]


def test_a_public_server_that_proves_its_name_is_its_tenants(names: dict[str, list[list[str]]]) -> None:
    """Many names share an address behind a CDN, where GPU servers are as well."""
    names["hooks.example.com"], names["gpu.example.com"] = [["8.8.8.8"]], [["8.8.8.8"]]
    gpu_server("https://gpu.example.com/run")
    assert reachable("https://hooks.example.com/") == ["8.8.8.8"]
    assert reachable("http://hooks.example.com:443/") == []
    assert reachable("https://gpu.example.com/") == []


def test_names_of_the_registry_are_looked_up_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[Any]:
        asked.append(host)
        return [ip_address("10.0.0.5")]

    monkeypatch.setattr(guard, "resolve", resolve)
    gpu_server("http://gpu-1.lan:8100/run")
    refused, target = refused_origins(RegistryCache()), read_url("http://10.0.0.9:8100/")

    async def thrice() -> None:
        resolver = Resolver()
        for _ in range(3):
            assert await resolver.allowed_addresses(target, refused, tenant_id=1)
        resolver._kept = {name: (at - KEEP_SECONDS, found) for name, (at, found) in resolver._kept.items()}
        await resolver.allowed_addresses(target, refused, tenant_id=1)

    asyncio.run(thrice())
    assert asked == ["gpu-1.lan"] * 2


def test_a_server_that_is_registered_after_the_submit_is_refused_at_delivery(
    receiver: Receiver, send: Callable[..., Sent], django_capture_on_commit_callbacks: Any
) -> None:
    sent = send(receiver.url)
    assert deliver(sent.callback.id, now=NOW) == "delivered"
    again = send(receiver.url)
    gpu_server(f"http://127.0.0.1:{receiver.port}/run")
    assert deliver(again.callback.id, now=NOW + timedelta(seconds=1)) == "failed"
    assert len(receiver.got) == 1
    assert "CallbackUrlRefused" in CallbackTry.objects.get(callback=again.callback.id).error


def test_a_redirect_to_a_gpu_server_is_not_followed(receiver: Receiver, send: Callable[..., Sent]) -> None:
    gpu_server("http://10.0.0.5:8100/run")
    receiver.answer = say(307, {"Location": f"http://127.0.0.1:{receiver.port}/again"})
    assert deliver(send(receiver.url).callback.id, now=NOW) == "failed"
    assert len(receiver.got) == 1


def test_the_dispatchers_own_services_are_refused(settings: LazySettings) -> None:
    settings.REDIS_URL = "redis+sentinel://:p%40ss@10.0.0.1:26380,10.0.0.2/mymaster"
    settings.BROKER_URL = "sentinel://10.0.0.3:1;sentinel://u:p@10.0.0.4:2/0"
    settings.DISPATCHER = replace(
        settings.DISPATCHER,
        public_url="https://dispatcher.example.com",
        flower_url="http://10.0.0.8:5555",
        health_port="8011",
        callback_refused_origins=("prometheus.lan:9090", "9100"),
    )
    for host in (
        "10.0.0.1:26380", "10.0.0.2:26379", "10.0.0.3:1", "10.0.0.4:2", "dispatcher.example.com:443",
        "10.0.0.8:5555", "127.0.0.1:8011", "prometheus.lan:9090", "127.0.0.1:9100",
    ):  # fmt: skip
        assert is_refused(f"http://{host}/"), host
    assert not is_refused("http://10.0.0.1:26379/")


def test_all_addresses_of_this_machine_count_as_one(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no other address")
        own = sock.getsockname()[0]
    gpu_server("http://127.0.0.1:8100/run")
    assert is_refused(f"http://{own}:8100/")
    assert reachable(f"http://{own}:8100/") == []


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "[fd00:ec2::254]", "168.63.129.16", "[::ffff:a9fe:a9fe]"]
)
def test_no_network_lets_a_callback_to_the_metadata_service(host: str) -> None:
    assert is_refused(f"http://{host}/latest/meta-data/")
    assert reachable(f"http://{host}/latest/meta-data/") == []


def test_urls_without_a_host_have_no_origin() -> None:
    urls = [
        "unix:///run/v.sock?db=0",
        "redis+socket:///run/v.sock",
        "sqlite:///x",
        "",
        "http://[::1",
        "nothing",
    ]
    assert list(origins_of(urls)) == []


def test_an_invalid_origin_setting_stops_the_start(settings: LazySettings) -> None:
    with pytest.raises(ImproperlyConfigured, match="DISPATCHER_CALLBACK_REFUSED_ORIGINS"):
        replace(settings.DISPATCHER, callback_refused_origins=("prometheus",))
