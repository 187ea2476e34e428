"""Files in the request of a submit: forms, and `data:` URIs at the places that a model's schema marks."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import tempfile
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.test import RequestFactory

from artifacts.models import Artifact, ArtifactUse
from artifacts.store.contract import Store, StoreUnavailable
from artifacts.store.local import LocalStore
from artifacts.uploads import Wanted, mark_stored, promise
from foundation.http_api.problems import Problem
from foundation.ids import new_id
from gpus.models import Process
from jobs.api import forms
from jobs.api.submit import Submit
from jobs.models import Job
from tests.support.api_harness import Account, ApiHarness, make_model

pytestmark = pytest.mark.django_db
SUBMIT = "/api/v1/queue/submit"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
WAV = b"RIFF\x00\x00\x00\x00WAVEfmt " + bytes(40)
BOUNDARY = "----limit"
FILE_SCHEMA = {
    "type": "object",
    "properties": {
        "image": {"type": "string", "format": "uri", "contentMediaType": "image/*", "maxLength": 5000},
        "sounds": {"type": "array", "items": {"$ref": "#/$defs/sound"}},
        "link": {"type": "string", "format": "uri"},
        "table": {"type": "string", "format": "uri", "contentMediaType": "text/csv"},
    },
    "$defs": {"sound": {"type": "string", "format": "uri", "contentMediaType": "audio/wav"}},
}


@pytest.fixture(autouse=True)
def store(api: ApiHarness, db: None, tmp_path: Path, settings: Any) -> Store:
    settings.ARTIFACT_FOLDER = tmp_path / "store"
    limit(settings, artifact_reserve_bytes=0)
    make_model("zimg", payload_schema=FILE_SCHEMA)
    return api.ports.artifact_store


def limit(settings: Any, **limits: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, **limits)


def data_uri(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def submit(sender: Account, payload: Any, **more: Any) -> Any:
    return sender.client.post(SUBMIT, {"model": "zimg", "payload": payload}, format="json", **more)


def test_files_are_refused_where_several_hosts_use_one_folder(acme: Account) -> None:
    now = datetime.now(UTC)
    for host, kind in (("web-1", "web"), ("box-2", "gpu")):
        Process.objects.create(name=f"{host}:7:A", kind=kind, layout=1, started_at=now, beat_at=now)
    answer = submit(acme, {"image": data_uri(PNG)})
    assert (answer.status_code, answer.json()["code"]) == (503, "artifact_store_of_one_host")
    assert answer.json()["errors"][0]["pointer"] == "/payload/image"
    assert not Artifact.objects.exists()
    assert submit(acme, {"image": "https://example.com/cat.png"}).status_code == 202


def part(name: str, data: bytes | str, *, filename: str | None = None, kind: str = "") -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"'
    head += f'; filename="{filename}"' if filename is not None else ""
    head += f"\r\nContent-Type: {kind}" if kind else ""
    raw = data.encode() if isinstance(data, str) else data
    return head.encode() + b"\r\n\r\n" + raw + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()


def send(sender: Account, body: bytes, **more: Any) -> Any:
    return sender.client.generic(
        "POST", SUBMIT, body, content_type=f"multipart/form-data; boundary={BOUNDARY}", **more
    )


def form(sender: Account, payload: Any, files: Mapping[str, bytes], **more: Any) -> Any:
    job = part("job", json.dumps({"model": "zimg", "payload": payload}))
    parts = [part(name, data, filename=f"{name}.bin") for name, data in files.items()]
    return send(sender, job + b"".join(parts) + END, **more)


def bytes_of(store: Store, artifact_id: str) -> bytes:
    return b"".join(store.chunks(Artifact.objects.get(pk=artifact_id).key))


def first_error(answer: Any) -> tuple[int, str, str]:
    body = answer.json()
    return answer.status_code, body["code"], body["errors"][0]["pointer"] if body.get("errors") else ""


# -- data: URIs ---------------------------------------------------------------------------------------


def test_a_data_uri_at_a_marked_place_becomes_an_artifact(acme: Account, store: Store) -> None:
    answer = submit(acme, {"image": data_uri(PNG), "seed": 7})
    assert answer.status_code == 202, answer.content
    row = Artifact.objects.get()
    assert (row.state, row.content_type, row.bytes, row.tenant_id) == (
        "stored",
        "image/png",
        len(PNG),
        acme.tenant.pk,
    )
    job = Job.objects.get()
    assert job.payload == {"image": {"$artifact": row.pk}, "seed": 7}
    assert bytes_of(store, row.pk) == PNG
    assert list(ArtifactUse.objects.values_list("job", "artifact")) == [(job.pk, row.pk)]


def test_a_list_of_files_behind_a_reference_of_the_schema_and_texts_elsewhere(acme: Account) -> None:
    kept = {"link": data_uri(PNG), "note": data_uri(PNG)}
    answer = submit(acme, {"sounds": [data_uri(WAV, ""), data_uri(WAV, "audio/wav")], **kept})
    assert answer.status_code == 202, answer.content
    row = Artifact.objects.get()
    one = {"$artifact": row.pk}
    assert Job.objects.get().payload == {"sounds": [one, one], **kept}


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("data:image/png;base64,@@@", "file_invalid"),
        ("data:image/png;base64,aGk", "file_invalid"),
        ("data:image/png;base64,aGk=\n", "file_invalid"),
        ("data:image/png;base64", "file_invalid"),
        ("data:image/png,%zz", "file_invalid"),
        ("data:im age,hi", "file_invalid"),
        ("DATA:image/png;base64,é", "file_invalid"),
        (data_uri(WAV, "image/png"), "file_type_wrong"),
        (data_uri(b"plain", "text/plain"), "file_type_wrong"),
        (data_uri(b"plain", ""), "file_type_wrong"),
    ],
)
def test_a_text_that_is_no_such_file_is_refused_with_its_place(acme: Account, value: str, code: str) -> None:
    assert first_error(submit(acme, {"image": value})) == (422, code, "/payload/image")
    assert not Artifact.objects.exists()
    assert not Job.objects.exists()


def test_the_name_of_a_type_is_believed_only_where_the_bytes_say_nothing(acme: Account) -> None:
    assert submit(acme, {"table": "data:text/csv,a%2Cb"}).status_code == 202
    assert Artifact.objects.get().content_type == "text/csv"
    assert first_error(submit(acme, {"table": data_uri(PNG, "text/csv")}))[1] == "file_type_wrong"


def test_the_last_bad_file_leaves_nothing_of_those_before_it(acme: Account) -> None:
    answer = submit(acme, {"image": data_uri(PNG), "sounds": [data_uri(WAV), "data:,"]})
    assert first_error(answer) == (422, "file_type_wrong", "/payload/sounds/1")
    assert not Artifact.objects.exists()


def test_a_reference_at_a_marked_place_passes_the_schema_if_its_type_fits(
    acme: Account, store: Store
) -> None:
    submit(acme, {"image": data_uri(PNG)})
    reference = {"$artifact": Artifact.objects.get().pk}
    assert submit(acme, {"image": reference}).status_code == 202
    assert first_error(submit(acme, {"sounds": [reference]})) == (
        422,
        "file_type_wrong",
        "/payload/sounds/0",
    )
    assert first_error(submit(acme, {"image": {"$artifact": "x"}}))[1] == "artifact_ref_invalid"


def test_a_store_that_does_not_answer_refuses_the_submit_and_the_same_one_succeeds_later(
    acme: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: Any) -> None:
        raise StoreUnavailable("down")

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "write", down)
        answer = submit(acme, {"image": data_uri(PNG)}, headers={"Idempotency-Key": "k"})
    assert first_error(answer) == (503, "artifact_store_unavailable", "/payload/image")
    assert not Job.objects.exists()
    assert submit(acme, {"image": data_uri(PNG)}, headers={"Idempotency-Key": "k"}).status_code == 202
    assert Artifact.objects.get().state == "stored"


def test_quotas_count_files_that_come_with_a_submit(acme: Account, settings: Any) -> None:
    limit(settings, tenant_artifact_bytes=100)
    answer = submit(acme, {"image": data_uri(PNG)})
    assert first_error(answer) == (429, "artifact_quota_full", "/payload/image")
    limit(settings, max_artifact_bytes=100)
    assert first_error(submit(acme, {"image": data_uri(PNG)}))[:2] == (413, "artifact_too_large")


def expires_in(api: ApiHarness, seconds: float) -> bool:
    """Whether the only artifact expires after this time, within two minutes."""
    left = (Artifact.objects.get().expires_at - api.ports.clock.now()).total_seconds()
    return abs(left - seconds) < 120


def test_the_files_of_a_refused_submit_expire_after_an_hour(acme: Account, api: ApiHarness) -> None:
    missing = {"image": data_uri(PNG), "other": {"$artifact": new_id()}}
    for _ in range(2):  # a client repeats what was refused
        assert first_error(submit(acme, missing))[1] == "artifact_missing"
        assert expires_in(api, 3600)
    assert submit(acme, {"image": data_uri(PNG)}).status_code == 202
    assert expires_in(api, 3600), "a job keeps its file by its use"
    assert ArtifactUse.objects.exists()


def test_an_artifact_that_a_client_uploaded_keeps_its_time(
    acme: Account, store: Store, api: ApiHarness
) -> None:
    wanted = Wanted(acme.tenant.pk, hashlib.sha256(PNG).hexdigest(), len(PNG))
    now = api.ports.clock.now()
    row = promise(wanted, store, now).artifact
    store.write(row.key, len(PNG), [PNG])
    mark_stored(row, store, now)
    assert submit(acme, {"image": data_uri(PNG), "other": {"$artifact": new_id()}}).status_code == 422
    assert expires_in(api, 7 * 86_400)


def test_an_estimate_stores_no_file(acme: Account) -> None:
    body = {"model": "zimg", "payload": {"image": data_uri(PNG)}}
    answer = acme.client.post("/api/v1/queue/estimate", body, format="json")
    assert answer.status_code == 200, answer.content
    assert not Artifact.objects.exists()


# -- forms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["image", "影片", "../../etc/passwd", "a b\u202e.png"])
def test_a_form_carries_the_job_and_its_files(acme: Account, store: Store, name: str) -> None:
    answer = form(acme, {"image": {"$file": name}, "mask": [{"$file": "m"}]}, {name: PNG, "m": b"mask"})
    assert answer.status_code == 202, answer.content
    payload = Job.objects.get().payload
    image, mask = payload["image"]["$artifact"], payload["mask"][0]["$artifact"]
    assert (bytes_of(store, image), bytes_of(store, mask)) == (PNG, b"mask")
    row = Artifact.objects.get(pk=image)
    assert (row.content_type, row.made_by_key) == ("image/png", Artifact.objects.get(pk=mask).made_by_key)
    assert row.made_by_key
    assert ArtifactUse.objects.count() == 2


def test_a_form_without_files_is_a_submit(acme: Account) -> None:
    assert form(acme, {"seed": 1}, {}).status_code == 202
    assert submit(acme, {"note": {"$file": "x"}}).status_code == 202, "as JSON it is data"


def test_a_form_whose_file_is_lost_on_the_way_is_no_job(acme: Account) -> None:
    """Without a file, or with a part whose name can't be read."""
    nameless = f'--{BOUNDARY}\r\nContent-Disposition: form-data; filename="a"\r\n\r\nx\r\n'.encode()
    for parts in (b"", nameless):
        job = part("job", json.dumps({"model": "zimg", "payload": {"note": {"$file": "photo"}}}))
        answer = send(acme, job + parts + END)
        assert answer.status_code in (400, 422), answer.json()
    assert answer.json()["code"] in ("file_not_sent", "malformed_form", "validation_failed")
    assert not Job.objects.exists()


