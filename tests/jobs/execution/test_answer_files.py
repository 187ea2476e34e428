"""Files in the answers of servers that know nothing of artifacts. A real model server, store, Valkey and
database; the worker's own transport."""

from __future__ import annotations

import base64
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from artifacts.models import Artifact, ArtifactUse
from artifacts.refs import ref
from artifacts.store.contract import StoreUnavailable
from benchmarks.artifacts import forget_peak, peak_mb
from foundation.ids import new_id
from foundation.long_texts import LONG_BYTES
from gpus.errors import OutputInvalid, OutputNotStored, OutputRefused, RunFailed, ServerLost
from jobs.domain.access import shown_error
from jobs.domain.states import JobState
from jobs.execution.pushed_results import accept_push
from jobs.models import Attempt
from tests.support.answer_files import (
    PNG,
    answer,
    configure,
    content,
    failed,
    harness,
    limited,
    run_once,
    server,
)
from tests.support.stores import Stage, http, s3_clients, s3_stage, seaweed
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, state

__all__ = ["harness", "http", "s3_clients", "s3_stage", "seaweed", "server"]

pytestmark = pytest.mark.django_db(transaction=True)
JPEG = b"\xff\xd8\xff\xe0" + b"jpeg" * 10
SMALL = b"\x89PNG\r\n\x1a\nsmall"


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


# -- what becomes an artifact ---------------------------------------------------------------------


@pytest.mark.database
def test_base64_and_data_uris_at_named_places_become_artifacts(harness, server) -> None:
    configure(output_files=["images[*]", "video.data"])
    answer(
        server,
        {
            "images": [
                text_of(PNG),
                f"data:image/jpeg;base64,{text_of(JPEG)}",
                "data:text/plain,a%20b",
                None,
            ],
            "video": {"data": base64.encodebytes(PNG + b"1").decode(), "seed": 7},
            "note": "images[*] is no file here",
        },
        logs="line\n" * 10,
    )
    job = run_once(harness)
    first, second, third, none = job.result["images"]
    assert content(harness, first) == (PNG, "image/png")
    assert content(harness, second) == (JPEG, "image/jpeg")
    assert content(harness, third) == (b"a b", "text/plain")
    assert content(harness, job.result["video"]["data"]) == (PNG + b"1", "image/png")
    assert none is None
    assert job.result["video"]["seed"] == 7
    assert job.result["note"] == "images[*] is no file here"
    names = sorted(Artifact.objects.values_list("name", flat=True))
    assert names == ["images-0.png", "images-1.jpg", "images-2.txt", "video-data.png"]
    assert ArtifactUse.objects.filter(job=job.pk).count() == 4
    assert {row.made_by_job for row in Artifact.objects.all()} == {job.pk}


@pytest.mark.parametrize(
    ("path", "result"),
    [
        ("@", text_of(PNG)),
        ("image", {"image": base64.urlsafe_b64encode(PNG).decode()}),
        ("image", {"image": f"DATA:image/png;base64,{text_of(PNG)}"}),
        ("*[0]", {"a": [text_of(PNG)], "b": [text_of(PNG)]}),
    ],
)
def test_paths_and_spellings(harness, server, path: str, result: Any) -> None:
    configure(output_files=[path])
    answer(server, result)
    run_once(harness)
    assert Artifact.objects.get().bytes == len(PNG)


@pytest.mark.parametrize(
    "escape", [lambda text: text.replace("/", "\\/"), lambda text: text.replace("+", "\\u002b")]
)
def test_escapes_in_a_long_text(harness, server, escape: Callable[[str], str]) -> None:
    data = os.urandom(400_000)
    configure(output_files=["image"])
    body = f'{{"status": "success", "result": {{"image": "{escape(text_of(data))}"}}}}'.encode()
    server.post = lambda payload: body
    job = run_once(harness)
    assert content(harness, job.result["image"])[0] == data


def test_an_answer_without_result_is_its_own_result(harness, server) -> None:
    configure(output_files=["data[*].b64_json"])
    body = json.dumps(
        {"created": 5, "data": [{"b64_json": text_of(PNG)}], "message": "x" * LONG_BYTES * 2}
    ).encode()
    server.post = lambda payload: body
    job = run_once(harness)
    assert content(harness, job.result["data"][0]["b64_json"])[0] == PNG
    assert job.result["message"] == "x" * LONG_BYTES * 2


def test_an_empty_list_and_an_absent_alternative_are_no_failure(harness, server) -> None:
    configure(output_files=["images[*]", "video"])
    answer(server, {"images": []})
    assert run_once(harness).result == {"images": []}


