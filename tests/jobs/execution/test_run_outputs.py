"""Outputs of runs: saved while a run goes on, rows only with its end. A real store in a folder, real Valkey
and database."""

from __future__ import annotations

import hashlib
import io
import json
import resource
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import ProgrammingError, transaction

from artifacts.models import Artifact, ArtifactUse, RunUpload
from artifacts.outputs import Maker, SavedOutput, Secured, new_output, secure
from artifacts.refs import ref
from artifacts.removal import remove_now, remove_unknown
from artifacts.store.contract import StoreUnavailable
from artifacts.uploads import Wanted, promise
from foundation.ids import new_id
from foundation.json_text import JsonText
from gpus.errors import Interrupted, OutputNotStored, OutputRefused, RunCancelled
from gpus.models import ModelConfig, Process
from gpus.protocol import ModelSpec
from gpus.runners.base import Accepted, Finished, RunRequest
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.domain.states import AttemptState, JobState
from jobs.execution.attempt_run import HandedOver, Order, RunData, RunOutcome, Wait
from jobs.execution.gpu_worker import GpuWorker
from jobs.execution.output_errors import OutputsUnavailable, OutputsUnrecorded
from jobs.execution.run_outputs import (
    KeptResult,
    RunOutputs,
    _long_text,
    inline_bytes_of,
)
from jobs.execution.worker_state import WorkerProcess
from jobs.models import Attempt, Callback, Job
from tests.jobs.execution.run_bench import Bench, ScriptedRunner
from tests.support.database_errors import of_postgresql
from tests.support.factories import make_job, make_model, make_running, make_tenant
from tests.support.fakes import START
from tests.support.saving_runner import Run, SavingRunner
from tests.support.waiting import wait_for
from tests.support.worker_harness import WorkerHarness, make_harness, state

pytestmark = pytest.mark.django_db(transaction=True)
PICTURE = b"\x89PNG\r\n\x1a\n" + b"pixels" * 1000


@pytest.fixture
def harness(valkey, fleet, settings, tmp_path) -> Iterator[WorkerHarness]:
    settings.ARTIFACT_FOLDER = tmp_path / "store"
    settings.DISPATCHER = replace(settings.DISPATCHER, artifact_reserve_bytes=0, artifact_save_seconds=1.0)
    harness = make_harness(valkey.url, fleet, make_model("m", max_retries=1), "http://127.0.0.1:9/run")
    yield harness
    harness.close()


def run_once(harness: WorkerHarness, run: Run, *, until: JobState = JobState.COMPLETED, **values: Any) -> Job:
    """Submit a job whose run is this function, and wait for its end."""
    worker = GpuWorker(
        harness.ports, WorkerProcess(harness.ports.transport, runners=lambda spec: SavingRunner(run))
    )
    worker.start()
    harness.workers.append(worker)
    job = harness.submit(**values)
    worker.work("m")
    wait_for(lambda: state(job) == until)
    job.refresh_from_db()
    return job


def save_picture(run: RunRequest) -> Any:
    return {"image": run.save(io.BytesIO(PICTURE), name="bild ü.png"), "seed": 7}


def web_on_another_host() -> None:
    now = datetime.now(UTC)
    Process.objects.create(name="web-9:7:a", kind="web", layout=1, started_at=now, beat_at=now)


def test_no_output_goes_into_a_folder_that_the_webs_host_does_not_have(harness, settings) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, inline_result_bytes=1000)
    web_on_another_host()
    saved = run_once(harness, save_picture, until=JobState.FAILED)
    assert saved.error_code == "output_refused"
    assert "2 hosts" in saved.error_message
    assert "DISPATCHER_ARTIFACT_STORE" in saved.error_message
    long = run_once(harness, lambda request: {"text": "x" * 5000})
    assert long.result == {"text": "x" * 5000}, "it stays in the job's row"
    assert not Artifact.objects.exists()
    assert not RunUpload.objects.exists()
    assert [
        one for one in settings.ARTIFACT_FOLDER.rglob("*") if one.is_file() and one.stat().st_size > 1000
    ] == []


