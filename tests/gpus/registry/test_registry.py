from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from foundation import ttl_cache
from gpus.models import AuditEntry, ConfigVersion, ModelConfig, Placement, Pool, Server
from gpus.protocol import QueueAlgorithm
from gpus.registry import queries
from gpus.registry.index_sync import mirror_registry
from gpus.registry.model_fields import RegistryRefused
from gpus.registry.registry import configure_model, register_server, remove_server, reset_model
from tests.support.fake_leases import FakeLeases

pytestmark = pytest.mark.django_db


@pytest.fixture
def leases() -> FakeLeases:
    return FakeLeases()


def register(leases: FakeLeases, **changes: Any) -> Any:
    asked = {
        "model": "flux",
        "server": "s1",
        "endpoint": "http://10.0.0.1:9000/generate",
        "slots": 2,
    } | changes
    return register_server(by="user:ada", leases=lambda fleet: leases, **asked)  # type: ignore[arg-type, return-value]


def refused(code: str) -> Any:
    return pytest.raises(RegistryRefused, check=lambda error: error.code == code)


def test_a_new_server_creates_its_model_and_pool_and_is_live(leases: FakeLeases) -> None:
    found = register(leases)
    assert (found.created, found.mirrored, found.pool.name, found.pool.fleet) == (True, True, "flux", "main")
    assert leases.pools["flux"].algorithm is QueueAlgorithm.FAIR
    assert (leases.servers["s1"].slots, leases.servers["s1"].models) == (2, ("flux",))
    assert [(wake.pool, wake.count) for wake in found.wakes] == [("flux", 2)]
    assert queries.model_spec("flux") == ModelConfig.objects.get().spec


@pytest.mark.database
def test_registering_again_changes_only_given_fields(leases: FakeLeases) -> None:
    register(leases, headers={"X-Api-Key": "s3cret"}, host="box-1", ca_pem="PEM")
    queries.endpoint_for("s1", "flux")
    found = register(leases, slots=5, endpoint="http://10.0.0.1:9000/v2")
    assert not found.created
    assert leases.servers["s1"].slots == 5
    endpoint = queries.endpoint_for("s1", "flux")
    assert endpoint is not None
    assert (endpoint.url, endpoint.max_slots, endpoint.ca_pem) == ("http://10.0.0.1:9000/v2", 5, "PEM")
    assert (endpoint.headers, found.server.host) == ({"X-Api-Key": "s3cret"}, "box-1")
    register(leases, headers={}, host="", ca_pem="")
    endpoint = queries.endpoint_for("s1", "flux")
    assert endpoint is not None
    assert (endpoint.headers, endpoint.ca_pem) == ({}, None)
    assert Server.objects.get().host is None


def test_secret_headers_do_not_follow_an_endpoint_to_another_origin(leases: FakeLeases) -> None:
    register(leases, headers={"X-Api-Key": "s3cret"})
    endpoint = Placement.objects.get().endpoint
    register(leases, endpoint=f"{endpoint}/v2")
    with pytest.raises(RegistryRefused, match="another origin") as refused:
        register(leases, endpoint="http://elsewhere.example/run")
    assert (refused.value.code, refused.value.pointer) == ("headers_needed", "/headers")
    assert Placement.objects.get().endpoint == f"{endpoint}/v2"
    register(leases, endpoint="http://elsewhere.example/run", headers={})
    assert Server.objects.get().headers_encrypted == ""


def test_headers_are_not_stored_in_the_clear(leases: FakeLeases) -> None:
    register(leases, headers={"X-Api-Key": "s3cret"})
    assert "s3cret" not in Server.objects.get().headers_encrypted
    assert "s3cret" not in repr(queries.endpoint_for("s1", "flux"))


def test_models_share_a_server_in_a_named_pool(leases: FakeLeases) -> None:
    register(leases, pool="big")
    register(leases, model="ltx2", pool="big", endpoint="http://10.0.0.1:9000/video")
    assert leases.servers["s1"].models == ("flux", "ltx2")
    assert {spec.pool for name in ("flux", "ltx2") if (spec := queries.model_spec(name))} == {"big"}


def test_a_server_or_model_of_another_pool_stays_there(leases: FakeLeases) -> None:
    register(leases)
    with refused("server_in_other_pool"):
        register(leases, model="ltx2")
    with refused("model_in_other_pool"):
        register(leases, server="s2", pool="big")
    with refused("pool_in_other_fleet"):
        register(leases, fleet="east")
    assert list(ModelConfig.objects.values_list("name", flat=True)) == ["flux"]
    assert list(Pool.objects.values_list("name", flat=True)) == ["flux"]
    assert list(Server.objects.values_list("name", "pool_id")) == [("s1", "flux")]