def test_a_reference_that_the_server_uploaded_itself_stays(harness, server) -> None:
    known = ref(new_id())
    configure(output_files=["image"], result_schema={"properties": {"image": {"type": "string"}}})
    answer(server, {"image": known})
    assert run_once(harness).result == {"image": known}


def test_long_texts_elsewhere_stay_texts(harness, server) -> None:
    configure(output_files=["image"], inline_result_bytes=0)
    text = 'é\n"\\' * LONG_BYTES
    answer(server, {"image": text_of(PNG), "text": text, "parts": [text, {"a": text}]}, logs=text)
    job = run_once(harness)
    assert job.result["text"] == text
    assert job.result["parts"] == [text, {"a": text}]


def test_a_result_of_many_values_is_kept_too(harness, server) -> None:
    configure(output_files=["image"], inline_result_bytes=0)
    answer(server, {"image": text_of(PNG), "numbers": list(range(20_000))})
    job = run_once(harness)
    assert len(job.result["numbers"]) == 20_000
    assert content(harness, job.result["image"])[0] == PNG


# -- protocols ------------------------------------------------------------------------------------


def test_a_polled_answer(harness, server) -> None:
    configure(
        output_files=["image"], model_type="async", poll_endpoint_template="/status/{id}", poll_interval=0.05
    )
    server.post = lambda payload: b'{"status": "processing", "id": "r1"}'
    polled = iter([b'{"status": "running", "progress": 0.5}'])
    final = json.dumps({"status": "success", "result": {"image": text_of(PNG)}}).encode()
    server.get = lambda path: next(polled, final) if path.startswith("/status") else b"{}"
    job = run_once(harness)
    assert content(harness, job.result["image"])[0] == PNG


def test_a_pushed_answer(harness, server) -> None:
    configure(
        output_files=["image"], model_type="async", poll_endpoint_template="/status/{id}", poll_interval=60
    )
    server.post = lambda payload: b'{"status": "processing", "id": "r1"}'
    job = harness.submit()
    thread = harness.work(harness.worker())
    wait_for(lambda: Attempt.objects.filter(remote_id="r1").exists())
    body = {"status": "success", "result": {"image": text_of(PNG)}}
    accept_push(job.pk, Attempt.objects.get().pk, body, 1000, ports=harness.ports)
    harness.workers[0].nudge([job.pk])
    wait_for(lambda: state(job) == JobState.COMPLETED)
    thread.join(10)
    job.refresh_from_db()
    assert content(harness, job.result["image"])[0] == PNG


def test_an_answer_of_openais_protocol(harness, server) -> None:
    configure(output_files=["choices[*].message.images[*].image_url.url"], model_type="openai")
    image = {"image_url": {"url": f"data:image/png;base64,{text_of(PNG)}"}}
    body = json.dumps({"choices": [{"message": {"content": "here", "images": [image]}}]}).encode()
    server.post = lambda payload: body
    job = harness.submit({"messages": []})
    harness.worker().work("m")
    wait_for(lambda: state(job) == JobState.COMPLETED)
    job.refresh_from_db()
    (shown,) = job.result["choices"][0]["message"]["images"]
    assert content(harness, shown["image_url"]["url"])[0] == PNG


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"image": text_of(PNG)[:-1]}, "/image is no file: the base64 ends without its padding"),
        ({"image": "<html>not found</html>"}, "/image is no file: the text is not base64"),
        ({"image": "é" * 40_000}, "characters beyond ASCII"),
        ({"image": "data:image/png;base64" + "A" * 2000}, "has no comma"),
        ({"image": "data:image/png,%zz"}, "not percent-encoded"),
        ({"image": ""}, "/image is empty"),
        ({"image": [text_of(SMALL)]}, "/image is a list of 1, and output_files names a file there"),
        ({"image": 5}, "/image is a number"),
        (
            {"images": [], "seed": 3},
            "nothing at image, where output_files says that its files are.",
        ),
        ("text", "nothing at image"),
    ],
)
def test_a_result_that_is_not_what_the_option_says(harness, server, result: Any, says: str) -> None:
    configure(output_files=["image"])
    answer(server, result)
    message = failed(harness, OutputInvalid, "output_invalid")
    assert says in message
    shown = shown_error("output_invalid", message, in_full=False, tenant_errors="code")
    assert shown is not None
    assert says in shown["message"], "the client does not see why"


def test_operators_see_what_the_result_has_in_place_of_its_files(harness, server) -> None:
    configure(output_files=["image"])
    answer(server, {"images": [], "seed": 3})
    failed(harness, OutputInvalid, "output_invalid")
    assert "an object with images, seed" in Attempt.objects.get().error_message