def test_a_folder_that_all_hosts_share_takes_outputs_of_each(harness, monkeypatch) -> None:
    web_on_another_host()
    monkeypatch.setattr(harness.ports.artifact_store, "is_shared", True)
    run_once(harness, save_picture)
    assert Artifact.objects.get().state == "stored"


@pytest.mark.parametrize(
    ("media_type", "ends"), [("image/png", JobState.COMPLETED), ("image/jpeg", JobState.FAILED)]
)
def test_a_saved_output_must_have_the_type_of_its_place(harness, media_type: str, ends: JobState) -> None:
    image = {"type": "string", "format": "uri", "contentMediaType": media_type}
    ModelConfig.objects.filter(name="m").update(result_schema={"properties": {"image": image}})
    job = run_once(harness, save_picture, until=ends)
    if ends == JobState.FAILED:
        assert (job.error_code, job.error_message) == (
            "output_invalid",
            "/image is image/png, result_schema says image/jpeg.",
        )


def artifact_of(data: bytes, *, tenant: str = "acme", **values: Any) -> Artifact:
    now = START
    return Artifact.objects.create(
        **{
            "id": new_id(),
            "tenant_id": make_tenant(tenant).pk,
            "sha256": hashlib.sha256(data).hexdigest(),
            "bytes": len(data),
            "state": "stored",
            "created_at": now,
            "expires_at": now + timedelta(days=1),
            **values,
        }
    )


def test_a_saved_output_becomes_an_artifact_with_the_end_of_its_run(harness) -> None:
    seen = []

    def run(request: RunRequest) -> Any:
        result = save_picture(request)
        seen.append(Artifact.objects.count())
        return result

    job = run_once(harness, run, callback_url="http://127.0.0.1:9/hook")
    assert seen == [0]
    row = Artifact.objects.get()
    attempt = Attempt.objects.get()
    assert job.result == {"image": ref(row.pk), "seed": 7}
    assert (row.state, row.bytes, row.content_type, row.name) == ("stored", 6008, "image/png", "bild ü.png")
    assert (row.made_by_job, row.made_by_attempt, row.made_by_epoch) == (job.pk, attempt.pk, attempt.epoch)
    assert row.tenant_id == job.tenant_id
    assert list(ArtifactUse.objects.values_list("artifact_id", "job")) == [(row.pk, job.pk)]
    assert b"".join(harness.ports.artifact_store.chunks(row.key)) == PICTURE
    assert row.pk in Callback.objects.get().body


def test_content_that_the_tenant_has_is_used_again_and_another_tenants_is_not(harness) -> None:
    mine = artifact_of(PICTURE, tombstoned_at=START)
    other = artifact_of(PICTURE, tenant="other")
    job = run_once(harness, save_picture)
    assert job.result["image"] == ref(mine.pk)
    assert Artifact.objects.count() == 2
    mine.refresh_from_db()
    assert mine.tombstoned_at is None
    assert not ArtifactUse.objects.filter(artifact=other).exists()
    assert b"".join(harness.ports.artifact_store.chunks(mine.key)) == PICTURE


def test_a_result_that_names_an_artifact_which_its_run_did_not_save_gets_no_use_of_it(harness) -> None:
    foreign, own = artifact_of(b"theirs", tenant="other"), artifact_of(b"mine")

    def run(request: RunRequest) -> Any:
        return {"a": ref(foreign.pk), "b": ref(own.pk), **save_picture(request)}

    job = run_once(harness, run)
    used = set(ArtifactUse.objects.values_list("artifact_id", flat=True))
    assert used == {job.result["image"]["$artifact"]}


def test_a_run_that_fails_leaves_an_object_without_a_row_which_a_sweep_removes(harness) -> None:
    def run(request: RunRequest) -> Any:
        save_picture(request)
        raise OutputRefused("no")

    run_once(harness, run, until=JobState.FAILED)
    store = harness.ports.artifact_store
    (left,) = store.objects()
    assert not Artifact.objects.exists()
    assert remove_unknown([left], store, harness.ports.clock.now() + timedelta(days=2)).removed == 1
    assert list(store.objects()) == []


