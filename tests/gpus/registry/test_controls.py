"""Each control is one transaction with its audit entry; without an effect it writes none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpus.errors import LeasingUnavailable
from gpus.leasing.contract import Leases
from gpus.models import AuditEntry, ConfigVersion, ModelConfig, Pause, Server
from gpus.protocol import DesiredState
from gpus.registry import controls, queries
from gpus.registry.index_sync import mirror_registry
from gpus.registry.model_fields import RegistryRefused
from gpus.registry.registry import configure_model, reset_model
from tests.support.factories import make_model, make_server
from tests.support.fake_leases import FakeLeases

pytestmark = pytest.mark.django_db
BY = "user:ada"


@pytest.fixture
def leases() -> FakeLeases:
    return FakeLeases()


@pytest.fixture
def of(leases: FakeLeases) -> Callable[[str], Leases]:
    make_server("s1", model=make_model("flux"), slots=4)
    return lambda fleet: leases  # type: ignore[arg-type, return-value]


def entries() -> list[tuple[Any, ...]]:
    return list(AuditEntry.objects.order_by("id").values_list("actor", "action", "target", "detail"))


def refused(code: str) -> Any:
    return pytest.raises(RegistryRefused, check=lambda error: error.code == code)


# -- servers ---------------------------------------------------------------------------------------------


def test_switching_a_server_returns_wakes(leases: FakeLeases, of: Any) -> None:
    found = controls.switch_server("s1", DesiredState.OFF, by=BY, leases=of)
    assert found is not None
    assert (found.server.desired, found.mirrored, found.wakes[0].count) == ("off", True, 4)
    assert leases.servers["s1"].desired is DesiredState.OFF
    assert entries() == [(BY, "switch_server", "server:s1", {"before": "on", "after": "off"})]
    controls.switch_server("s1", DesiredState.OFF, by=BY, leases=of)
    assert len(entries()) == 1


def test_slots_go_up_and_down(leases: FakeLeases, of: Any) -> None:
    controls.set_slots("s1", 0, by=BY, leases=of)
    assert leases.servers["s1"].slots == 0
    assert entries() == [(BY, "set_slots", "server:s1", {"before": 4, "after": 0})]
    for slots in (-1, 1025):
        with refused("invalid_slots"):
            controls.set_slots("s1", slots, by=BY, leases=of)
    assert Server.objects.get().slots == 0


def test_both_at_once_are_two_entries(of: Any) -> None:
    controls.change_server("s1", by=BY, leases=of, slots=1, desired=DesiredState.DRAINING)
    assert [action for _, action, *_ in entries()] == ["set_slots", "switch_server"]


def test_an_unregistered_server_returns_none(of: Any) -> None:
    assert controls.switch_server("nope", DesiredState.ON, by=BY, leases=of) is None
    assert entries() == []


def test_without_redis_the_switch_is_stored(leases: FakeLeases, of: Any) -> None:
    leases.away = True
    found = controls.switch_server("s1", DesiredState.OFF, by=BY, leases=of)
    assert found is not None
    assert (found.mirrored, Server.objects.get().desired, len(entries())) == (False, "off", 1)


# -- pauses ----------------------------------------------------------------------------------------------


def test_a_model_is_paused_once_and_resumed_once(leases: FakeLeases, of: Any) -> None:
    done = controls.pause(Pause.Kind.MODEL, "flux", by=BY, reason="bad weights", leases=of)
    assert (done.changed, done.mirrored) == (True, True)
    assert leases.servers["s1"].models == ()
    [found] = queries.pauses()
    assert (found.kind, found.name, found.actor, found.reason) == ("model", "flux", BY, "bad weights")
    assert not controls.pause(Pause.Kind.MODEL, "flux", by="key:x", leases=of).changed
    assert queries.pauses()[0].actor == BY
    done = controls.resume(Pause.Kind.MODEL, "flux", by=BY, leases=of)
    assert (done.changed, [wake.pool for wake in done.wakes]) == (True, ["filled"])
    assert (leases.servers["s1"].models, queries.pauses()) == (("flux",), [])
    assert not controls.resume(Pause.Kind.MODEL, "flux", by=BY, leases=of).changed
    assert [(action, target) for _, action, target, _ in entries()] == [
        ("pause_model", "model:flux"),
        ("resume_model", "model:flux"),
    ]


def test_a_paused_system_drains_servers_that_are_on(leases: FakeLeases, of: Any) -> None:
    make_server("s2", model=ModelConfig.objects.get(), desired=DesiredState.OFF)
    controls.pause(Pause.Kind.SYSTEM, by=BY, leases=of)
    desired = {name: spec.desired for name, spec in leases.servers.items()}
    assert desired == {"s1": DesiredState.DRAINING, "s2": DesiredState.OFF}
    assert set(Server.objects.values_list("desired", flat=True)) == {"on", "off"}
    controls.resume(Pause.Kind.SYSTEM, by=BY, leases=of)
    desired = {name: spec.desired for name, spec in leases.servers.items()}
    assert desired == {"s1": DesiredState.ON, "s2": DesiredState.OFF}
    assert [(action, target) for _, action, target, _ in entries()] == [
        ("pause_system", "system:all"),
        ("resume_system", "system:all"),
    ]


def test_every_pool_gets_all_paused_tenants(leases: FakeLeases, of: Any) -> None:
    make_model("zimg")
    controls.pause(Pause.Kind.TENANT, "7", by=BY, leases=of, target="tenant:acme")
    controls.pause(Pause.Kind.TENANT, "8", by=BY, leases=of)
    assert leases.paused == {"flux": {"7", "8"}, "zimg": {"7", "8"}}
    controls.resume(Pause.Kind.TENANT, "7", by=BY, leases=of)
    assert leases.paused == {"flux": {"8"}, "zimg": {"8"}}
    assert entries()[0][2] == "tenant:acme"


@pytest.mark.database
def test_a_switch_during_a_pause_does_not_end_the_pause(leases: FakeLeases, of: Any) -> None:
    controls.pause(Pause.Kind.SYSTEM, by=BY, leases=of)
    controls.pause(Pause.Kind.MODEL, "flux", by=BY, leases=of)
    controls.set_slots("s1", 2, by=BY, leases=of)
    spec = leases.servers["s1"]
    assert (spec.slots, spec.models, spec.desired) == (2, (), DesiredState.DRAINING)


def test_pausing_an_unregistered_model_is_refused(of: Any) -> None:
    with refused("unknown_model"):
        controls.pause(Pause.Kind.MODEL, "nope", by=BY, leases=of)
    assert (queries.pauses(), entries()) == ([], [])


def test_a_pause_of_a_model_that_is_gone_can_be_ended(of: Any) -> None:
    controls.pause(Pause.Kind.MODEL, "flux", by=BY, leases=of)
    ModelConfig.objects.all().delete()
    assert controls.resume(Pause.Kind.MODEL, "flux", by=BY, leases=of).changed


def test_a_pause_is_written_to_other_fleets_if_one_redis_is_down(leases: FakeLeases, of: Any) -> None:
    make_server("far", model=make_model("far", fleet="east"))
    make_server("west", model=make_model("west", fleet="west"))

    def leases_of(fleet: str) -> Any:
        if fleet == "main":
            raise LeasingUnavailable
        return leases

    done = controls.pause(Pause.Kind.SYSTEM, by=BY, leases=leases_of)
    assert (done.changed, done.mirrored) == (True, False)
    assert {spec.desired for spec in leases.servers.values()} == {DesiredState.DRAINING}
    assert set(leases.servers) == {"far", "west"}


# -- a model's history -----------------------------------------------------------------------------------


def versions(model: str = "flux") -> list[tuple[int, str, int]]:
    rows = ConfigVersion.objects.filter(model=model).order_by("number")
    return [(row.number, row.actor, row.fields["max_retries"]) for row in rows]


def configure(of: Any, by: str = BY, model: str = "flux", **values: Any) -> None:
    configure_model(model, values, by=by, leases=of, replace=True)


def test_a_new_model_has_a_first_version_and_each_change_the_next(of: Any) -> None:
    configure(of, model="new", max_retries=1)
    configure(of, model="new", max_retries=1)
    configure(of, by="key:abc", model="new", max_retries=2, queue_algorithm="fifo")
    assert versions("new") == [(1, BY, 1), (2, "key:abc", 2)]
    assert ConfigVersion.objects.filter(model="new").first().fields["queue_algorithm"] == "fifo"  # type: ignore[union-attr]


def test_a_model_from_before_versions_gets_a_first_version(of: Any) -> None:
    configure(of, max_retries=9)
    assert versions() == [(1, "unknown", 50), (2, BY, 9)]


@pytest.mark.database
def test_a_revert_brings_everything_back_and_is_a_version_too(of: Any) -> None:
    configure(of, max_retries=9, payload_schema={"type": "object"}, queue_algorithm="fifo")
    controls.revert_model("flux", 1, by="key:abc", leases=of)
    config = ModelConfig.objects.select_related("pool").get()
    assert (config.max_retries, config.payload_schema, config.pool.algorithm) == (50, None, "fair")
    assert versions() == [(1, "unknown", 50), (2, BY, 9), (3, "key:abc", 50)]
    _, action, target, detail = entries()[-1]
    assert (action, target, detail["to"]) == ("revert_model", "model:flux", 1)
    controls.revert_model("flux", 3, by=BY, leases=of)
    assert len(versions()) == 3, "it is so already"


def test_a_revert_takes_the_known_fields_of_a_version(of: Any) -> None:
    configure(of, max_retries=9)
    ConfigVersion.objects.filter(number=1).update(fields={"max_retries": 3, "gone_since": True})
    controls.revert_model("flux", 1, by=BY, leases=of)
    assert ModelConfig.objects.get().max_retries == 3


@pytest.mark.database
def test_a_revert_to_an_unknown_model_or_version_is_refused(of: Any) -> None:
    with refused("unknown_version"):
        controls.revert_model("flux", 1, by=BY, leases=of)
    with refused("unknown_model"):
        controls.revert_model("nope", 1, by=BY, leases=of)


def test_a_reset_is_a_version(of: Any) -> None:
    configure(of, max_retries=9)
    reset_model("flux", by=BY, leases=of)
    assert [retries for _, _, retries in versions()] == [50, 9, 50]


# -- two at once -----------------------------------------------------------------------------------------


class Meanwhile(FakeLeases):
    """Another process changes and writes the row just before this one writes."""

    act: Callable[[], object] | None = None

    def _answer(self) -> None:
        act, self.act = self.act, None
        if act is not None:
            act()
        super()._answer()


def test_an_older_read_does_not_overwrite_a_newer_switch() -> None:
    make_server("s1", model=make_model("flux"))
    leases: Any = Meanwhile()
    leases.act = lambda: controls.switch_server("s1", DesiredState.OFF, by=BY, leases=lambda f: leases)
    mirror_registry(leases)
    assert leases.servers["s1"].desired is DesiredState.OFF


def test_an_older_read_does_not_overwrite_a_newer_pause() -> None:
    make_server("s1", model=make_model("flux"))
    leases: Any = Meanwhile()
    leases.act = lambda: controls.pause(Pause.Kind.MODEL, "flux", by=BY, leases=lambda f: leases)
    controls.set_slots("s1", 3, by=BY, leases=lambda f: leases)
    assert (leases.servers["s1"].models, leases.servers["s1"].slots) == ((), 3)
    leases.act = lambda: controls.pause(Pause.Kind.TENANT, "7", by=BY, leases=lambda f: leases)
    controls.resume(Pause.Kind.TENANT, "8", by=BY, leases=lambda f: leases)
    assert leases.paused == {"flux": {"7"}}