def test_more_files_than_a_run_may_save(harness, server, settings) -> None:
    limited(settings, run_artifacts=3)
    configure(output_files=["images[*]"])
    answer(server, {"images": [text_of(b"%d" % n) for n in range(10_000)]})
    message = failed(harness, OutputRefused, "output_refused")
    assert "10000 files, a run may save 3 (DISPATCHER_RUN_ARTIFACTS)" in message
    assert list(harness.ports.artifact_store.objects()) == [], "files were stored before they were counted"


def test_a_long_text_at_no_named_place_names_the_options(harness, server) -> None:
    configure(output_files=["image"], max_response_bytes=100_000)
    answer(server, {"image": text_of(PNG), "preview": {"small": "A" * 400_000}})
    message = failed(harness, RunFailed, "run_failed", retried=True)
    assert "larger than" in message
    assert "max_response_bytes" in message
    assert "/preview/small has 400000" in message
    assert "output_files" in message


def test_a_whole_answer_beyond_the_limit_names_the_options(harness, server) -> None:
    configure(max_response_bytes=100_000)
    answer(server, {"image": text_of(PNG)})
    message = failed(harness, RunFailed, "run_failed", retried=True)
    assert "larger than 100000 bytes (max_response_bytes of the model)" in message
    assert "output_files" in message


def test_the_rest_of_an_answer_has_the_models_limit(harness, server) -> None:
    configure(output_files=["image"], max_response_bytes=100_000)
    answer(server, {"image": text_of(PNG), "numbers": list(range(200_000))})
    assert "larger than 100000 bytes" in failed(harness, RunFailed, "run_failed", retried=True)


@pytest.mark.parametrize("length", [True, False], ids=["declared", "chunked"])
def test_files_beyond_the_workers_limit_name_the_setting(harness, server, settings, length: bool) -> None:
    limited(settings, answer_file_bytes=50_000)
    configure(output_files=["image"], max_response_bytes=20_000)
    answer(server, {"image": text_of(PNG)})
    if not length:
        whole = server.post(None)
        server.post = lambda payload: iter([whole])
    message = failed(harness, RunFailed, "run_failed", retried=True)
    assert "more than 50000 bytes (DISPATCHER_ANSWER_FILE_BYTES)" in message


@pytest.mark.parametrize(
    "headers",
    [{"Content-Length": "999999"}, {"Content-Length": "90000"}, {}],
    ids=["longer", "shorter", "cut"],
)
def test_a_cut_answer_stores_nothing(harness, server, headers: dict[str, str]) -> None:
    configure(output_files=["image"])
    answer(server, {"image": text_of(PNG)})
    whole = server.post(None)
    server.headers = headers
    server.post = lambda payload: whole if headers else iter([whole[:100_000]])  # type: ignore[assignment]
    job = run_once(harness, JobState.RETRYING)
    assert job.error_code in (ServerLost.code, RunFailed.code)
    assert list(harness.ports.artifact_store.objects()) == []


def test_an_answer_that_is_compressed_without_being_asked(harness, server) -> None:
    configure(output_files=["image"])
    server.headers = {"Content-Encoding": "gzip"}
    server.post = lambda payload: b"\x1f\x8b\x08" + os.urandom(200_000)
    message = failed(harness, RunFailed, "run_failed", retried=True)
    assert "compressed (Content-Encoding: gzip)" in message