def test_the_end_of_a_zombie_writes_no_artifact(harness) -> None:
    job = make_job("m")
    attempt_id = make_running(job, slot="gpu-1/0", remote_id="r")
    secured = secured_picture(harness, job, attempt_id)
    with transaction.atomic():
        assert transitions.take_over(job.pk, attempt_id, 1, "w2", START)
        assert not end(job, attempt_id, secured, epoch=1).won
    assert not Artifact.objects.exists()
    assert not ArtifactUse.objects.exists()


def secured_picture(harness: WorkerHarness, job: Job, attempt_id: str, **values: Any) -> Secured:
    digest = hashlib.sha256(PICTURE).hexdigest()
    one = SavedOutput(new_id(), digest, len(PICTURE), **values)
    store, now = harness.ports.artifact_store, harness.ports.clock.now()
    store.write(Artifact(tenant_id=job.tenant_id, sha256=digest).key, len(PICTURE), [PICTURE])
    outputs = secure(job.tenant_id, [one], Maker(job.pk, attempt_id, 1), store, now)
    return Secured(outputs, job.tenant_id, now)


def end(job: Job, attempt_id: str, secured: Secured, *, epoch: int = 1, result: Any = None) -> Any:
    result = {"image": secured.outputs[0].ref} if result is None else result
    with transaction.atomic():
        return transitions.end_attempt(
            transitions.End(
                job.pk,
                attempt_id,
                epoch,
                "gpu-1/0",
                Ending(),
                RetryPolicy(),
                START,
                result=result,
                outputs=secured,
            )
        )


@pytest.fixture
def running(harness) -> tuple[Job, str]:
    job = make_job("m")
    return job, make_running(job, slot="gpu-1/0")


@pytest.mark.database
def test_a_client_that_promised_the_same_content_meanwhile_shares_its_artifact(harness, running) -> None:
    job, attempt_id = running
    secured = secured_picture(harness, job, attempt_id)
    digest = secured.outputs[0].sha256
    made = artifact_of(PICTURE, state="promised", sha256=digest, bytes=5, upload="x")  # a wrong length
    result = JsonText.of(
        {"image": secured.outputs[0].ref, "odd": {"$artifact": 1, "x": secured.outputs[0].id}}
    )
    assert end(job, attempt_id, secured, result=result).won
    job.refresh_from_db()
    made.refresh_from_db()
    assert job.result["image"] == ref(made.pk)
    assert (made.state, made.bytes, made.upload) == ("stored", len(PICTURE), "")


def test_an_end_is_written_once(harness, running) -> None:
    job, attempt_id = running
    secured = secured_picture(harness, job, attempt_id)
    assert end(job, attempt_id, secured).won
    assert not end(job, attempt_id, secured).won
    assert (Artifact.objects.count(), ArtifactUse.objects.count()) == (1, 1)


def deleted_meanwhile(harness: WorkerHarness, secured: Secured) -> None:
    """By a client, which promised and uploaded the same content."""
    one, store = secured.outputs[0], harness.ports.artifact_store
    wanted = Wanted(secured.tenant_id, one.sha256, one.bytes)
    made = promise(wanted, store, harness.ports.clock.now())
    remove_now(made.artifact.pk, store, harness.ports.clock.now())


def being_removed(harness: WorkerHarness, secured: Secured) -> None:
    artifact_of(PICTURE, state="gone", tombstoned_at=START)


def of_another_tenant(harness: WorkerHarness, secured: Secured) -> None:
    Job.objects.update(tenant=make_tenant("other"))


@pytest.mark.parametrize("meanwhile", [deleted_meanwhile, being_removed, of_another_tenant])
def test_an_output_that_was_removed_before_its_end_is_written_makes_its_run_a_failure(
    harness, running, meanwhile
) -> None:
    job, attempt_id = running
    secured = secured_picture(harness, job, attempt_id)
    meanwhile(harness, secured)
    assert end(job, attempt_id, secured).won
    job.refresh_from_db()
    assert (job.state, job.error_code, job.result) == (JobState.RETRYING, OutputNotStored.code, None)
    assert not ArtifactUse.objects.exists()