def test_the_same_key_with_another_file_is_another_request(acme: Account) -> None:
    key = {"headers": {"Idempotency-Key": "k"}}
    first = form(acme, {"a": {"$file": "f"}}, {"f": b"one"}, **key)
    again = form(acme, {"a": {"$file": "f"}}, {"f": b"one"}, **key)
    assert (first.status_code, again.status_code, again.json()["job_id"]) == (
        202,
        202,
        first.json()["job_id"],
    )
    other = form(acme, {"a": {"$file": "f"}}, {"f": b"two"}, **key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")
    assert Artifact.objects.count() == 1


def test_files_and_references_must_match(acme: Account) -> None:
    assert first_error(form(acme, {"a": {"$file": "g"}}, {"f": b"x"})) == (422, "file_not_sent", "/payload/a")
    assert first_error(form(acme, {}, {"f": b"x"})) == (422, "file_unused", "/payload")
    no_form = submit(acme, {"image": {"$file": "f"}})
    assert first_error(no_form) == (422, "file_not_sent", "/payload/image")
    assert "multipart/form-data" in no_form.json()["detail"]
    wrong = form(acme, {"sounds": [{"$file": "f"}]}, {"f": PNG})
    assert first_error(wrong) == (422, "file_type_wrong", "/payload/sounds/0")
    assert not Artifact.objects.exists()


JOB_PART = part("job", json.dumps({"model": "zimg", "payload": {"a": {"$file": "f"}}}))
FILE_PART = part("f", b"bytes", filename="f")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (JOB_PART + FILE_PART, (400, "malformed_form")),
        (JOB_PART + FILE_PART[:-9], (400, "malformed_form")),
        (JOB_PART + FILE_PART + END[:-4], (400, "malformed_form")),
        (b"", (422, "validation_failed")),
        (b"no form at all", (400, "malformed_form")),
        (FILE_PART + END, (422, "validation_failed")),
        (JOB_PART + JOB_PART + FILE_PART + END, (422, "validation_failed")),
        (JOB_PART + FILE_PART + FILE_PART + END, (422, "validation_failed")),
        (JOB_PART + part("g", "text") + END, (422, "validation_failed")),
        (part("job", "{") + END, (400, "malformed_json")),
        (part("job", '{"a": 1, "a": 2}') + END, (400, "duplicate_key")),
        (part("job", b"\xff\xfe") + END, (400, "malformed_json")),
        (
            JOB_PART + b"".join(part(f"f{at}", b"", filename="f") for at in range(17)) + END,
            (413, "too_many_files"),
        ),
        (b"".join(part("job", "") for _ in range(2000)) + END, (422, "validation_failed")),
        (
            JOB_PART + FILE_PART.replace(b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: base64\r\n\r\n") + END,
            (400, "malformed_form"),
        ),
        (JOB_PART + FILE_PART.replace(b'name="f"', b"name*=x'f", 1) + END, (422, "file_not_sent")),
        (JOB_PART + b"--" + BOUNDARY.encode() + b"\r\nX: " + b"y" * 5000 + END, (400, "malformed_form")),
    ],
    ids=range(17),
)
def test_a_bad_form_is_refused(acme: Account, body: bytes, expected: tuple[int, str]) -> None:
    answer = send(acme, body)
    assert (answer.status_code, answer.json()["code"]) == expected, answer.content
    assert not Artifact.objects.exists()