@pytest.mark.parametrize(
    "endpoint",
    [
        "ftp://x/",
        "http://",
        "http:///generate",
        "x",
        "//host/p",
        "http://h:99999/",
        "http://[::1",
        "http://a b/",
        "http://user:s3cret@box-1/generate",
    ],
)
def test_an_endpoint_is_a_url_with_a_host(leases: FakeLeases, endpoint: str) -> None:
    with refused("invalid_endpoint"):
        register(leases, endpoint=endpoint)
    assert not Server.objects.exists()


def test_without_redis_the_rows_are_stored_and_mirrored_later(leases: FakeLeases) -> None:
    leases.away = True
    found = register(leases)
    assert (found.mirrored, found.wakes) == (False, ())
    register(leases, model="far", server="s9", pool="far", fleet="east")
    leases.away = False
    assert len(mirror_registry(leases)) == 1  # type: ignore[arg-type]
    assert (set(leases.pools), set(leases.servers)) == ({"flux"}, {"s1"})


@pytest.mark.database
def test_a_removed_server_is_forgotten(leases: FakeLeases) -> None:
    register(leases)
    assert remove_server("s1", by="user:ada", leases=lambda f: leases)  # type: ignore[arg-type, return-value]
    assert leases.servers == {}
    assert not remove_server("s1", by="user:ada", leases=lambda f: leases)  # type: ignore[arg-type, return-value]


def test_a_server_with_a_slot_in_quarantine_is_not_removed(leases: FakeLeases) -> None:
    """Registered again it would be free, while its GPU may still be busy."""
    machine = register(leases).server
    now = timezone.now()
    suspect = machine.quarantined.create(slot=1, reason="timeout", since=now, until=now)
    with refused("server_in_quarantine"):
        remove_server("s1", by="user:ada", leases=lambda f: leases)  # type: ignore[arg-type, return-value]
    assert list(leases.servers) == ["s1"]
    suspect.freed_at = now
    suspect.save()
    assert remove_server("s1", by="user:ada", leases=lambda f: leases)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("slots", [-1, 1025])
def test_the_number_of_slots_is_limited(leases: FakeLeases, slots: int) -> None:
    with refused("invalid_slots"):
        register(leases, slots=slots)


def test_a_change_of_a_pool_is_a_new_version_of_all_its_models(leases: FakeLeases) -> None:
    for name in ("flux", "ltx2"):
        register(leases, model=name, server=f"on-{name}", pool="big")
    register(leases, model="zimg", server="s9")
    configure(leases, {"queue_algorithm": "fifo", "max_retries": 3}, replace=False)
    configure(leases, {"max_retries": 4}, replace=False)
    versions = ConfigVersion.objects.order_by("model", "number")
    assert [(row.model_id, row.fields["queue_algorithm"], row.fields["max_retries"]) for row in versions] == [
        ("flux", "fair", 50),
        ("flux", "fifo", 3),
        ("flux", "fifo", 4),
        ("ltx2", "fair", 50),
        ("ltx2", "fifo", 50),
        ("zimg", "fair", 50),
    ]


def configure(leases: FakeLeases, values: dict[str, Any], *, replace: bool) -> Any:
    return configure_model("flux", values, by="user:ada", leases=lambda f: leases, replace=replace)  # type: ignore[arg-type, return-value]