@pytest.mark.database
def test_an_artifact_that_its_owner_deletes_before_the_end_is_written_is_not_referred_to(
    harness, running
) -> None:
    job, attempt_id = running
    made = artifact_of(PICTURE)
    requested_at = harness.ports.clock.now()  # the request began before the outputs were secured
    secured = secured_picture(harness, job, attempt_id)
    assert secured.outputs[0].id == made.pk
    remove_now(made.pk, harness.ports.artifact_store, requested_at)
    assert end(job, attempt_id, secured).won
    job.refresh_from_db()
    assert job.state == JobState.RETRYING


def test_references_inside_an_artifact_are_never_changed(harness, running) -> None:
    job, attempt_id = running
    secured = secured_picture(harness, job, attempt_id)
    artifact_of(PICTURE, state="promised")
    assert end(job, attempt_id, secured._replace(result=SavedOutput(new_id(), "", 0))).won
    job.refresh_from_db()
    assert job.state == JobState.RETRYING


@pytest.mark.database
def test_an_old_object_without_a_row_gets_one_before_the_sweep_removes_it(harness, running) -> None:
    job, attempt_id = running
    store = harness.ports.artifact_store
    secured_picture(harness, job, attempt_id)
    assert not Artifact.objects.exists()
    (found,) = store.objects()
    later = harness.ports.clock.now() + timedelta(hours=25)
    one = SavedOutput(new_id(), found.key.sha256, found.bytes)
    secured = Secured(
        secure(job.tenant_id, [one], Maker(job.pk, attempt_id, 1), store, later), job.tenant_id, later
    )
    assert remove_unknown([found], store, later).removed == 0
    assert end(job, attempt_id, secured).won
    assert Artifact.objects.get().state == "stored"


@pytest.mark.database
def test_a_tenant_over_its_quota_gets_no_output(harness, settings) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, tenant_artifact_bytes=7000)
    artifact_of(b"x" * 1000)
    job = run_once(harness, save_picture, until=JobState.FAILED)
    assert job.error_code == OutputRefused.code
    assert "7000 bytes (DISPATCHER_TENANT_ARTIFACT_BYTES)" in job.error_message
    assert job.attempts_made == 1
    assert Attempt.objects.get().slot_freed
    Job.objects.all().delete()
    artifact_of(PICTURE)  # the same content takes no more room
    assert run_once(harness, save_picture).state == JobState.COMPLETED


@pytest.mark.database
def test_runs_at_the_same_time_never_exceed_the_quota_together(harness, settings) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, tenant_artifact_bytes=len(PICTURE) + 10)
    tenant_id, now = make_tenant("acme").pk, harness.ports.clock.now()
    digest = hashlib.sha256(PICTURE).hexdigest()
    new_output(tenant_id, new_id(), digest, len(PICTURE), now=now)  # of a run that has not ended
    failed = run_once(harness, lambda run: run.save(io.BytesIO(b"x" * 11)), until=JobState.FAILED)
    assert failed.error_code == OutputRefused.code
    assert f"they have {len(PICTURE)}, and new ones 11" in failed.error_message
    assert not list(harness.ports.artifact_store.objects()), "nothing was written"
    assert run_once(harness, lambda run: run.save(io.BytesIO(b"y" * 10))).state == JobState.COMPLETED
    assert RunUpload.objects.get().sha256 == digest, "what became an artifact counts as one"


def test_the_outputs_of_a_run_are_bounded(harness, settings) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, run_artifacts=2, run_artifact_bytes=100)
    asked = []

    def run(request: RunRequest) -> Any:
        for data in (b"a" * 60, b"a" * 60, b"b" * 41):
            try:
                request.save(io.BytesIO(data))
            except OutputRefused as refused:
                asked.append(refused.message)
        request.save(io.BytesIO(b"b" * 40))
        request.save(io.BytesIO(b"c"))

    job = run_once(harness, run, until=JobState.FAILED)
    assert asked == [
        "The artifacts of a run may have 100 bytes (DISPATCHER_RUN_ARTIFACT_BYTES); they have 60, and the "
        "next one 41."
    ]
    assert job.error_message == "A run may save 2 artifacts (DISPATCHER_RUN_ARTIFACTS)."