@pytest.mark.parametrize("text", ["{", '{"a": 1, "a": 2}', "[" * 200 + "]" * 200])
def test_the_error_of_a_bad_part_job_names_the_part(acme: Account, text: str) -> None:
    answer = send(acme, part("job", text) + END)
    assert "The part 'job' " in answer.content.decode()


@pytest.mark.parametrize("kind", ["multipart/form-data", "multipart/form-data; boundary=", "multipart/mixed"])
def test_a_form_without_a_boundary_is_refused(acme: Account, kind: str) -> None:
    answer = acme.client.generic("POST", SUBMIT, JOB_PART + END, content_type=kind)
    assert answer.status_code in (400, 415), answer.content


def test_a_job_that_is_sent_as_a_file_is_named_as_such(acme: Account) -> None:
    answer = send(acme, part("job", "{}", filename="job.json") + END)
    (error,) = answer.json()["errors"]
    assert (answer.status_code, error["pointer"], error["code"]) == (422, "/job", "required")
    assert "It was sent as a file: leave its file name out." in error["detail"]
    (error,) = send(acme, FILE_PART + END).json()["errors"]
    assert "sent as a file" not in error["detail"]


def test_a_form_over_its_limits_is_refused(acme: Account, settings: Any) -> None:
    limit(settings, max_form_bytes=1000, max_payload_bytes=1000)
    large = form(acme, {"a": {"$file": "f"}}, {"f": bytes(100_000)})
    assert (large.status_code, large.json()["code"]) == (413, "payload_too_large")
    assert "(DISPATCHER_MAX_FORM_BYTES sets this limit)" in large.json()["detail"]
    long = form(acme, {"a": {"$file": "f"}, "b": "x" * 2000}, {"f": b""})
    assert (long.status_code, long.json()["code"]) == (413, "payload_too_large")
    assert not Artifact.objects.exists()


