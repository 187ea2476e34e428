"""Jobs of runs use the artifacts that their payloads refer to."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from artifacts.models import Artifact, ArtifactUse
from artifacts.refs import ref
from artifacts.store.contract import StoreUnavailable
from foundation.http_api.problems import Problem
from foundation.ids import new_id
from gpus.models import Process
from jobs.domain.errors import ArtifactStoreOfOneHost, ArtifactStoreUnavailable
from jobs.models import Job
from tests.workflows.workflow_harness import WorkflowHarness, model, states
from verification.artifact_laws import check_artifacts
from workflows.domain.errors import SignalTooLarge
from workflows.domain.plan import NodeKind
from workflows.execution import writes
from workflows.models import Node, Run, Wait
from workflows.operations import erase
from workflows.operations.answers import answer_wait
from workflows.operations.control import cancel_run
from workflows.operations.definitions import check_definition
from workflows.operations.signals import USE_BYTES, send_signal
from workflows.sweeps.erasing_runs import ErasingRunsSweep

pytestmark = pytest.mark.django_db(transaction=True)
NODES = {"nodes": {"a": model(payload={"film": {"$ref": "inputs.film"}})}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, settings: Any) -> None:
    settings.ARTIFACT_FOLDER = tmp_path / "store"
    settings.DISPATCHER = replace(settings.DISPATCHER, artifact_reserve_bytes=0)


def make_artifact(harness: WorkflowHarness, content: bytes = b"film", **values: object) -> Artifact:
    now = harness.ports.clock.now()
    given = {"tenant_id": harness.tenant.pk, "state": "stored", "stored_at": now, **values}
    digest, size = hashlib.sha256(content).hexdigest(), len(content)
    row = Artifact(id=new_id(), sha256=digest, bytes=size, created_at=now, expires_at=now, **given)
    harness.ports.artifact_store.write(row.key, size, [content])
    row.save(force_insert=True)
    return row


def store_is_away(harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: object) -> None:
        raise StoreUnavailable("It is away.")

    monkeypatch.setattr(type(harness.ports.artifact_store), "find", lambda _, key: away(key))


def test_a_node_uses_the_artifacts_of_its_payload(harness: WorkflowHarness) -> None:
    film = make_artifact(harness, tombstoned_at=harness.ports.clock.now())
    run = harness.start(NODES, {"film": ref(film.pk)})
    harness.advance(run)
    assert set(ArtifactUse.objects.values_list("artifact_id", "job", "run")) == {
        (film.pk, Job.objects.get().id, ""),
        (film.pk, "", run.id),
    }
    film.refresh_from_db()
    assert film.tombstoned_at is None


def test_a_node_with_another_tenants_artifact_fails(harness: WorkflowHarness) -> None:
    film = make_artifact(harness, tenant_id=10**6)
    run = harness.start(NODES, {"film": ref(film.pk)})
    harness.advance(run)
    assert (Node.objects.get().code, states(run)) == ("artifact_missing", {"a": "failed"})
    assert not ArtifactUse.objects.exists()


def test_an_artifact_that_is_removed_between_check_and_commit_fails_the_node(
    harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    film = make_artifact(harness)
    run = harness.start(NODES, {"film": ref(film.pk)})
    with monkeypatch.context() as patch:
        patch.setattr(writes, "lock_for_use", lambda ids: set())
        assert harness.advancer.advance(run.id) is True  # the step must be repeated
    assert not Job.objects.exists()
    Artifact.objects.update(state="gone")
    harness.advance(run)
    assert (Node.objects.get().code, states(run)) == ("artifact_missing", {"a": "failed"})
    assert not Job.objects.exists()


def test_the_artifacts_of_a_runs_inputs_stay_until_its_nodes_come_to_them(harness: WorkflowHarness) -> None:
    film = make_artifact(harness)
    late = {"nodes": {"q": {"timer": {"seconds": 3600}}, **NODES["nodes"]}}
    late["nodes"]["a"] = {**NODES["nodes"]["a"], "needs": ["q"]}
    waiting = harness.start(late, {"film": ref(film.pk), "not a ref": {"$artifact": 5, "x": 1}})
    assert not ArtifactUse.objects.exists(), "inputs that can't be read as references have none"
    waiting = harness.start(late, {"film": [ref(film.pk), ref(new_id())]})
    ended = harness.to_end(harness.start(NODES, {"film": ref(film.pk)}))
    erase.erase_run_data(ended.id, ports=harness.ports)
    film.refresh_from_db()
    assert film.state == "stored"
    assert list(ArtifactUse.objects.values_list("run", flat=True)) == [waiting.id]
    cancel_run(waiting.id, ports=harness.ports)
    harness.to_end(waiting)
    erase.erase_run_data(waiting.id, ports=harness.ports)
    film.refresh_from_db()
    assert film.state == "gone"


def test_an_uploaded_artifact_in_inputs_stays_though_no_request_has_looked_for_it_yet(
    harness: WorkflowHarness,
) -> None:
    film = make_artifact(harness, b"film", state="promised")
    coming = make_artifact(harness, b"later", state="promised")
    harness.ports.artifact_store.remove(coming.key)
    run = harness.start(NODES, {"film": [ref(film.pk), ref(coming.pk)]})
    assert list(ArtifactUse.objects.values_list("artifact_id", "run")) == [(film.pk, run.id)]


def test_a_run_does_not_start_while_it_is_unknown_whether_its_inputs_are_uploaded(
    harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    film = make_artifact(harness, state="promised")
    store_is_away(harness, monkeypatch)
    with pytest.raises(ArtifactStoreUnavailable, match="It is away") as refused:
        harness.start(NODES, {"film": ref(film.pk)})
    assert refused.value.pointer == "/inputs"
    assert not Run.objects.exists()


HUMAN = {"nodes": {"q": {"human": {"title": "?", "form": {}}}}}
SIGNAL = {"nodes": {"q": {"signal": {"name": "go"}}}}


def give(harness: WorkflowHarness, run: Run, value: Any) -> None:
    """Give a value to the node q of a run, which waits for an answer or a signal."""
    if Wait.objects.get(node__run=run).kind == NodeKind.HUMAN:
        answer_wait(run, "q", value, by="test", ports=harness.ports)
    else:
        send_signal(harness.tenant.pk, "go", value, run_id=run.id, ports=harness.ports)


@pytest.mark.database
@pytest.mark.parametrize("definition", [HUMAN, SIGNAL], ids=["answer", "signal"])
def test_the_artifacts_that_a_wait_is_given_stay_for_its_run(
    harness: WorkflowHarness, definition: dict[str, Any]
) -> None:
    film = make_artifact(harness, tombstoned_at=harness.ports.clock.now())
    uploaded = make_artifact(harness, b"no request has looked for it yet", state="promised")
    theirs = make_artifact(harness, tenant_id=10**6)
    run = harness.start(definition)
    harness.advance(run)
    give(harness, run, [ref(film.pk), ref(uploaded.pk), ref(theirs.pk), ref(new_id())])
    uses = set(ArtifactUse.objects.values_list("artifact_id", "job", "run"))
    assert uses == {(film.pk, "", run.id), (uploaded.pk, "", run.id)}
    film.refresh_from_db()
    assert film.tombstoned_at is None
    assert harness.to_end(run).state == "completed"


def test_a_signal_keeps_artifacts_for_the_runs_that_took_it_only(harness: WorkflowHarness) -> None:
    film = make_artifact(harness)
    picky = {"nodes": {"q": {"signal": {"name": "go", "body_schema": {"type": "string"}}}}}
    takers = [harness.start(SIGNAL), harness.start(SIGNAL)]
    for run in (harness.start(picky), *takers):
        harness.advance(run)
    send_signal(harness.tenant.pk, "go", ref(film.pk), ports=harness.ports)
    assert set(ArtifactUse.objects.values_list("run", flat=True)) == {run.id for run in takers}


def test_the_uses_that_a_signal_writes_are_bounded_with_its_copies(
    harness: WorkflowHarness, settings: Any
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_signal_bytes=4 * USE_BYTES)
    harness.advance(harness.start(SIGNAL))
    with pytest.raises(
        SignalTooLarge, match=f"{USE_BYTES} for each artifact, may have {4 * USE_BYTES} bytes"
    ):
        send_signal(harness.tenant.pk, "go", [ref(new_id()) for _ in range(4)], ports=harness.ports)
    assert send_signal(harness.tenant.pk, "go", [ref(new_id())], ports=harness.ports).taken == 1


@pytest.mark.parametrize(
    ("definition", "pointer"), [(HUMAN, "/answer"), (SIGNAL, "/body")], ids=["answer", "signal"]
)
def test_a_wait_goes_on_while_it_is_unknown_whether_what_it_is_given_is_uploaded(
    harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch, definition: dict[str, Any], pointer: str
) -> None:
    film = make_artifact(harness, state="promised")
    run = harness.start(definition)
    harness.advance(run)
    store_is_away(harness, monkeypatch)
    with pytest.raises(ArtifactStoreUnavailable, match="It is away") as refused:
        give(harness, run, ref(film.pk))
    assert refused.value.pointer == pointer
    assert Wait.objects.get().answered_at is None


def broken(harness: WorkflowHarness) -> list[str]:
    """Return what law 13 says of each artifact, by places."""
    return sorted(line.partition(" refers to ")[0] for line in check_artifacts(harness.ports))


@pytest.mark.parametrize("definition", [HUMAN, SIGNAL], ids=["answer", "signal"])
def test_law_13_covers_the_artifacts_given_to_a_wait_and_no_others(
    harness: WorkflowHarness, definition: dict[str, Any]
) -> None:
    film = make_artifact(harness)
    theirs = make_artifact(harness, tenant_id=10**6)
    coming = make_artifact(harness, b"uploaded later", state="promised", stored_at=None)
    harness.ports.artifact_store.remove(coming.key)
    run = harness.start({**definition, "output": {"$ref": "q"}}, [ref(theirs.pk), ref(new_id())])
    harness.advance(run)
    give(harness, run, [ref(film.pk), ref(theirs.pk), ref(coming.pk), ref(new_id())])
    harness.to_end(run)
    later = harness.ports.clock.now() + timedelta(seconds=1)
    Artifact.objects.filter(pk=coming.pk).update(state="stored", stored_at=later)
    assert broken(harness) == []
    ArtifactUse.objects.all().delete()
    assert broken(harness) == [
        f"(13) the answer to q of run {run.id}",
        f"(13) the output of q of run {run.id}",
        f"(13) the output of run {run.id}",
    ]


def test_law_13_ignores_artifacts_that_only_a_definition_names(harness: WorkflowHarness) -> None:
    film = make_artifact(harness)
    harness.put("child", {"nodes": {"x": model()}, "output": {"$ref": "inputs"}})
    named = {"$literal": [ref(film.pk), ref(new_id())]}
    sub = {"workflow": "child", "inputs": named}
    run = harness.to_end(harness.start({"nodes": {"sub": sub}, "output": {"a": {"$ref": "sub"}, "b": named}}))
    assert ref(film.pk) in run.output["a"]
    assert broken(harness) == []


def test_no_run_is_erased_on_a_host_that_may_not_have_its_files(harness: WorkflowHarness) -> None:
    film = make_artifact(harness)
    run = harness.to_end(harness.start(NODES, {"film": ref(film.pk)}))
    now = harness.ports.clock.now()
    Process.objects.create(name="web-9:7:a", kind="web", layout=1, started_at=now, beat_at=now)
    with pytest.raises(ArtifactStoreOfOneHost, match="DISPATCHER_ARTIFACT_STORE"):
        erase.erase_run_data(run.id, ports=harness.ports)
    run.refresh_from_db()
    assert (run.inputs, run.erase_requested_at) == ({"film": ref(film.pk)}, None)
    film.refresh_from_db()
    assert film.state == "stored"


def test_no_run_is_erased_in_a_folder_that_is_not_the_databases(
    harness: WorkflowHarness, settings: Any
) -> None:
    film = make_artifact(harness)
    run = harness.to_end(harness.start(NODES, {"film": ref(film.pk)}))
    settings.ARTIFACT_FOLDER = settings.ARTIFACT_FOLDER.with_name("of another host")
    with pytest.raises(ArtifactStoreUnavailable, match="is the store on another host"):
        erase.erase_run_data(run.id, ports=harness.ports)
    run.refresh_from_db()
    assert (run.inputs, run.erase_requested_at) == ({"film": ref(film.pk)}, None)


def test_an_erasure_stops_while_the_files_may_be_on_another_host_and_goes_on(
    harness: WorkflowHarness,
) -> None:
    film = make_artifact(harness)
    make_artifact(harness, b"another")
    each = {"a": {**model(payload={"film": {"$ref": "inputs.film"}}), "map": {"over": [1, 2, 3]}}}
    run = harness.to_end(harness.start({"nodes": each}, {"film": ref(film.pk)}))
    run = erase.erase_run_data(run.id, ports=harness.ports, jobs_at_once=1)
    done, now = run.erased_up_to, harness.ports.clock.now()
    process = Process.objects.create(name="web-9:7:a", kind="web", layout=1, started_at=now, beat_at=now)
    assert erase.erase_jobs(run, harness.ports).done == 0
    assert "s3://BUCKET" in " ".join(ErasingRunsSweep()(harness.ports).notes)
    run.refresh_from_db()
    assert (run.erased_up_to, run.erased_at) == (done, None)
    process.delete()
    assert erase.erase_jobs(run, harness.ports) == erase.ErasedJobs(2)
    run.refresh_from_db()
    assert run.erased_at is not None


def test_an_erasure_that_waits_for_the_folder_of_the_database_says_so(
    harness: WorkflowHarness, settings: Any
) -> None:
    film = make_artifact(harness)
    make_artifact(harness, b"another")
    run = harness.to_end(harness.start(NODES, {"film": ref(film.pk)}))
    erase.erase_run_data(run.id, ports=harness.ports, jobs_at_once=0)
    own, settings.ARTIFACT_FOLDER = settings.ARTIFACT_FOLDER, settings.ARTIFACT_FOLDER.with_name("other")
    count = ErasingRunsSweep()(harness.ports)
    assert (count.repaired, "is the store on another host" in " ".join(count.notes)) == (0, True)
    settings.ARTIFACT_FOLDER = own
    count = ErasingRunsSweep()(harness.ports)
    assert (count.repaired, count.notes) == (1, ())


def test_a_foreign_artifact_in_inputs_is_not_kept(harness: WorkflowHarness) -> None:
    film = make_artifact(harness, tenant_id=10**6)
    harness.start(NODES, {"film": ref(film.pk)})
    assert not ArtifactUse.objects.exists()


def test_all_artifacts_of_a_run_are_gone_before_the_data_of_its_last_job(harness: WorkflowHarness) -> None:
    film = make_artifact(harness)
    each = {"a": {**model(payload={"film": {"$ref": "inputs.film"}}), "map": {"over": {"$ref": "inputs.n"}}}}
    run = harness.to_end(harness.start({"nodes": each}, {"film": ref(film.pk), "n": [1, 2, 3, 4, 5]}))
    assert erase.erase_run_data(run.id, ports=harness.ports, jobs_at_once=2).erased_at is None
    film.refresh_from_db()
    assert film.state == "gone"
    assert not ArtifactUse.objects.exists()


def test_a_retried_dead_letter_of_an_erased_run_keeps_its_artifacts(harness: WorkflowHarness) -> None:
    film = make_artifact(harness)
    run = harness.to_end(harness.start(NODES, {"film": ref(film.pk)}))
    Job.objects.update(state="queued", finished_at=None)
    erase.erase_run_data(run.id, ports=harness.ports)
    harness.keeps_laws = False
    film.refresh_from_db()
    assert film.state == "stored"
    assert ArtifactUse.objects.get().job == Job.objects.get().id


def test_a_run_keeps_the_artifacts_of_a_result_that_it_took_from_the_cache(harness: WorkflowHarness) -> None:
    film = make_artifact(harness)
    cached = {"nodes": {"a": {**model(), "cache": {"ttl_seconds": 600}}}}
    first = harness.to_end(harness.start(cached))
    job = Job.objects.get()
    Job.objects.update(result={"film": ref(film.pk)})
    ArtifactUse.objects.create(artifact=film, job=job.id)
    second = harness.to_end(harness.start(cached))
    assert Job.objects.count() == 1
    erase.erase_run_data(first.id, ports=harness.ports)
    film.refresh_from_db()
    assert film.state == "stored"
    erase.erase_run_data(second.id, ports=harness.ports)
    film.refresh_from_db()
    assert film.state == "gone"


def stored_refusals(harness: WorkflowHarness, definition: dict[str, Any]) -> dict[str, str]:
    """Return the codes with which a definition is refused, by pointer."""
    try:
        harness.put("w", definition)
    except Problem as problem:
        return {error.pointer: error.code for error in problem.errors}
    return {}


@pytest.mark.database
def test_a_definition_that_names_missing_artifacts_is_refused_with_their_places(
    harness: WorkflowHarness,
) -> None:
    film = make_artifact(harness)
    promised = make_artifact(harness, b"promised", state="promised")
    theirs = make_artifact(harness, tenant_id=10**6)
    gone = make_artifact(harness, b"gone", state="gone")
    unknown = new_id()
    payload = {
        "films": [ref(film.pk), ref(promised.pk), ref(theirs.pk)],
        "data": {"$literal": {"$ref": ref(gone.pk), "again": ref(theirs.pk)}},
        "later": {"$ref": "inputs.film"},
        "made": {"$artifact": {"$ref": "inputs.id"}},
    }
    each = {"over": {"$literal": ref(unknown)}}
    definition = {"nodes": {"a": model(payload=payload), "b": {**model(), "map": each}}}
    assert stored_refusals(harness, definition) == {
        "/nodes/a/payload/films/2": "artifact_missing",
        "/nodes/a/payload/data/$literal/$ref": "artifact_missing",
        "/nodes/b/map/over/$literal": "artifact_missing",
    }


def test_the_artifacts_of_a_definition_are_looked_up_once(harness: WorkflowHarness) -> None:
    film = make_artifact(harness)
    few = {"nodes": {"a": model(payload={"film": ref(film.pk)})}}
    many = {"nodes": {f"n{number}": model(payload={"film": ref(film.pk)}) for number in range(50)}}
    for definition in (few, many):
        with CaptureQueriesContext(connection) as queries:
            check_definition(harness.tenant.pk, "w", definition, ports=harness.ports)
        assert sum("artifacts_artifact" in query["sql"] for query in queries.captured_queries) == 1