@pytest.mark.database
def test_put_replaces_patch_changes_delete_reverts(leases: FakeLeases) -> None:
    values = {"model_type": "async", "poll_endpoint_template": "/status/{id}", "poll_interval": 5.0}
    assert configure(leases, values, replace=True).created
    configure(leases, {"max_retries": 3, "queue_algorithm": "fifo"}, replace=False)
    spec = queries.model_spec("flux")
    assert spec is not None
    assert (spec.model_type, spec.poll_interval, spec.max_retries) == ("async", 5.0, 3)
    assert leases.pools["flux"].algorithm is QueueAlgorithm.FIFO
    configure(leases, {"max_poll_time": 60}, replace=True)
    spec = queries.model_spec("flux")
    assert spec is not None
    assert (spec.model_type, spec.poll_interval, spec.max_retries, spec.max_poll_time) == (
        "sync",
        2.0,
        50,
        60,
    )
    assert leases.pools["flux"].algorithm is QueueAlgorithm.FAIR
    reset_model("flux", by="user:ada", leases=lambda f: leases)  # type: ignore[arg-type, return-value]
    spec = queries.model_spec("flux")
    assert spec is not None
    assert spec.max_poll_time == 600


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"model_type": "triton"}, "unknown_model_type"),
        ({"model_type": "async"}, "poll_template_required"),
        ({"model_type": "async", "poll_endpoint_template": "/status"}, "invalid_template"),
        ({"poll_endpoint_template": "status/{id}"}, "invalid_template"),
        ({"cancel_endpoint_template": "cancel"}, "invalid_template"),
        ({"model_type": "ollama", "keep_alive_seconds": -2.0}, "invalid_keep_alive"),
        ({"health_path": "healthz"}, "invalid_health_path"),
        ({"health_path": "//elsewhere/healthz"}, "invalid_health_path"),
        ({"health_path": "/health z"}, "invalid_health_path"),
        ({"model_type": "ollama", "health_path": "/healthz"}, "invalid_health_path"),
        ({"poll_interval": 0.0}, "validation_failed"),
        ({"max_retries": 100_001}, "validation_failed"),
        ({"remote_model": "a\n"}, "validation_failed"),
        ({"payload_schema": {"type": "nothing"}}, "invalid_schema"),
        ({"payload_schema": {"$ref": "http://127.0.0.1:1/x.json"}}, "invalid_schema"),
        ({"payload_schema": {"properties": {"a": {"$ref": "#/$defs/a"}}}}, "invalid_schema"),
        ({"payload_schema": {"pattern": r"(?=a)b"}}, "invalid_schema"),
        ({"payload_schema": {"patternProperties": {r"(a)\1": {}}}}, "invalid_schema"),
    ],
)
def test_a_configuration_that_can_not_work_is_refused(
    leases: FakeLeases, values: dict[str, Any], code: str
) -> None:
    with refused(code):
        configure(leases, values, replace=True)
    assert not ModelConfig.objects.exists()


LOOK_AROUND = {"pattern": "(?=a)b"}


@pytest.mark.database
def test_a_stored_schema_that_can_not_be_used_leaves_everything_else_changeable(leases: FakeLeases) -> None:
    register(leases)
    ModelConfig.objects.update(payload_schema=LOOK_AROUND)
    configure(leases, {"max_queued": 50}, replace=False)
    configure(leases, {"payload_schema": LOOK_AROUND, "max_retries": 7}, replace=True)
    register(leases, server="s2", model_fields={"max_queued": 60})
    config = ModelConfig.objects.get()
    assert (config.max_queued, config.max_retries, config.payload_schema) == (60, 7, LOOK_AROUND)
    with refused("invalid_schema"):
        configure(leases, {"payload_schema": {"pattern": "(?=a)c"}}, replace=False)
    configure(leases, {"payload_schema": None}, replace=False)
    with refused("invalid_schema"):
        configure(leases, {"payload_schema": LOOK_AROUND}, replace=False)


def test_a_schema_that_only_python_calls_equal_is_checked(leases: FakeLeases) -> None:
    configure(leases, {"payload_schema": {"minLength": 1}}, replace=True)
    with refused("invalid_schema"):
        configure(leases, {"payload_schema": {"minLength": True}}, replace=False)


def test_an_unknown_model_is_not_made_by_accident(leases: FakeLeases) -> None:
    with refused("unknown_model"):
        configure(leases, {"max_retries": 1}, replace=False)
    with refused("unknown_model"):
        reset_model("flux", by="user:ada", leases=lambda f: leases)  # type: ignore[arg-type, return-value]


def test_the_cache_keeps_rows_for_a_second(leases: FakeLeases, monkeypatch: pytest.MonkeyPatch) -> None:
    now = ttl_cache.time.monotonic()
    monkeypatch.setattr(ttl_cache.time, "monotonic", lambda: now)
    register(leases)
    registry = queries.RegistryCache()
    assert registry.model_spec("flux") is not None
    ModelConfig.objects.update(max_retries=1)  # another process' change: no signal reaches us
    spec = registry.model_spec("flux")
    assert spec is not None
    assert spec.max_retries == 50
    monkeypatch.setattr(ttl_cache.time, "monotonic", lambda: now + queries.KEEP_SECONDS + 0.1)
    spec = registry.model_spec("flux")
    assert spec is not None
    assert spec.max_retries == 1