def test_a_form_without_a_length_over_its_limits_is_refused_as_others_are(
    rf: RequestFactory, settings: Any
) -> None:
    limit(settings, max_form_bytes=1000, max_payload_bytes=1000)
    request = rf.post(SUBMIT)
    request.META |= {"CONTENT_TYPE": f"{forms.FORM}; boundary={BOUNDARY}", "CONTENT_LENGTH": ""}
    view = Submit(request=request)
    long = BytesIO(JOB_PART + part("f", bytes(100_000), filename="f") + END)
    with pytest.raises(Problem) as refused:
        forms.SubmitFormParser().parse(long, None, {"view": view, "request": request})
    assert refused.value.code == "payload_too_large"
    assert "(DISPATCHER_MAX_FORM_BYTES sets this limit)" in refused.value.detail


def test_a_full_disk_refuses_a_form_and_leaves_nothing(
    acme: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    class FullDisk(tempfile.SpooledTemporaryFile[bytes]):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(forms, "SpooledTemporaryFile", FullDisk)
        answer = form(acme, {"a": {"$file": "f"}}, {"f": PNG})
    assert (answer.status_code, answer.json()["code"]) == (507, "no_room_for_body")
    assert answer.headers["Retry-After"] == "60"
    assert [one.closed for one in made] == [True]
    assert not Artifact.objects.exists()
    assert form(acme, {"a": {"$file": "f"}}, {"f": PNG}).status_code == 202


class Endless:
    """A form whose part `job` has this many bytes, made while they are read."""

    def __init__(self, size: int) -> None:
        self._head, self._left, self._end = part("job", "")[:-2], size, b"\r\n" + END

    def read(self, size: int) -> bytes:
        if self._head:
            data, self._head = self._head, b""
            return data
        if self._left:
            data = b"x" * min(size, self._left)
            self._left -= len(data)
            return data
        data, self._end = self._end, b""
        return data


def test_the_part_job_takes_no_more_memory_than_a_submit() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Problem) as refused:
            forms._Parts(1_000_000).read(
                forms._Body(Endless(60_000_000), 100_000_000, None),
                forms._boundary_of(f"a; boundary={BOUNDARY}"),
            )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (refused.value.status, refused.value.code) == (413, "payload_too_large")
    assert "1000000 bytes" in refused.value.detail
    assert "DISPATCHER_MAX_PAYLOAD_BYTES" in refused.value.detail
    assert peak < 6_000_000


def test_a_staff_session_and_a_key_without_the_scope_send_no_form(acme: Account, api: ApiHarness) -> None:
    acme.client.credentials(HTTP_AUTHORIZATION="Bearer wrong")
    assert form(acme, {"a": {"$file": "f"}}, {"f": b"x"}).status_code == 401


def test_equal_files_are_one_artifact(acme: Account) -> None:
    answer = form(acme, {"a": {"$file": "f"}, "b": {"$file": "g"}}, {"f": PNG, "g": PNG})
    assert answer.status_code == 202
    row = Artifact.objects.get()
    assert row.sha256 == hashlib.sha256(PNG).hexdigest()
    assert Job.objects.get().payload == {"a": {"$artifact": row.pk}, "b": {"$artifact": row.pk}}
