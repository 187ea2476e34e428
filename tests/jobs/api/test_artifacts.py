"""Artifacts over the API: promised, uploaded, referred to, read, listed, deleted, erased."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from rest_framework.test import APIClient

from artifacts.keys import ObjectKey
from artifacts.models import Artifact, ArtifactUse, RunUpload
from artifacts.outputs import new_output
from artifacts.store.contract import NoSuchObject, Store, StoreUnavailable, is_blocked
from artifacts.store.local import LocalStore
from foundation.ids import new_id
from gpus.models import AuditEntry, ModelConfig, Process
from jobs.domain.states import JobState
from jobs.models import Attempt, Callback, Event, Job
from jobs.reports.store_hosts import check_store_hosts
from tests.support.api_harness import Account, ApiHarness, account, key_client
from tests.support.factories import make_job

pytestmark = pytest.mark.django_db
URL = "/api/v1/artifacts"
SUBMIT = "/api/v1/queue/submit"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(autouse=True)
def store(api: ApiHarness, tmp_path: Path, settings: Any) -> Store:
    settings.ARTIFACT_FOLDER = tmp_path / "store"
    limit(settings, artifact_reserve_bytes=0)
    return api.ports.artifact_store


def limit(settings: Any, **limits: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, **limits)


def promise(sender: Account, data: bytes, **more: Any) -> Any:
    return sender.client.post(URL, {"bytes": len(data), "sha256": sha(data), **more}, format="json")


def upload(sender: Account, store: Store, data: bytes, **more: Any) -> str:
    """The id of an artifact whose bytes are in the store."""
    answer = promise(sender, data, **more)
    assert answer.status_code in (200, 201), answer.content
    artifact_id: str = answer.json()["id"]
    store.write(Artifact.objects.get(pk=artifact_id).key, len(data), [data])
    return artifact_id


def submit(sender: Account, payload: Any, **more: Any) -> Any:
    return sender.client.post(SUBMIT, {"model": "zimg", "payload": payload, **more}, format="json")


# -- promise ------------------------------------------------------------------------------------------


def test_an_upload_is_promised_with_a_signed_request(acme: Account) -> None:
    answer = promise(acme, PNG, name="影片 ../x.png")
    assert answer.status_code == 201
    body = answer.json()
    assert (body["exists"], body["parts"], body["upload"]["method"]) == (False, None, "PUT")
    assert body["upload"]["url"].startswith(
        f"{settings.DISPATCHER.public_url}/store/a/{acme.tenant.pk}/{sha(PNG)}?"
    )
    row = Artifact.objects.get()
    assert (row.state, row.bytes, row.name) == ("promised", len(PNG), "影片 ../x.png")


def test_the_same_content_is_one_artifact_of_the_tenant_and_exists_after_its_upload(
    acme: Account, other: Account, store: Store
) -> None:
    first = promise(acme, PNG).json()["id"]
    assert promise(acme, PNG).json()["id"] == first
    upload(acme, store, PNG)
    again = promise(acme, PNG)
    assert (again.status_code, again.json()["id"], again.json()["exists"]) == (200, first, True)
    assert again.json()["upload"] is None
    elsewhere = promise(other, PNG)
    assert (elsewhere.status_code, elsewhere.json()["exists"]) == (201, False)
    assert elsewhere.json()["id"] != first


def test_an_object_that_vanished_from_the_store_is_uploaded_again(acme: Account, store: Store) -> None:
    artifact_id = upload(acme, store, PNG)
    assert promise(acme, PNG).json()["exists"]
    store.remove(Artifact.objects.get().key)
    answer = promise(acme, PNG)
    assert (answer.status_code, answer.json()["id"]) == (201, artifact_id)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"bytes": 1},
        {"bytes": -1, "sha256": sha(b"")},
        {"bytes": 1.5, "sha256": sha(b"")},
        {"bytes": 2**60, "sha256": sha(b"")},
        {"bytes": 1, "sha256": sha(b"").upper()},
        {"bytes": 1, "sha256": "../" + sha(b"")[3:]},
        {"bytes": 1, "sha256": sha(b"") + "\n"},
        {"bytes": 1, "sha256": sha(b""), "content_type": "text/html\r\nX: y"},
        {"bytes": 1, "sha256": sha(b""), "content_type": "html"},
        {"bytes": 1, "sha256": sha(b""), "name": "a\x00b"},
        {"bytes": 1, "sha256": sha(b""), "name": "x" * 256},
        {"bytes": 1, "sha256": sha(b""), "tenant": 2},
        [],
    ],
)
def test_bad_promises_are_refused(acme: Account, body: Any) -> None:
    answer = acme.client.post(URL, body, format="json")
    assert answer.status_code == 422, answer.content
    assert not Artifact.objects.exists()


def test_each_limit_names_its_value(acme: Account, settings: Any) -> None:
    limit(settings, max_artifact_bytes=10)
    answer = promise(acme, b"x" * 11)
    assert (answer.status_code, answer.json()["code"]) == (413, "artifact_too_large")
    assert "up to 10 bytes (DISPATCHER_MAX_ARTIFACT_BYTES)" in answer.json()["detail"]
    limit(settings, tenant_artifact_bytes=15)
    assert promise(acme, b"x" * 10).status_code == 201
    full = promise(acme, b"y" * 10)
    assert (full.status_code, full.json()["code"]) == (429, "artifact_quota_full")
    assert "15 bytes (DISPATCHER_TENANT_ARTIFACT_BYTES)" in full.json()["detail"]
    assert promise(acme, b"x" * 10).status_code == 201  # the same one again
    limit(settings, tenant_artifact_bytes=0, tenant_promised_artifacts=1)
    many = promise(acme, b"z")
    assert (many.status_code, many.json()["code"]) == (429, "too_many_promised_artifacts")
    assert many["Retry-After"] == "10"


def test_what_the_store_does_not_take_in_one_request_is_sent_in_parts(
    acme: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "max_put_bytes", 4)
    answer = promise(acme, b"12345")
    assert (answer.status_code, answer.json()["code"]) == (413, "artifact_too_large")
    assert "up to 4 bytes in one PUT, not 5: send it in parts" in answer.json()["detail"]
    assert not Artifact.objects.exists()
    assert promise(acme, b"12345", parts=True).status_code == 201
    monkeypatch.setattr(LocalStore, "max_object_bytes", 5)
    answer = promise(acme, b"123456", parts=True)
    assert (answer.status_code, "objects of up to 5 bytes" in answer.json()["detail"]) == (413, True)


def test_another_length_replaces_a_promise_but_not_an_artifact(acme: Account, store: Store) -> None:
    wrong = acme.client.post(URL, {"bytes": 5, "sha256": sha(PNG)}, format="json").json()["id"]
    assert upload(acme, store, PNG) == wrong
    acme.client.post(f"{URL}/{wrong}/complete")
    answer = acme.client.post(URL, {"bytes": 5, "sha256": sha(PNG)}, format="json")
    assert (answer.status_code, answer.json()["code"]) == (422, "artifact_bytes_differ")


def process_on(host: str, kind: str, *queues: str) -> None:
    now = datetime.now(UTC)
    Process.objects.create(
        name=f"{host}:7:{kind}",
        kind=kind,
        layout=1,
        started_at=now,
        beat_at=now,
        queues="\n".join(queues),
    )


@pytest.mark.parametrize(
    ("kind", "queues"),
    [("web", ()), ("gpu", ("gpu.m",)), ("sweeps", ("sweeps",)), ("callbacks", ("callbacks", "workflows"))],
)
def test_a_folder_of_one_host_is_refused_where_several_hosts_use_it(
    acme: Account, settings: Any, kind: str, queues: tuple[str, ...]
) -> None:
    for one in ("web", "gpu", "sweeps"):
        process_on(socket.gethostname(), one)
    process_on("web-3", "callbacks", "callbacks")  # reads no artifacts
    assert promise(acme, PNG).status_code == 201
    assert check_store_hosts(None, ["default"]) == []
    process_on("web-2", kind, *queues)
    answer = promise(acme, PNG)
    assert (answer.status_code, answer.json()["code"]) == (503, "artifact_store_of_one_host")
    assert "s3://BUCKET" in answer.json()["detail"]
    assert answer.json()["retryable"] is False
    [warning] = check_store_hosts(None, ["default"])
    assert ", ".join(sorted([socket.gethostname(), "web-2"])) in warning.msg
    assert "s3://BUCKET" in str(warning.hint)
    assert check_store_hosts(None) == []  # without a database
    limit(settings, artifact_store="/mnt/artifacts?shared=1")
    assert check_store_hosts(None, ["default"]) == []


@pytest.mark.parametrize("left", ["an empty folder", "no folder"])
def test_a_folder_that_is_not_mounted_takes_no_upload(acme: Account, store: LocalStore, left: str) -> None:
    """It would be filled, and what the mounted one has would seem to be lost."""
    assert store.check() == "", "a new store"
    row = Artifact.objects.get(pk=upload(acme, store, PNG))
    assert acme.client.post(f"{URL}/{row.pk}/complete").status_code == 200
    root = store.root
    mounted = root.rename(root.with_name("unmounted"))
    if left == "an empty folder":
        root.mkdir()
    other = ObjectKey(acme.tenant.pk, sha(b"other"))
    for write in (
        lambda: store.write(other, 5, [b"other"]),
        lambda: store.begin_parts(other, 5),
        lambda: store.receive(other, 5),
        lambda: store.block(other),
    ):
        with pytest.raises(StoreUnavailable, match="is its disk mounted"):
            write()
    assert store.check().endswith("manage.py artifacts declare")
    refused = promise(acme, b"refused", parts=True)
    assert (refused.status_code, refused.json()["code"]) == (503, "artifact_store_unavailable")
    assert "`doctor`" in refused.json()["detail"]
    assert str(root) not in refused.json()["detail"], "clients read no paths of the host"
    assert list(root.glob("*")) == []
    call_command("artifacts", "declare")
    store.write(other, 5, [b"other"])
    shutil.rmtree(root)
    mounted.rename(root)
    assert store.find(row.key) is not None


# -- parts ----------------------------------------------------------------------------------------------


def test_an_upload_in_parts_is_promised_resumed_and_completed(acme: Account, store: Store) -> None:
    assert isinstance(store, LocalStore)
    store.part_bytes = 1000
    data = os.urandom(2500)
    body = promise(acme, data, parts=True).json()
    assert body["parts"]["count"] == 3
    sizes = [(part["number"], part["first"], part["bytes"]) for part in body["parts"]["missing"]]
    assert sizes == [(1, 0, 1000), (2, 1000, 1000), (3, 2000, 500)]
    row = Artifact.objects.get()

    def put(number: int) -> None:
        part = data[(number - 1) * 1000 : number * 1000]
        with store.receive_part(row.key, row.upload, number, len(part)) as receiver:
            receiver.add(part)
            receiver.finish()

    put(1)
    again = promise(acme, data, parts=True).json()
    assert [part["number"] for part in again["parts"]["missing"]] == [2, 3]
    put(3)
    early = acme.client.post(f"{URL}/{row.pk}/complete")
    assert (early.status_code, early.json()["code"]) == (409, "artifact_not_uploaded")
    assert "1 of 3 parts" in early.json()["detail"]
    put(2)
    for _ in range(2):
        done = acme.client.post(f"{URL}/{row.pk}/complete")
        assert (done.status_code, done.json()["state"]) == (200, "stored")
    assert b"".join(store.chunks(row.key)) == data


@pytest.mark.parametrize("end", ["deleted", "another_length"])
def test_parts_go_with_their_promise(acme: Account, store: Store, end: str) -> None:
    assert isinstance(store, LocalStore)
    promise(acme, PNG, parts=True)
    row = Artifact.objects.get()
    with store.receive_part(row.key, row.upload, 1, len(PNG)) as receiver:
        receiver.add(PNG)
        receiver.finish()
    if end == "deleted":
        assert acme.client.delete(f"{URL}/{row.pk}").status_code == 204
    else:
        body = {"sha256": row.sha256, "bytes": len(PNG) + 1, "parts": True}
        assert acme.client.post(URL, body, format="json").status_code == 201
    parts = [path.parent.name for path in store.root.glob("parts/*/*")]
    assert row.upload not in parts
    with pytest.raises(NoSuchObject):
        store.receive_part(row.key, row.upload, 1, len(PNG))


def test_the_bytes_of_unchecked_parts_do_not_count(acme: Account, zimg: ModelConfig, store: Store) -> None:
    """S3 joins the parts before their hash is checked: meanwhile an object is there."""
    artifact_id = promise(acme, PNG, parts=True).json()["id"]
    store.write(Artifact.objects.get().key, len(PNG), [PNG])
    assert acme.client.get(f"{URL}/{artifact_id}/meta").json()["state"] == "promised"
    assert submit(acme, {"a": {"$artifact": artifact_id}}).status_code == 422


def test_wrong_bytes_that_a_killed_process_joined_keep_no_place(acme: Account, store: Store) -> None:
    assert isinstance(store, LocalStore)
    artifact_id = promise(acme, PNG, parts=True).json()["id"]
    row = Artifact.objects.get()
    store.write(row.key, len(PNG), [PNG])
    (planted,) = store.root.glob(f"a/*/*/{row.sha256}")
    planted.write_bytes(b"x" * len(PNG))
    store.abandon_parts(row.key, row.upload)  # S3 has no upload once it is joined
    assert acme.client.post(f"{URL}/{artifact_id}/complete").status_code == 400
    assert store.find(row.key) is None
    upload(acme, store, PNG)


def test_joining_is_limited(acme: Account, store: Store, api: ApiHarness) -> None:
    artifact_id = promise(acme, PNG, parts=True).json()["id"]
    with ExitStack() as others:
        for _ in range(settings.DISPATCHER.artifact_completions):
            others.enter_context(api.ports.artifact_completions.one_of_few())
        answer = acme.client.post(f"{URL}/{artifact_id}/complete")
    assert (answer.status_code, answer.json()["code"]) == (503, "too_many_completions")
    assert "DISPATCHER_ARTIFACT_COMPLETIONS" in answer.json()["detail"]
    assert answer.headers["Retry-After"] == "5"
    row = Artifact.objects.get()
    assert isinstance(store, LocalStore)
    with store.receive_part(row.key, row.upload, 1, len(PNG)) as receiver:
        receiver.add(PNG)
        receiver.finish()
    assert acme.client.post(f"{URL}/{artifact_id}/complete").status_code == 200


# -- reading ------------------------------------------------------------------------------------------


def test_bytes_are_read_by_a_redirect_to_the_store(acme: Account, store: Store) -> None:
    artifact_id = upload(acme, store, PNG, name="fox.png")
    answer = acme.client.get(f"{URL}/{artifact_id}", HTTP_ACCEPT="image/*")
    assert answer.status_code == 302
    assert f"/store/a/{acme.tenant.pk}/{sha(PNG)}?" in answer["Location"]
    assert "type=image%2Fpng" in answer["Location"]
    assert "name=fox.png" in answer["Location"]
    assert answer["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "declared", ["text/html", "image/svg+xml", "application/pdf", "text/xml", "TEXT/HTML; charset=x"]
)
def test_active_types_are_served_as_bytes(acme: Account, store: Store, declared: str) -> None:
    artifact_id = upload(acme, store, b"<script>", content_type=declared)
    location = acme.client.get(f"{URL}/{artifact_id}")["Location"]
    assert "type=application%2Foctet-stream" in location
    assert acme.client.get(f"{URL}/{artifact_id}/meta").json()["content_type"] == declared


def test_the_type_is_recognised_from_the_bytes_never_from_the_name(acme: Account, store: Store) -> None:
    pytest.importorskip("filetype")
    image = upload(acme, store, PNG, name="page.html")
    page = upload(acme, store, b"<html><script>1</script>", name="image.png")
    types = [acme.client.get(f"{URL}/{one}/meta").json()["content_type"] for one in (image, page)]
    assert types == ["image/png", "application/octet-stream"]


def test_an_artifact_that_is_not_uploaded_cannot_be_read(acme: Account) -> None:
    artifact_id = promise(acme, PNG).json()["id"]
    answer = acme.client.get(f"{URL}/{artifact_id}")
    assert (answer.status_code, answer.json()["code"]) == (409, "artifact_not_uploaded")
    assert acme.client.get(f"{URL}/{artifact_id}/meta").json()["state"] == "promised"


Call = Callable[[APIClient, str], Any]
CALLS: list[Call] = [
    lambda client, one: client.get(f"{URL}/{one}"),
    lambda client, one: client.get(f"{URL}/{one}/meta"),
    lambda client, one: client.post(f"{URL}/{one}/complete"),
    lambda client, one: client.delete(f"{URL}/{one}"),
]


@pytest.mark.parametrize("call", CALLS)
def test_another_tenants_artifact_does_not_exist(
    acme: Account, other: Account, operator: Account, store: Store, call: Call
) -> None:
    artifact_id = upload(acme, store, PNG)
    for one in (artifact_id, "0" * 26, "..", "x"):
        answer = call(other.client, one)
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_artifact")
    assert call(operator.client, artifact_id).status_code in (200, 204, 302)


@pytest.mark.parametrize("call", CALLS)
def test_a_removed_artifact_is_gone(acme: Account, store: Store, call: Call) -> None:
    artifact_id = upload(acme, store, PNG)
    assert acme.client.delete(f"{URL}/{artifact_id}").status_code == 204
    answer = call(acme.client, artifact_id)
    assert (answer.status_code, answer.json()["code"]) == (410, "artifact_gone")


def test_only_an_operators_removal_is_audited(acme: Account, operator: Account, store: Store) -> None:
    ids = [upload(acme, store, content) for content in (PNG, b"other")]
    assert acme.client.delete(f"{URL}/{ids[0]}").status_code == 204
    assert operator.client.delete(f"{URL}/{ids[1]}").status_code == 204
    [entry] = AuditEntry.objects.filter(action="remove_artifact")
    assert (entry.target, entry.detail) == (f"artifact:{ids[1]}", {"tenant": acme.tenant.pk})


@pytest.mark.parametrize(
    ("scopes", "allowed"),
    [(["submit"], {"POST", "DELETE", "complete"}), (["read"], {"GET", "meta", "list"}), (["cancel"], set())],
)
def test_scopes_are_required(acme: Account, store: Store, scopes: list[str], allowed: set[str]) -> None:
    from jobs.operations.tenants import create_key

    artifact_id = upload(acme, store, PNG)
    _, key = create_key(acme.tenant, scopes=scopes)
    client = key_client(key)
    calls = {
        "POST": lambda: client.post(URL, {"bytes": 1, "sha256": sha(b"x")}, format="json"),
        "list": lambda: client.get(URL),
        "GET": lambda: client.get(f"{URL}/{artifact_id}"),
        "meta": lambda: client.get(f"{URL}/{artifact_id}/meta"),
        "complete": lambda: client.post(f"{URL}/{artifact_id}/complete"),
        "DELETE": lambda: client.delete(f"{URL}/{artifact_id}"),
    }
    assert {name for name, call in calls.items() if call().status_code != 403} == allowed


def test_staff_need_the_right_to_see_payloads(acme: Account, store: Store) -> None:
    artifact_id = upload(acme, store, PNG)
    user = User.objects.create_user("viewer", password="x", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_job"))
    client = APIClient()
    client.force_login(user)
    assert client.get(f"{URL}/{artifact_id}/meta").status_code == 200
    refused = client.get(f"{URL}/{artifact_id}")
    assert (refused.status_code, refused.json()["code"]) == (403, "permission_required")
    user.user_permissions.add(Permission.objects.get(codename="view_payload"))
    client.force_login(User.objects.get(pk=user.pk))
    assert client.get(f"{URL}/{artifact_id}").status_code == 302


def test_artifacts_are_listed_by_page_and_state(acme: Account, other: Account, store: Store) -> None:
    ids = [upload(acme, store, str(number).encode()) for number in range(5)]
    acme.client.get(f"{URL}/{ids[0]}/meta")  # its upload is seen
    upload(other, store, b"theirs")
    first = acme.client.get(f"{URL}?limit=3").json()
    assert [row["id"] for row in first["results"]] == ids[:1:-1]
    second = acme.client.get(first["next"]).json()
    assert [row["id"] for row in second["results"]] == ids[1::-1]
    assert [row["id"] for row in acme.client.get(f"{URL}?state=stored").json()["results"]] == ids[:1]
    assert acme.client.get(f"{URL}?stat=stored").status_code == 400
    assert acme.client.get(f"{URL}?state=lost").status_code == 400


# -- references -------------------------------------------------------------------------------------------


def test_a_submit_refers_to_uploaded_artifacts_and_uses_them(
    acme: Account, zimg: ModelConfig, store: Store
) -> None:
    one, two = upload(acme, store, b"1"), upload(acme, store, b"2")
    payload = {"image": {"$artifact": one}, "more": [{"$artifact": two}, {"x": {"$artifact": one}}]}
    answer = submit(acme, payload)
    assert answer.status_code == 202, answer.content
    job_id = answer.json()["job_id"]
    assert set(ArtifactUse.objects.values_list("artifact_id", "job", "run")) == {
        (one, job_id, ""),
        (two, job_id, ""),
    }
    assert Job.objects.get().payload == payload
    assert set(Artifact.objects.values_list("state", flat=True)) == {"stored"}


def test_the_store_is_asked_once(
    acme: Account, zimg: ModelConfig, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [upload(acme, store, str(number).encode()) for number in range(3)]
    payload = {"images": [{"$artifact": one} for one in ids]}
    asked, find = [], LocalStore.find
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "find", lambda self, key: asked.append(key) or find(self, key))
        assert submit(acme, payload).status_code == 202
    assert len(asked) == len(set(asked)) == 3
    monkeypatch.setattr(LocalStore, "find", lambda *_: {}["asked again"])
    assert submit(acme, payload).status_code == 202


def test_a_store_that_is_away_refuses_only_unknown_uploads(
    acme: Account, zimg: ModelConfig, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, unknown = upload(acme, store, b"1"), upload(acme, store, b"2")
    assert submit(acme, {"a": {"$artifact": known}}).status_code == 202

    def away(*_: Any) -> Any:
        raise StoreUnavailable("The store does not answer.")

    monkeypatch.setattr(LocalStore, "find", away)
    assert submit(acme, {"a": {"$artifact": known}}).status_code == 202
    answer = submit(acme, {"a": {"$artifact": unknown}})
    assert (answer.status_code, answer.json()["code"]) == (503, "artifact_store_unavailable")
    assert answer["Retry-After"] == "5"


def bad_refs(acme: Account, other: Account, store: Store) -> dict[str, tuple[Any, str]]:
    gone = upload(acme, store, b"gone")
    acme.client.delete(f"{URL}/{gone}")
    return {
        "unknown": ({"$artifact": "0" * 26}, "artifact_missing"),
        "another tenant's": ({"$artifact": upload(other, store, b"theirs")}, "artifact_missing"),
        "not uploaded": ({"$artifact": promise(acme, b"promised").json()["id"]}, "artifact_missing"),
        "in parts, not complete": (
            {"$artifact": promise(acme, b"parts", parts=True).json()["id"]},
            "artifact_missing",
        ),
        "gone": ({"$artifact": gone}, "artifact_missing"),
        "no id": ({"$artifact": "../../etc/passwd"}, "artifact_ref_invalid"),
        "more members": ({"$artifact": "0" * 26, "x": 1}, "artifact_ref_invalid"),
    }


@pytest.mark.parametrize(
    "kind",
    [
        "unknown",
        "another tenant's",
        "not uploaded",
        "in parts, not complete",
        "gone",
        "no id",
        "more members",
    ],
)
def test_a_bad_reference_is_refused_with_its_place(
    acme: Account, other: Account, zimg: ModelConfig, store: Store, kind: str
) -> None:
    bad, code = bad_refs(acme, other, store)[kind]
    good = {"$artifact": upload(acme, store, b"good")}
    answer = submit(acme, {"images": [good, {"a/b": bad}]})
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert answer.json()["errors"][0]["pointer"] == "/payload/images/1/a~1b"
    assert not Job.objects.exists()
    assert not ArtifactUse.objects.exists()


def test_too_many_references_are_refused_at_once(acme: Account, zimg: ModelConfig, settings: Any) -> None:
    limit(settings, max_payload_bytes=10_000_000)
    payload = {"images": [{"$artifact": f"{number:026d}"} for number in range(100_000)]}
    answer = submit(acme, payload)
    assert (answer.status_code, answer.json()["code"]) == (422, "too_many_artifacts")
    assert "1000 references to artifacts (DISPATCHER_MAX_ARTIFACT_REFS)" in answer.json()["detail"]


def test_a_batch_uses_the_artifacts_of_each_job(acme: Account, zimg: ModelConfig, store: Store) -> None:
    one = upload(acme, store, b"1")
    jobs = [
        {"model": "zimg", "payload": {"a": ref}} for ref in ({"$artifact": one}, 1, {"$artifact": "0" * 26})
    ]
    results = acme.client.post(f"{SUBMIT}-batch", {"jobs": jobs}, format="json").json()["jobs"]
    assert "job_id" in results[0]
    assert "job_id" in results[1]
    assert "artifact_missing" in json.dumps(results[2])
    assert list(ArtifactUse.objects.values_list("job", flat=True)) == [results[0]["job_id"]]


def test_a_replayed_submit_uses_nothing_twice(acme: Account, zimg: ModelConfig, store: Store) -> None:
    one = upload(acme, store, b"1")
    for _ in range(2):
        answer = acme.client.post(
            SUBMIT,
            {"model": "zimg", "payload": {"a": {"$artifact": one}}},
            format="json",
            HTTP_IDEMPOTENCY_KEY="k",
        )
        assert answer.status_code == 202
    assert ArtifactUse.objects.count() == 1


def test_an_artifact_that_is_removed_between_check_and_commit_refuses_the_job(
    acme: Account, zimg: ModelConfig, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobs.submission import insert

    one = upload(acme, store, b"1")
    real = insert.refusals_of_removed

    def removed_first(wanted: Any) -> Any:
        Artifact.objects.update(state="gone", tombstoned_at=datetime.now(UTC))
        return real(wanted)

    monkeypatch.setattr(insert, "refusals_of_removed", removed_first)
    answer = submit(acme, {"a": {"$artifact": one}})
    assert (answer.status_code, answer.json()["code"]) == (422, "artifact_missing")
    assert not Job.objects.exists()
    assert not ArtifactUse.objects.exists()


def test_a_use_takes_a_tombstone_back(acme: Account, zimg: ModelConfig, store: Store) -> None:
    one = upload(acme, store, b"1")
    acme.client.get(f"{URL}/{one}/meta")
    Artifact.objects.update(tombstoned_at=datetime.now(UTC))
    assert submit(acme, {"a": {"$artifact": one}}).status_code == 202
    assert Artifact.objects.get().tombstoned_at is None


def test_an_artifact_in_use_is_not_deleted(acme: Account, zimg: ModelConfig, store: Store) -> None:
    one = upload(acme, store, b"1")
    submit(acme, {"a": {"$artifact": one}})
    answer = acme.client.delete(f"{URL}/{one}")
    assert (answer.status_code, answer.json()["code"]) == (409, "artifact_in_use")
    assert store.find(Artifact.objects.get().key) is not None


# -- erasure ------------------------------------------------------------------------------------------


def test_a_jobs_data_is_erased_and_its_hashes_stay(acme: Account, zimg: ModelConfig, store: Store) -> None:
    one = upload(acme, store, b"1")
    job_id = submit(acme, {"secret": {"$artifact": one}}, metadata={"who": "secret"}).json()["job_id"]
    early = acme.client.delete(f"/api/v1/queue/jobs/{job_id}/data")
    assert (early.status_code, early.json()["code"]) == (409, "job_not_over")
    Job.objects.update(
        state=JobState.FAILED.value,
        finished_at=datetime.now(UTC),
        error_message="secret",
        result={"x": "secret"},
    )
    Attempt.objects.create(
        id="A" * 26, job_id=job_id, number=1, state="failed", server="s", slot=0, model="zimg",
        error_message="secret", evidence="secret", started_at=datetime.now(UTC),
        finished_at=datetime.now(UTC),
    )  # fmt: skip
    for seq, (kind, data) in enumerate(
        [
            ("partial", {"output": "secret"}),
            (
                "log",
                {
                    "attempt": 1,
                    "part": 1,
                    "lines": [{"at": "2026-01-01T00:00:00Z", "stream": "log", "text": "secret"}],
                },
            ),
            ("progress", {"attempt": 1, "part": 2, "progress": 0.5, "text": "secret"}),
            ("failed", {"error": {"code": "run_failed", "message": "secret"}}),
        ],
        2,
    ):
        Event.objects.create(job_id=job_id, seq=seq, type=kind, at=datetime.now(UTC), data=data)
    Callback.objects.create(
        id="m", job_id=job_id, url="http://x", created_at=datetime.now(UTC),
        body=json.dumps({"job_id": job_id, "result": "secret", "metadata": {"a": "secret"}}),
    )  # fmt: skip
    for _ in range(2):
        answer = acme.client.delete(f"/api/v1/queue/jobs/{job_id}/data")
        assert answer.status_code == 200, answer.content
    job = Job.objects.get()
    assert job.payload["$erased"]["sha256"] == sha(
        json.dumps({"secret": {"$artifact": one}}, separators=(",", ":")).encode()
    )
    assert job.dismissed_at is not None
    everything = [
        json.dumps([job.payload, job.result, job.metadata, job.error_message]),
        *(json.dumps(event.data) for event in Event.objects.all()),
        *(attempt.error_message + attempt.evidence for attempt in Attempt.objects.all()),
        *Callback.objects.values_list("body", flat=True),
    ]
    assert "secret" not in "".join(everything)
    assert acme.client.get(f"/api/v1/queue/jobs/{job_id}/logs").content == b""
    assert Event.objects.get(type="progress").data["progress"] == 0.5
    assert not ArtifactUse.objects.exists()
    row = Artifact.objects.get()
    assert (row.sha256, row.state) == (sha(b"1"), "gone")


def ended_job(sender: Account, payload: Any) -> str:
    job_id: str = submit(sender, payload).json()["job_id"]
    Job.objects.filter(pk=job_id).update(state=JobState.FAILED.value, finished_at=datetime.now(UTC))
    return job_id


def test_an_erased_artifact_is_denied_at_once_and_can_be_uploaded_again(
    acme: Account, zimg: ModelConfig, store: Store
) -> None:
    one = upload(acme, store, PNG)
    job_id = ended_job(acme, {"image": {"$artifact": one}})
    assert acme.client.get(f"{URL}/{one}").status_code == 302
    assert acme.client.delete(f"/api/v1/queue/jobs/{job_id}/data").json()["artifacts"] == 1
    for place in (f"{URL}/{one}", f"{URL}/{one}/meta"):
        answer = acme.client.get(place, HTTP_RANGE="bytes=0-3")
        assert (answer.status_code, answer.json()["code"]) == (410, "artifact_gone")
    refused = submit(acme, {"image": {"$artifact": one}})
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, "artifact_missing")
    left = store.find(Artifact.objects.get(pk=one).key)
    assert left is not None
    assert is_blocked(left)
    assert promise(acme, PNG).status_code == 201
    again = upload(acme, store, PNG)
    assert again != one
    assert submit(acme, {"image": {"$artifact": again}}).status_code == 202


def test_nothing_is_erased_on_a_host_that_may_not_have_the_files(
    acme: Account, zimg: ModelConfig, store: Store
) -> None:
    one = upload(acme, store, PNG)
    job_id = ended_job(acme, {"image": {"$artifact": one}})
    unused = upload(acme, store, b"unused")
    process_on("web-2", "web")
    for place in (f"/api/v1/queue/jobs/{job_id}/data", f"{URL}/{unused}"):
        answer = acme.client.delete(place)
        assert (answer.status_code, answer.json()["code"]) == (503, "artifact_store_of_one_host")
        assert "s3://BUCKET" in answer.json()["detail"]
    assert Job.objects.get(pk=job_id).payload == {"image": {"$artifact": one}}
    assert not Artifact.objects.filter(state="gone").exists()
    Process.objects.all().delete()
    assert acme.client.delete(f"/api/v1/queue/jobs/{job_id}/data").json()["artifacts"] == 1


def test_nothing_is_erased_in_a_folder_that_is_not_the_databases(
    acme: Account, zimg: ModelConfig, store: Store, settings: Any
) -> None:
    """As on a second host whose processes are not alive at the moment."""
    one = upload(acme, store, PNG)
    job_id = ended_job(acme, {"image": {"$artifact": one}})
    unused = upload(acme, store, b"unused")
    own, settings.ARTIFACT_FOLDER = settings.ARTIFACT_FOLDER, settings.ARTIFACT_FOLDER.with_name("other")
    for place in (f"/api/v1/queue/jobs/{job_id}/data", f"{URL}/{unused}"):
        answer = acme.client.delete(place)
        assert (answer.status_code, answer.json()["code"]) == (503, "artifact_store_unavailable")
    assert not Artifact.objects.filter(state="gone").exists()
    settings.ARTIFACT_FOLDER = own
    assert acme.client.delete(f"/api/v1/queue/jobs/{job_id}/data").json()["artifacts"] == 1


def attempt_of(job_id: str) -> str:
    attempt = Attempt.objects.create(
        id=new_id(),
        job_id=job_id,
        number=1,
        epoch=1,
        server="gpu-1",
        slot=0,
        state="failed",
        started_at=datetime.now(UTC),
    )
    return attempt.pk


def test_outputs_of_failed_attempts_are_erased_with_the_job(
    acme: Account, zimg: ModelConfig, store: Store
) -> None:
    jobs = [ended_job(acme, {"n": n}) for n in range(2)]
    now = datetime.now(UTC)
    runs = [attempt_of(job_id) for job_id in jobs]
    saved = {}
    for attempts, data in ((runs[:1], b"mine"), (runs, b"of both")):
        for run in attempts:
            saved[data] = new_output(acme.tenant.pk, run, sha(data), len(data), now=now)
        store.write(ObjectKey(acme.tenant.pk, sha(data)), len(data), [data])
    mine, both = (ObjectKey(acme.tenant.pk, one.sha256) for one in saved.values())
    assert acme.client.delete(f"/api/v1/queue/jobs/{jobs[0]}/data").json()["artifacts"] == 0
    left = store.find(mine)
    assert left is not None
    assert is_blocked(left)
    assert store.read(both, 0, 10) == b"of both", "a run of another job has saved it too"
    assert acme.client.delete(f"/api/v1/queue/jobs/{jobs[1]}/data").status_code == 200
    left = store.find(both)
    assert left is not None
    assert is_blocked(left)
    assert not RunUpload.objects.filter(attempt=runs[0], sha256=mine.sha256).exists()


def test_an_artifact_of_two_jobs_goes_with_the_second_erasure(
    acme: Account, zimg: ModelConfig, store: Store
) -> None:
    one = upload(acme, store, PNG)
    jobs = [ended_job(acme, {"image": {"$artifact": one}, "n": n}) for n in range(2)]
    expires_at = Artifact.objects.get().expires_at
    erase = [lambda job_id=job_id: acme.client.delete(f"/api/v1/queue/jobs/{job_id}/data") for job_id in jobs]
    assert erase[0]().json()["artifacts"] == 0
    row = Artifact.objects.get()
    assert (row.state, row.expires_at, row.tombstoned_at) == ("stored", expires_at, None)
    assert acme.client.get(f"{URL}/{one}").status_code == 302
    assert erase[1]().json()["artifacts"] == 1
    assert acme.client.get(f"{URL}/{one}").status_code == 410


def test_another_tenants_data_is_not_erased(acme: Account, other: Account, zimg: ModelConfig) -> None:
    job = make_job(zimg, tenant=acme.tenant)
    assert other.client.delete(f"/api/v1/queue/jobs/{job.id}/data").status_code == 404
    assert account("acme").client.delete(f"/api/v1/queue/jobs/{job.id}/data").status_code == 409


def test_the_life_of_an_unused_artifact_is_renewed_by_a_new_promise(acme: Account, store: Store) -> None:
    upload(acme, store, PNG)
    promise(acme, PNG)
    long_ago = datetime.now(UTC) - timedelta(days=30)
    Artifact.objects.update(expires_at=long_ago, tombstoned_at=long_ago)
    assert promise(acme, PNG).json()["exists"]
    row = Artifact.objects.get()
    assert row.tombstoned_at is None
    assert row.expires_at > datetime.now(UTC) + timedelta(days=6)


def test_content_that_is_being_removed_is_not_promised(acme: Account, store: Store) -> None:
    upload(acme, store, PNG)
    Artifact.objects.update(state="gone", tombstoned_at=datetime.now(UTC))
    answer = promise(acme, PNG)
    assert (answer.status_code, answer.json()["code"]) == (503, "artifact_being_removed")
    assert answer["Retry-After"] == "5"