class Endless(io.RawIOBase):
    """A file that grows as it is read. most: bytes after which the test fails."""

    def __init__(self, most: int) -> None:
        self._left = most

    def seek(self, *_: int) -> int:
        return 0

    def read(self, size: int = -1) -> bytes:
        self._left -= size
        assert self._left > 0, "read without a limit"
        return bytes(size)


def test_a_file_without_an_end_is_not_read_to_its_end(harness, settings) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, max_artifact_bytes=5_000_000)
    job = run_once(harness, lambda request: request.save(Endless(20_000_000)), until=JobState.FAILED)
    assert job.error_message == (
        "An artifact may have 5000000 bytes (DISPATCHER_MAX_ARTIFACT_BYTES), an output of the run has more."
    )


def test_files_with_the_same_bytes_are_not_read_without_end(harness, settings) -> None:
    limits = replace(settings.DISPATCHER, max_artifact_bytes=1_000_000, run_artifact_bytes=2_000_000)
    settings.DISPATCHER = limits
    saves = []

    def run(request: RunRequest) -> Any:
        for _ in range(20):
            request.save(io.BytesIO(bytes(900_000)))
            saves.append(1)

    job = run_once(harness, run, until=JobState.FAILED)
    assert job.error_message.endswith("2000000 bytes (DISPATCHER_RUN_ARTIFACT_BYTES); its files have more.")
    assert len(saves) == 3


def test_an_object_that_vanished_before_the_end_fails_the_run(harness) -> None:
    def run(request: RunRequest) -> Any:
        result = save_picture(request)
        store = harness.ports.artifact_store
        store.remove(next(iter(store.objects())).key)
        return result

    job = run_once(harness, run, until=JobState.RETRYING)
    assert job.error_code == OutputNotStored.code


def test_a_run_waits_for_its_store_with_its_lease_and_is_not_lost(harness, monkeypatch) -> None:
    store = harness.ports.artifact_store
    real, asked = store.find, []

    def find(key: Any) -> Any:
        attempt = Attempt.objects.get()
        asked.append(attempt.state)
        if len(asked) == 1:
            raise StoreUnavailable("The store does not answer.")
        return real(key)

    def run(request: RunRequest) -> Any:
        result = save_picture(request)
        monkeypatch.setattr(store, "find", find)
        return result

    job = run_once(harness, run)
    assert asked == [AttemptState.SENT] * 2
    assert job.attempts_made == 1
    assert Artifact.objects.get().state == "stored"


