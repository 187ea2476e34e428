"""Each law is noticed when it is broken: a judge that sees nothing proves nothing."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from artifacts.keys import ObjectKey
from artifacts.models import Artifact, ArtifactUse, ByteChange
from jobs import transitions
from jobs.domain.retry import Ending, RetryPolicy
from jobs.domain.states import JobState
from jobs.models import Attempt, Callback, Event, Job, PurgeLedger
from jobs.transitions import End
from tests.support.laws import assert_laws, check_laws
from tests.support.queue_harness import QueueHarness, queue  # noqa: F401 (the fixture)


def laws(of: QueueHarness, *, drained: bool = True, **more: object) -> list[str]:
    """The numbers of the broken laws."""
    return sorted({line.partition(" ")[0] for line in check_laws(drained=drained, ports=of.ports, **more)})  # type: ignore[arg-type]


@pytest.fixture
def running(queue: QueueHarness) -> QueueHarness:  # noqa: F811
    """One job waits, one runs, one is completed with its callback."""
    queue.server(slots=2)
    queue.job(callback_url="https://x.example/")
    done = queue.claim()
    transitions.end_attempt(
        End(done.job_id, done.attempt_id, 1, done.slot, Ending(), RetryPolicy(), queue.clock.now(), result=1)
    )
    queue.release(done)
    queue.leases.confirm_ends([done.ref])
    queue.job()
    queue.claim()
    queue.job()
    return queue


def test_a_sound_state_breaks_none(running: QueueHarness) -> None:
    assert_laws(drained=True, ports=running.ports, accepted=3, peak_running={"gpu-1": 2})


def test_1_more_runs_than_slots(running: QueueHarness) -> None:
    assert laws(running, peak_running={"gpu-1": 3}, drained=False) == ["(1)"]


def test_2_a_live_attempt_without_its_lease(running: QueueHarness) -> None:
    attempt = Attempt.objects.get(state="sent")
    running.leases.quarantine(f"gpu-1/{attempt.slot}", attempt.id)
    assert laws(running) == ["(2)"]
    assert laws(running, drained=False) == []


def test_2_a_live_attempt_under_another_epoch(running: QueueHarness) -> None:
    Attempt.objects.filter(state="sent").update(epoch=5)
    assert laws(running) == ["(2)"]


def test_3_a_running_job_whose_live_attempt_is_another(running: QueueHarness) -> None:
    Job.objects.filter(state=JobState.RUNNING).update(live_attempt="other")
    assert laws(running) == ["(3)"]


@pytest.mark.database
def test_4_a_final_job_without_its_event_or_its_callback(running: QueueHarness) -> None:
    Callback.objects.all().delete()
    assert laws(running) == ["(4)"]
    Event.objects.filter(type="completed").delete()
    assert "(4)" in laws(running)


def test_4_a_callback_that_was_not_requested(running: QueueHarness) -> None:
    Job.objects.update(callback_url="")
    assert laws(running) == ["(4)"]


def test_5_a_waiting_job_that_is_not_in_the_index(running: QueueHarness) -> None:
    job = Job.objects.get(state=JobState.QUEUED)
    running.leases.remove("m", job.ticket)
    assert laws(running) == ["(5)"]


def test_5_a_retrying_job_that_is_never_due(running: QueueHarness) -> None:
    Job.objects.filter(state=JobState.QUEUED).update(state=JobState.RETRYING)
    assert "(5)" in laws(running)


def test_5_a_job_for_later_whose_time_is_long_past(running: QueueHarness) -> None:
    job = running.job(push=False, state="scheduled", run_at=running.clock.now())
    running.clock.advance(10)
    assert laws(running) == [], "the sweep may be about to"
    running.clock.advance(60)
    assert [line for line in check_laws(drained=True, ports=running.ports) if job.id in line]


@pytest.mark.database
def test_5_a_cancel_that_stays_open_although_the_gpu_is_free(running: QueueHarness) -> None:
    job = running.job(push=False)
    Job.objects.filter(id=job.id).update(state="cancelling")
    attempt = Attempt.objects.create(
        id="lost", job=job, number=1, state="lost", server="gpu-9", slot=0, model="m",
        started_at=running.clock.now(), finished_at=running.clock.now(),
    )  # fmt: skip
    running.clock.advance(300)
    assert not [line for line in check_laws(drained=True, ports=running.ports) if "being cancelled" in line]
    Attempt.objects.filter(pk=attempt.pk).update(finished_at=running.clock.now() - timedelta(hours=9))
    assert [line for line in check_laws(drained=True, ports=running.ports) if "being cancelled" in line]


def test_6_more_counted_attempts_than_the_budget(running: QueueHarness) -> None:
    Attempt.objects.update(counted=True)
    assert laws(running, drained=False) == []
    attempt = Attempt.objects.get(state="completed")
    Job.objects.filter(id=attempt.job_id).update(max_retries=0)
    Attempt.objects.filter(id=attempt.id).update(number=9)
    again = Attempt.objects.get(id=attempt.id)
    again.pk, again.number = "second", 10
    again.save(force_insert=True)
    assert laws(running, drained=False) == ["(6)"]


def test_7_events_that_lead_elsewhere_or_have_gaps(running: QueueHarness) -> None:
    Event.objects.filter(type="started").update(seq=9)
    assert "(7)" in laws(running)


def test_7_a_move_that_is_not_in_the_table(running: QueueHarness) -> None:
    waiting = Job.objects.get(state=JobState.QUEUED)
    Event.objects.create(
        job=waiting, seq=2, type="completed", at=running.clock.now(), data={"status": "completed"}
    )
    Event.objects.create(job=waiting, seq=3, type="queued", at=running.clock.now(), data={"status": "queued"})
    Job.objects.filter(id=waiting.id).update(event_seq=3)
    assert "(7)" in laws(running)


def test_8_a_job_that_is_gone_without_an_entry_in_the_ledger(running: QueueHarness) -> None:
    Job.objects.filter(state=JobState.COMPLETED).delete()
    assert laws(running, accepted=3) == ["(8)"]
    PurgeLedger.objects.create(tenant=running.tenant, state="completed", count=1)
    assert laws(running, accepted=3) == []


@pytest.fixture
def artifact(running: QueueHarness, tmp_path: Path, settings: Any) -> Artifact:
    """An artifact that the completed job uses."""
    settings.ARTIFACT_FOLDER = tmp_path / "store"
    settings.DISPATCHER = replace(settings.DISPATCHER, artifact_reserve_bytes=0)
    return stored(running, json.dumps({"of": {"$artifact": OTHER}}).encode())


OTHER = "00000000000000000000000009"


def stored(of: QueueHarness, data: bytes) -> Artifact:
    key = ObjectKey(of.tenant.pk, hashlib.sha256(data).hexdigest())
    of.ports.artifact_store.write(key, len(data), [data])
    row = made_row(of, "0" * 26, data, state="stored")
    ArtifactUse.objects.create(artifact=row, job=completed().id)
    return row


def made_row(of: QueueHarness, artifact_id: str, data: bytes, **values: Any) -> Artifact:
    """Make the row of an artifact that the tenant has had."""
    now = of.clock.now()
    given = {"tenant_id": of.tenant.pk, "created_at": now, "expires_at": now, "stored_at": now, **values}
    digest = hashlib.sha256(data).hexdigest()
    return Artifact.objects.create(id=artifact_id, sha256=digest, bytes=len(data), **given)


def completed() -> Job:
    return Job.objects.get(state=JobState.COMPLETED)


@pytest.mark.parametrize("break_it", ["nothing", "gone", "no object", "other bytes"])
def test_13_an_artifact_of_a_final_job_is_gone_or_changed(
    running: QueueHarness, artifact: Artifact, tmp_path: Path, break_it: str
) -> None:
    if break_it == "gone":
        Artifact.objects.update(state="gone")
    elif break_it == "no object":
        running.ports.artifact_store.remove(artifact.key)
    elif break_it == "other bytes":
        (file,) = (path for path in (tmp_path / "store").rglob(artifact.sha256))
        file.chmod(0o600)
        file.write_bytes(b"mixture")
    assert laws(running) == ([] if break_it == "nothing" else ["(13)"])
    assert laws(running, drained=False) == []


def refer(place: str) -> None:
    """Let a value of the completed job refer to the artifact OTHER."""
    job = completed()
    value = {"deep": [{"$artifact": OTHER}]}
    if place == "payload":
        Job.objects.filter(id=job.id).update(payload=value)
    elif place == "result":
        Job.objects.filter(id=job.id).update(result=value)
    elif place == "long result":
        ArtifactUse.objects.update(is_result=True)
    else:
        Callback.objects.filter(job=job).update(body=json.dumps({"result": value}))


@pytest.mark.parametrize("place", ["payload", "result", "long result", "callback"])
def test_13_a_stored_reference_does_not_resolve(
    running: QueueHarness, artifact: Artifact, place: str
) -> None:
    made_row(running, OTHER, b"gone", state="gone", removed_at=running.clock.now())
    refer(place)
    assert laws(running) == ["(13)"]


@pytest.mark.parametrize("place", ["payload", "result", "long result", "callback"])
@pytest.mark.parametrize("other", ["none", "another tenant's", "promised"])
def test_13_a_model_may_name_what_never_was_an_artifact_and_a_payload_may_not(
    running: QueueHarness, artifact: Artifact, place: str, other: str
) -> None:
    if other == "another tenant's":
        made_row(running, OTHER, b"theirs", state="gone", tenant_id=running.tenant.pk + 1)
    elif other == "promised":
        made_row(running, OTHER, b"promised", state="promised", stored_at=None)
    refer(place)
    assert laws(running) == (["(13)"] if place == "payload" else [])


def test_13_a_reference_is_covered_by_no_use_of_its_job(running: QueueHarness, artifact: Artifact) -> None:
    Job.objects.filter(id=completed().id).update(payload={"file": {"$artifact": artifact.pk}})
    assert laws(running) == []
    ArtifactUse.objects.update(job=Job.objects.get(state=JobState.QUEUED).id)
    assert laws(running) == ["(13)"]


def test_13_a_tenants_bytes_are_counted_wrongly(running: QueueHarness) -> None:
    change = ByteChange.objects.create(tenant_id=running.tenant.pk, bytes=5)
    assert laws(running) == ["(13)"]
    change.delete()
    assert laws(running) == []
