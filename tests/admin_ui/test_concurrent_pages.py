"""Pages beside each other and beside registrations, on PostgreSQL: without deadlocks and lost versions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection
from django.db.models import Model
from django.db.models.signals import pre_save
from django.test import Client
from django.urls import reverse

from gpus.models import ConfigVersion, ModelConfig, Placement, Pool, Server
from gpus.registry.registry import register_server
from tests.admin_ui.forms import model_form, placement_form, server_form
from tests.admin_ui.rows import fill
from tests.support.admin_ports import FakePorts

pytestmark = [
    pytest.mark.database,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("fake_ports"),
]


@pytest.fixture(autouse=True)
def some(transactional_db: None) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("rows have locks of their own on PostgreSQL only")
    fill(jobs=1)
    Pool.objects.filter(name="flux").update(affinity_patience_seconds=1)


class Beside:
    """Runs another request until it has ended or waits for a lock, while the first one is held at a save."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act
        self._pid: int | None = None
        self._known = threading.Event()
        self.waited = False
        self._result: Any = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                self._pid = cursor.fetchone()[0]
            self._known.set()
            self._result = self._act()
        except Exception as error:
            self._result = error
        finally:
            self._known.set()
            connection.close()

    def until_it_waits(self) -> None:
        self._thread.start()
        self._known.wait(10)
        while self._thread.is_alive():
            with connection.cursor() as cursor:
                cursor.execute("SELECT cardinality(pg_blocking_pids(%s))", [self._pid])
                self.waited = cursor.fetchone()[0] > 0
            if self.waited:
                return
            self._thread.join(0.01)

    def result(self) -> Any:
        self._thread.join(20)
        assert not self._thread.is_alive()
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


@contextmanager
def at_save_of(model: type[Model], other: Beside) -> Iterator[None]:
    begun: list[threading.Thread] = []

    def before(sender: type[Model], **_: Any) -> None:
        if not begun and threading.current_thread() is main:
            begun.append(main)
            other.until_it_waits()

    main = threading.current_thread()
    pre_save.connect(before, sender=model)
    try:
        yield
    finally:
        pre_save.disconnect(before, sender=model)
    assert begun


def page(kind: str, name: str) -> str:
    return reverse(f"admin:gpus_{kind}_change", args=[name])


def pool_page(browser: Client, patience: float) -> Beside:
    sent = {"algorithm": "fifo", "affinity_patience_seconds": patience}
    return Beside(lambda: browser.post(page("pool", "flux"), sent))


def versions(model: str) -> list[tuple[int, int, float]]:
    rows = ConfigVersion.objects.filter(model=model).order_by("number")
    return [(row.number, row.fields["max_retries"], row.fields["affinity_patience_seconds"]) for row in rows]


def test_a_servers_page_adds_a_model_beside_a_registration(operator: Client, fake_ports: FakePorts) -> None:
    Placement.objects.filter(server="flux-server-1").delete()
    endpoint, leases = "http://10.0.0.7/generate", fake_ports.ports().leases
    other = Beside(
        lambda: register_server(
            model="flux", server="flux-server-1", endpoint=endpoint, slots=3, by="ci", leases=leases
        )
    )
    with at_save_of(Placement, other):
        answer = operator.post(
            page("server", "flux-server-1"), server_form(host="a") | placement_form("flux", endpoint)
        )
    assert (answer.status_code, other.waited, other.result().created) == (302, True, False)
    server = Server.objects.get(name="flux-server-1")
    assert (server.host, server.slots, server.placements.count()) == ("a", 3, 1)


def test_the_pages_of_a_model_and_its_pool_write_one_version_after_the_other(
    operator: Client, boss: Client
) -> None:
    other = pool_page(boss, 9)
    with at_save_of(ConfigVersion, other):
        answer = operator.post(page("modelconfig", "flux"), model_form(max_retries=7))
    assert (answer.status_code, other.result().status_code) == (302, 302)
    assert versions("flux") == [(1, 50, 1), (2, 7, 1), (3, 7, 9)]


def test_a_new_model_gets_a_version_with_the_fields_of_its_pool(boss: Client) -> None:
    other = pool_page(boss, 9)
    with at_save_of(ModelConfig, other):
        answer = boss.post(reverse("admin:gpus_modelconfig_add"), model_form(name="new", pool="flux"))
    assert (answer.status_code, other.result().status_code) == (302, 302)
    assert versions("new") == [(1, 50, 1), (2, 50, 9)]


def test_a_pools_page_does_not_wait_for_a_new_server_of_the_pool(operator: Client, boss: Client) -> None:
    other = pool_page(boss, 9)
    form = server_form(name="flux-server-3", pool="flux") | placement_form("flux", "http://10.0.0.3/generate")
    with at_save_of(Placement, other):
        answer = operator.post(reverse("admin:gpus_server_add"), form)
    assert (answer.status_code, other.result().status_code, other.waited) == (302, 302, False)


def test_a_model_is_deleted_while_its_page_is_saved(operator: Client, boss: Client) -> None:
    Placement.objects.filter(model="flux").delete()
    other = Beside(
        lambda: boss.post(reverse("admin:gpus_modelconfig_delete", args=["flux"]), {"post": "yes"})
    )
    with at_save_of(ModelConfig, other):
        answer = operator.post(page("modelconfig", "flux"), model_form(max_retries=7))
    assert (answer.status_code, other.result().status_code) == (302, 302)
    assert not ModelConfig.objects.filter(name="flux").exists()