def test_a_run_whose_outputs_the_database_refuses_does_not_wait_for_ever(harness, monkeypatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise of_postgresql(ProgrammingError, "42501", "permission denied for table artifacts_runupload")

    monkeypatch.setattr("jobs.execution.run_outputs.new_output", refuse)
    job = run_once(harness, save_picture, until=JobState.RETRYING)
    assert job.error_code == OutputNotStored.code
    assert "deploy/least_rights/gpu_box.sql" in job.error_message
    assert "artifacts_runupload" not in job.error_message


def test_a_run_whose_store_stays_away_is_tried_again_and_charged(harness, monkeypatch) -> None:
    store = harness.ports.artifact_store

    def find(key: Any) -> Any:
        raise StoreUnavailable("The store does not answer.")

    def run(request: RunRequest) -> Any:
        result = save_picture(request)
        monkeypatch.setattr(store, "find", find)
        return result

    job = run_once(harness, run, until=JobState.RETRYING)
    assert (job.error_code, job.tries) == (OutputNotStored.code, 1)
    assert job.error_message == "The outputs of the run could not be stored. The store does not answer."
    assert Attempt.objects.get().slot_freed


@pytest.mark.database
def test_a_run_without_outputs_asks_neither_database_nor_store(
    harness, django_assert_num_queries, monkeypatch
) -> None:
    monkeypatch.setattr(type(harness.ports), "artifact_store", None)
    lease: Any = None
    with django_assert_num_queries(0):
        assert RunOutputs(lease, harness.ports).keep({"a": 1}) == KeptResult({"a": 1})


@pytest.mark.by_hand
def test_two_gigabytes_are_saved_with_flat_memory(harness, tmp_path) -> None:
    file, grown = tmp_path / "film", []
    with file.open("wb") as opened:
        opened.truncate(2 << 30)

    def run(request: RunRequest) -> Any:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with file.open("rb") as opened:
            result = request.save(opened)
        grown.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        return result

    began = time.monotonic()
    run_once(harness, run)
    print(f"grown by {grown[0]} KiB, {time.monotonic() - began:.1f} s")  # noqa: T201
    assert grown[0] < 64 * 1024


# -- long results -----------------------------------------------------------------------------------


def result_of(harness: WorkerHarness, job: Job) -> Any:
    row = Artifact.objects.get(pk=job.result["$artifact"])
    return json.loads(b"".join(harness.ports.artifact_store.chunks(row.key)))


def limited(settings: Any, **values: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, **values)


@pytest.mark.database
def test_a_long_result_becomes_an_artifact_and_its_callback_stays_short(harness, settings) -> None:
    limited(settings, inline_result_bytes=1000)
    long = {"text": "ü" * 10_000, "list": list(range(300))}
    job = run_once(harness, lambda request: long, callback_url="http://127.0.0.1:9/hook")
    assert result_of(harness, job) == long
    row = Artifact.objects.get()
    assert (row.name, row.content_type, row.made_by_job) == ("result.json", "application/json", job.pk)
    assert ArtifactUse.objects.get().is_result
    body = Callback.objects.get().body
    assert len(body) < 1000
    assert json.loads(body)["result"] == job.result == ref(row.pk)


@pytest.mark.parametrize(("size", "is_long"), [(998, False), (999, True)])
def test_the_limit_counts_bytes_of_json(harness, settings, size, is_long) -> None:
    limited(settings, inline_result_bytes=1000)
    job = run_once(harness, lambda request: "x" * size)  # and two quotation marks
    assert isinstance(job.result, dict) is is_long


def test_a_short_result_of_characters_that_json_escapes_is_long() -> None:
    assert _long_text("\U0001f980" * 84, 1000) is not None
    assert _long_text("\U0001f980" * 83, 1000) is None
    assert _long_text(JsonText("x" * 1001), 1000) is not None


@pytest.mark.parametrize(
    ("own", "of_all", "followed_by", "expected"),
    [(None, 5, None, 5), (7, 5, None, 7), (0, 5, None, 0), (None, 5, "run:R", 0)],
)
def test_a_model_may_set_its_own_limit_and_steps_of_workflows_have_none(
    own, of_all, followed_by, expected
) -> None:
    spec = ModelSpec("m", "m", inline_result_bytes=own)
    assert inline_bytes_of(spec, followed_by, of_all) == expected


@pytest.mark.database
def test_a_long_result_may_refer_to_outputs_of_its_run(harness, settings) -> None:
    limited(settings, inline_result_bytes=1000)
    mine = artifact_of(PICTURE)
    job = run_once(harness, lambda request: {**save_picture(request), "text": "x" * 2000})
    assert result_of(harness, job)["image"] == ref(mine.pk)
    uses = ArtifactUse.objects.order_by("is_result").values_list("artifact_id", "is_result")
    assert list(uses) == [(mine.pk, False), (job.result["$artifact"], True)]


def test_a_long_result_stays_in_its_row_if_the_store_does_not_take_it_in_time(
    harness, settings, monkeypatch
) -> None:
    limited(settings, inline_result_bytes=1000)
    tries = []

    def write(*_: Any) -> None:
        tries.append(Attempt.objects.get().state)
        raise StoreUnavailable("The store does not answer.")

    monkeypatch.setattr(harness.ports.artifact_store, "write", write)
    job = run_once(harness, lambda request: "x" * 2000)
    assert job.result == "x" * 2000
    assert set(tries) == {AttemptState.SENT}
    assert len(tries) >= 2
    assert not ArtifactUse.objects.exists()


# -- the attempt's own waiting ----------------------------------------------------------------------


def waiting_bench(*errors: Exception, seconds: float = 60.0, remote_id: str | None = None) -> Bench:
    """A run that has succeeded, whose outputs meet these errors; then they are kept."""
    left = list(errors)
    runner = ScriptedRunner(starts=[Finished(1)], polls=[Finished(1)])
    bench = Bench(runner, remote_id=remote_id)

    def keep(result: Any, finish: Any, *, is_last_try: bool, long_texts: Any) -> KeptResult:
        if left:
            raise left.pop(0)
        return KeptResult(("kept", result))

    bench.run._data = RunData(keep=keep, keep_seconds=seconds)
    return bench


def test_the_pauses_between_tries_grow_and_the_result_is_kept() -> None:
    bench = waiting_bench(*[OutputsUnavailable()] * 6)
    pauses = []
    while isinstance(step := bench.run.step(), Wait):
        pauses.append(step.seconds)
        bench.clock.move(step.seconds)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert isinstance(step, RunOutcome)
    assert step.result == ("kept", 1)
    assert bench.runner.calls == ["start"]


@pytest.mark.database
def test_the_wait_for_the_store_ends_and_that_for_the_database_does_not() -> None:
    bench = waiting_bench(*[OutputsUnrecorded()] * 20, *[OutputsUnavailable("away")] * 9, seconds=30.0)
    step = bench.wait_through()
    assert isinstance(step, RunOutcome)
    assert (step.ending.error.message, step.ending.suspect, step.evidence) == (
        "away",
        False,
        "the server answered its request",
    )
    assert bench.clock.monotonic() - bench.run.began > 30.0


def test_a_try_in_which_the_time_runs_out_is_followed_by_a_last_one() -> None:
    """Only the last one keeps a long result in its row."""
    bench, were_last = waiting_bench(seconds=1.0), []

    def keep(result: Any, finish: Any, *, is_last_try: bool, long_texts: Any) -> KeptResult:
        were_last.append(is_last_try)
        bench.clock.move(2.0)
        if is_last_try:
            return KeptResult(result)
        raise OutputsUnavailable("away")

    bench.run._data = RunData(keep=keep, keep_seconds=1.0)
    step = bench.wait_through()
    assert isinstance(step, RunOutcome)
    assert (step.result, were_last) == (1, [False, True])


@pytest.mark.parametrize(
    ("order", "error"),
    [(Order.CANCEL, RunCancelled), (Order.INTERRUPT, Interrupted), (Order.LEASE_LOST, None)],
)
def test_an_order_ends_the_wait_and_frees_the_slot(order, error) -> None:
    bench = waiting_bench(*[OutputsUnavailable()] * 9)
    assert isinstance(bench.run.step(), Wait)
    bench.run.order(order)
    step = bench.run.step()
    assert isinstance(step, RunOutcome)
    assert error is None or isinstance(step.ending.error, error)
    assert not step.ending.suspect


@pytest.mark.parametrize("order", [Order.HAND_OVER, Order.LEASE_LOST])
def test_a_polled_run_is_handed_over_and_read_again(order) -> None:
    bench = waiting_bench(*[OutputsUnavailable()] * 9, remote_id="r1")
    assert isinstance(bench.run.step(), Wait)
    bench.run.order(order)
    assert isinstance(bench.run.step(), HandedOver)


def test_a_bug_while_outputs_are_kept_frees_the_slot() -> None:
    step = waiting_bench(ValueError("bug")).run.step()
    assert isinstance(step, RunOutcome)
    assert isinstance(step.ending.error, OutputNotStored)
    assert not step.ending.suspect


def test_a_pushed_result_is_kept_too() -> None:
    bench = waiting_bench(OutputsUnavailable())
    bench.runner.starts = [Accepted("r1")]
    bench.accept()
    bench.push = {"result": 2}
    bench.run.nudge()
    assert isinstance(bench.run.step(), Wait)
    step = bench.run.step()
    assert isinstance(step, RunOutcome)
    assert (step.result, step.evidence) == (("kept", 2), "result pushed")