def test_a_full_temporary_folder_is_not_the_servers_fault(harness, server, monkeypatch) -> None:
    def full(**_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("foundation.long_texts.tempfile.TemporaryFile", full)
    configure(output_files=["image"])
    answer(server, {"image": text_of(PNG)})
    message = failed(harness, OutputNotStored, "output_not_stored", retried=True)
    assert "temporary folder (TMPDIR)" in message


def test_nothing_remains_in_the_temporary_folder(harness, server, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    configure(output_files=["image"])
    answer(server, {"image": text_of(PNG)})
    run_once(harness)
    assert list(folder.iterdir()) == []
    opened = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.exists() or one.is_symlink()]
    assert not [one for one in opened if one.startswith(str(folder))], "a file is still open"


# -- a store that is away -------------------------------------------------------------------------


@pytest.mark.database
def test_a_store_that_comes_back_gets_each_file_once(harness, server, monkeypatch) -> None:
    configure(output_files=["images[*]"])
    answer(server, {"images": [text_of(PNG), text_of(JPEG)]})
    store, writes = harness.ports.artifact_store, list[str]()
    real = store.write

    def write(key: Any, size: int, chunks: Any) -> None:
        writes.append(key.sha256)
        if len(writes) == 2:
            raise StoreUnavailable("away")
        real(key, size, chunks)

    monkeypatch.setattr(store, "write", write)
    job = run_once(harness)
    assert [content(harness, one)[0] for one in job.result["images"]] == [PNG, JPEG]
    assert len(writes) == 3, "a file that was stored is stored again"
    assert len(server.seen) == 1, "the model ran again"


def test_a_store_that_stays_away_costs_a_try(harness, server, monkeypatch) -> None:
    configure(output_files=["image"])
    answer(server, {"image": text_of(PNG)})

    def write(*_: Any) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(harness.ports.artifact_store, "write", write)
    failed(harness, OutputNotStored, "output_not_stored", retried=True)


# -- a schema of the results ----------------------------------------------------------------------

IMAGE = {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png", "minLength": 80}
SCHEMA = {
    "type": "object",
    "properties": {"image": IMAGE, "seed": {"type": "integer"}},
    "required": ["image"],
    "additionalProperties": False,
}


def test_marked_places_become_artifacts_and_the_rest_is_checked(harness, server) -> None:
    configure(result_schema=SCHEMA)
    answer(server, {"image": text_of(PNG), "seed": 7})
    job = run_once(harness)
    assert content(harness, job.result["image"]) == (PNG, "image/png")
    assert job.result["seed"] == 7


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"seed": 7}, '"image" is a required property'),
        ({"image": text_of(SMALL), "seed": "7"}, "/seed: "),
        ({"image": text_of(SMALL), "other": 1}, "other"),
        ({"image": 5}, "/image: "),
        ({"image": text_of(JPEG)}, "/image is image/jpeg, result_schema says image/png"),
        ({"image": "nonsense!"}, "/image is no file"),
    ],
)
def test_a_result_that_does_not_match(harness, server, result: Any, says: str) -> None:
    configure(result_schema=SCHEMA)
    answer(server, result)
    message = failed(harness, OutputInvalid, "output_invalid")
    assert says in message
    assert text_of(SMALL) not in message


def test_a_schema_without_places_for_files_is_checked(harness, server) -> None:
    configure(result_schema={"type": "array", "maxItems": 2})
    answer(server, [1, 2, 3])
    failed(harness, OutputInvalid, "output_invalid")


def test_a_long_check_runs_in_a_process_of_its_own(harness, server, settings) -> None:
    branches = [{"required": [f"k{n}"]} for n in range(400)]
    configure(result_schema={"items": {"anyOf": branches}}, inline_result_bytes=0)
    answer(server, [{"k399": 1}] * 5000)
    assert len(run_once(harness).result) == 5000
    limited(settings, schema_check_seconds=0.001)
    message = failed(harness, OutputInvalid, "output_invalid")
    assert "DISPATCHER_SCHEMA_CHECK_SECONDS" in message


def test_a_stored_schema_that_cannot_be_used_fails_the_job(harness, server) -> None:
    configure(result_schema={"pattern": "(?=a)"})
    answer(server, "a")
    assert "result_schema can't be used." in failed(harness, OutputInvalid, "output_invalid")


# -- memory ---------------------------------------------------------------------------------------


@pytest.fixture(params=["folder", "s3"])
def harness_of(harness, request, monkeypatch) -> tuple[str, WorkerHarness]:
    """A harness with this kind of store."""
    if request.param == "s3":
        stage: Stage = request.getfixturevalue("s3_stage")
        monkeypatch.setattr(type(harness.ports), "artifact_store", property(lambda ports: stage.store))
    return request.param, harness


def pieces_of(megabytes: int) -> Iterator[bytes]:
    """An answer with so many megabytes of base64."""
    chance = random.Random(1)
    block = base64.b64encode(b"\x89PNG" + chance.randbytes(3 * 64 * 1024 - 4))
    yield b'{"status": "success", "result": {"image": "'
    for _ in range(megabytes * 4):
        yield block
    yield b'", "seed": 7}}'


@pytest.mark.parametrize("megabytes", [40, pytest.param(200, marks=pytest.mark.by_hand)])
def test_a_large_file_in_an_answer_is_never_whole_in_memory(
    harness_of, server, settings, megabytes: int
) -> None:
    """The growth counts for worker and model server, which share this process."""
    kind, harness = harness_of
    limited(settings, artifact_save_seconds=60.0)
    configure(output_files=["image"])
    answer(server, {"image": text_of(PNG)})
    run_once(harness)  # what the first use of a store takes
    server.post = lambda payload: pieces_of(megabytes)
    before = peak_mb("self") if forget_peak("self") is None else 0.0
    job = run_once(harness)
    grown = peak_mb("self") - before
    row = Artifact.objects.get(pk=job.result["image"]["$artifact"])
    assert row.bytes == megabytes * 4 * 3 * 64 * 1024
    print(f"{kind}: {megabytes} MB of base64, {grown:.0f} MB of memory")  # noqa: T201
    assert grown <= 40
