from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from ipaddress import ip_address

import pytest
from django.conf import LazySettings
from django.core.exceptions import ImproperlyConfigured

from jobs.callbacks import guard
from jobs.callbacks.guard import RefusedOrigins, Target
from jobs.callbacks.sending import Resolver
from jobs.domain.errors import CallbackUrlRefused

PRIVATE = [
    "127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254",
    "100.64.0.1", "100.100.100.200", "192.0.0.192", "168.63.129.16", "224.0.0.1", "240.0.0.1",
    "255.255.255.255",    "198.18.0.1", "192.0.2.1", "192.88.99.1",
    "::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "fec0::1", "2001:db8::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::10.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::a00:1",
    "2002:7f00:1::1", "2001:0:7f00:1::1",
]  # fmt: skip


NOWHERE = RefusedOrigins()


def check_callback_url(url: str) -> None:
    guard.check_callback_url(url, NOWHERE)


def resolve_allowed(host: str, port: int) -> list[guard.Address]:
    async def ask() -> list[guard.Address]:
        return await Resolver().allowed_addresses(Target("https", host, port, "/"), NOWHERE, tenant_id=1)

    return asyncio.run(ask())


@pytest.mark.parametrize("address", PRIVATE)
def test_a_literal_private_address_is_refused(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(CallbackUrlRefused):
        check_callback_url(f"http://{host}/hook")


@pytest.mark.parametrize("address", PRIVATE)
def test_a_name_that_resolves_to_a_private_address_is_refused_at_delivery(
    address: str, names: dict[str, list[list[str]]]
) -> None:
    names["hooks.example.com"] = [[address]]
    check_callback_url("https://hooks.example.com/hook")
    assert resolve_allowed("hooks.example.com", 443) == []


@pytest.mark.parametrize(
    "host",
    ["2130706433", "0x7f000001", "0177.0.0.1", "127.1", "①②⑦.⓪.⓪.①", "localhost", "LocalHost", "a.localhost"],
)
def test_other_spellings_of_loopback_are_refused(host: str) -> None:
    with pytest.raises(CallbackUrlRefused):
        check_callback_url(f"http://{host}/")


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_a_public_address_is_accepted(address: str, names: dict[str, list[list[str]]]) -> None:
    names["hooks.example.com"] = [[address]]
    check_callback_url("https://hooks.example.com:8443/hook?x=1")
    assert resolve_allowed("hooks.example.com", 443) == [ip_address(address)]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example.com",
        "ftp://hooks.example.com/",
        "file:///etc/passwd",
        "//hooks.example.com/",
        "http://",
        "http:///hook",
        "http://user@hooks.example.com/",
        "http://user:secret@hooks.example.com/",
        "http://@hooks.example.com/",
        "http://hooks.example.com:0/",
        "http://hooks.example.com:99999/",
        "http://hooks.example.com:port/",
        "http://hooks..example.com/",
        f"http://{'a' * 64}.example.com/",
        "http://[::1/",
        "http://hooks.example.com\\@127.0.0.1/",
        "http://hooks.example.com/a b",
        "http://hooks.example.com/\r\nX-Injected: 1",
        "http://hooks.example.com/\x00",
        "http://hooks.example.com/" + "a" * 2000,
    ],
)
def test_a_malformed_url_is_refused_with_a_pointer(url: str, names: dict[str, list[list[str]]]) -> None:
    names["hooks.example.com"] = [["8.8.8.8"]]
    with pytest.raises(CallbackUrlRefused) as refused:
        check_callback_url(url)
    assert refused.value.pointer == "/callback_url"
    assert refused.value.code == "callback_url_refused"


def test_a_name_that_does_not_resolve_yet_is_accepted_at_submit_and_an_error_at_delivery(
    names: dict[str, list[list[str]]],
) -> None:
    check_callback_url("https://soon.example.com/hook")
    with pytest.raises(OSError, match="no such name"):
        resolve_allowed("soon.example.com", 443)


def test_of_a_mixed_name_only_the_allowed_addresses_are_connected_to(
    names: dict[str, list[list[str]]],
) -> None:
    names["mixed.example.com"] = [["10.0.0.1", "8.8.8.8", "127.0.0.1"]]
    assert resolve_allowed("mixed.example.com", 80) == [ip_address("8.8.8.8")]


@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3"])
def test_an_operator_can_allow_a_private_network(
    address: str, names: dict[str, list[list[str]]], settings: LazySettings
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, callback_networks=("10.1.0.0/16", "fd00::/8"))
    names["inside.example.com"] = [[address]]
    assert resolve_allowed("inside.example.com", 80) == [ip_address(address)]
    check_callback_url(f"http://[{address}]/" if ":" in address else f"http://{address}/")
    names["outside.example.com"] = [["10.2.0.1"]]
    assert resolve_allowed("outside.example.com", 80) == []
    with pytest.raises(CallbackUrlRefused):
        check_callback_url("http://10.2.0.1/")


def test_an_invalid_network_setting_stops_the_start(settings: LazySettings) -> None:
    with pytest.raises(ImproperlyConfigured, match="DISPATCHER_CALLBACK_NETWORKS"):
        replace(settings.DISPATCHER, callback_networks=("10.0.0.0/8", "everything"))


def test_a_later_look_up_of_a_name_gets_its_answer_though_the_first_one_timed_out(
    monkeypatch: pytest.MonkeyPatch, settings: LazySettings
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, callback_lookup_seconds=0.5)
    go_on, gave_up = threading.Event(), asyncio.Event()

    def resolve(host: str, port: int) -> list[guard.Address]:
        assert go_on.wait(30)
        return [ip_address("93.184.216.34")]

    monkeypatch.setattr(guard, "resolve", resolve)

    async def ask(resolver: Resolver) -> list[guard.Address]:
        target = Target("https", "slow.example.com", 443, "/")
        return await resolver.allowed_addresses(target, NOWHERE, tenant_id=1)

    async def first(resolver: Resolver) -> None:
        with pytest.raises(TimeoutError):
            await ask(resolver)
        gave_up.set()

    async def both() -> list[guard.Address]:
        resolver = Resolver()
        one = asyncio.create_task(first(resolver))
        await asyncio.sleep(0.1)
        settings.DISPATCHER = replace(settings.DISPATCHER, callback_lookup_seconds=30.0)
        other = asyncio.create_task(ask(resolver))
        await gave_up.wait()
        go_on.set()
        await one
        return await asyncio.wait_for(other, 10)

    assert asyncio.run(both()) == [ip_address("93.184.216.34")]