@pytest.mark.django_db(transaction=True)
def test_a_row_read_during_its_change_is_not_cached() -> None:
    pool = Pool.objects.create(name="flux")
    config = ModelConfig.objects.create(name="flux", pool=pool, max_retries=50)
    registry = queries.RegistryCache()
    before = config.spec
    with transaction.atomic():
        config.max_retries = 1
        config.save()
        registry._found.get(("model", "flux"), lambda: before)  # as another thread reads it
    spec = registry.model_spec("flux")
    assert spec is not None
    assert spec.max_retries == 1


def test_a_missing_row_is_not_cached() -> None:
    registry = queries.RegistryCache()
    assert registry.model_spec("later") is None
    ModelConfig.objects.bulk_create([ModelConfig(name="later", pool=Pool.objects.create(name="later"))])
    assert registry.model_spec("later") is not None
    assert registry.endpoint_for("nobody", "later") is None
    assert registry.fleet_of("nowhere") == "main"


# -- audit ------------------------------------------------------------------------------------------


def entries() -> list[tuple[str, str, str]]:
    return list(AuditEntry.objects.order_by("id").values_list("actor", "action", "target"))


def test_every_change_of_the_registry_has_an_audit_entry(leases: FakeLeases) -> None:
    register(leases, headers={"X-Api-Key": "s3cret"})
    configure(leases, {"max_retries": 3}, replace=False)
    reset_model("flux", by="user:ada", leases=lambda f: leases)  # type: ignore[arg-type, return-value]
    remove_server("s1", by="user:ada", leases=lambda f: leases)  # type: ignore[arg-type, return-value]
    assert entries() == [
        ("user:ada", "register_server", "server:s1"),
        ("user:ada", "configure_model", "model:flux"),
        ("user:ada", "reset_model", "model:flux"),
        ("user:ada", "remove_server", "server:s1"),
    ]
    assert AuditEntry.objects.get(action="configure_model").detail == {"fields": ["max_retries"]}
    assert "s3cret" not in str(list(AuditEntry.objects.values_list("detail", flat=True)))


def test_a_change_without_effect_leaves_no_audit_entry(leases: FakeLeases) -> None:
    register(leases)
    register(leases)
    configure(leases, {"max_retries": 50}, replace=False)
    assert entries() == [("user:ada", "register_server", "server:s1")]


def test_a_refused_change_leaves_neither_rows_nor_an_audit_entry(leases: FakeLeases) -> None:
    with refused("poll_template_required"):
        register(leases, model_fields={"model_type": "async"})
    assert (entries(), Server.objects.count()) == ([], 0)


@pytest.mark.database
@pytest.mark.parametrize(
    "change",
    [
        {"slots": 3},
        {"endpoint": "http://10.0.0.1:9000/v2"},
        {"host": "box-1"},
        {"ca_pem": "PEM"},
        {"headers": {"A": "b"}},
    ],
)
def test_every_part_of_a_registration_counts_as_a_change(leases: FakeLeases, change: dict[str, Any]) -> None:
    register(leases)
    register(leases, **change)
    assert len(entries()) == 2


def test_an_unknown_type_is_refused_with_those_that_there_are(leases: FakeLeases) -> None:
    with refused("unknown_model_type") as raised:
        register(leases, model_fields={"model_type": "triton"})
    assert "'triton'" in str(raised.value)
    assert "there are: sync, async, " in str(raised.value)
    with pytest.raises(ValidationError, match="there are: sync, async"):
        ModelConfig(name="m", pool=Pool.objects.create(name="p"), model_type="triton").full_clean()


def test_a_model_whose_runner_is_gone_stays_configurable(leases: FakeLeases) -> None:
    register(leases)
    ModelConfig.objects.update(model_type="gone")
    change = {"by": "t", "leases": lambda fleet: leases, "replace": False}
    assert configure_model("flux", {"max_retries": 3}, **change).config.max_retries == 3
    with refused("unknown_model_type"):
        configure_model("flux", {"model_type": "gone_too"}, **change)


@pytest.mark.database
def test_a_model_whose_runner_is_gone_is_on_pinned_servers_only(leases: FakeLeases) -> None:
    register(leases)
    register(leases, server="s2", host="box-2")
    assert queries.has_capacity("flux")
    ModelConfig.objects.update(model_type="gone")
    mirror_registry(leases)
    assert leases.servers["s1"].models == ()
    assert leases.servers["s2"].models == ("flux",)
    assert queries.has_capacity("flux")
    Server.objects.get(name="s2").delete()
    assert not queries.has_capacity("flux")
