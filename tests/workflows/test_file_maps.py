"""Maps over an artifact of JSON lines."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from artifacts.errors import InUse
from artifacts.keep import HashedFile, keep_file
from artifacts.models import Artifact, ArtifactUse
from artifacts.refs import ref
from artifacts.removal import announce_unused, remove_now
from jobs.models import EndNotice, Job
from tests.workflows.workflow_harness import WorkflowHarness, model, states
from workflows.domain.states import RunState
from workflows.execution import writes
from workflows.execution.file_maps import items_of, read_on
from workflows.execution.json_lines import GROUP, STEP_BYTES
from workflows.models import MapFile, MapState, Node, Run
from workflows.operations.control import cancel_run, pause_run
from workflows.operations.restart import restart_run
from workflows.operations.signals import send_signal
from workflows.sweeps import unread_notices

pytestmark = pytest.mark.django_db(transaction=True)
JSONL = "application/x-ndjson"


def upload(
    harness: WorkflowHarness, data: bytes, content_type: str = JSONL, tenant_id: int | None = None
) -> Artifact:
    file = HashedFile(io.BytesIO())
    file.add(data)
    return keep_file(
        file.done(media_type=content_type),
        tenant_id=tenant_id or harness.tenant.pk,
        content_type=content_type,
        store=harness.ports.artifact_store,
        now=harness.ports.clock.now(),
    )


def lines(*values: Any) -> bytes:
    return "".join(f"{json.dumps(value)}\n" for value in values).encode()


def over(ref_: Any = None, **more: Any) -> dict[str, Any]:
    """A map over the file that the run's input names."""
    return {
        "nodes": {
            "all": {
                **model(payload={"echo": [{"$ref": "index"}, {"$ref": "item.n"}]}),
                "map": {"over": ref_ or {"$ref": "inputs"}, **more},
            }
        },
        "output": {"$ref": "all[*].echo"},
    }


def ended(harness: WorkflowHarness, data: bytes, content_type: str = JSONL, **more: Any) -> Run:
    artifact = upload(harness, data, content_type)
    return harness.to_end(harness.start(over(**more), ref(artifact.pk)))


def test_each_line_is_an_item_in_order(harness: WorkflowHarness) -> None:
    run = ended(harness, lines(*({"n": number * 10} for number in range(7))), max_parallel=3)
    assert (run.state, run.output) == (RunState.COMPLETED, [[n, n * 10] for n in range(7)]), run.error_message
    assert MapFile.objects.get().items == MapState.objects.get().total == 7


def test_a_file_without_items_completes_at_once(harness: WorkflowHarness) -> None:
    run = ended(harness, b"\n\n")
    assert (run.state, run.output) == (RunState.COMPLETED, [])


def test_an_earlier_node_may_name_the_file(harness: WorkflowHarness) -> None:
    artifact = upload(harness, lines({"n": 1}, {"n": 2}))
    definition = over({"$ref": "list.files[0]"})
    definition["nodes"]["list"] = {"signal": {"name": "list"}}
    run = harness.start(definition)
    harness.advance(run)
    send_signal(harness.tenant.pk, "list", {"files": [ref(artifact.pk)]}, ports=harness.ports)
    harness.to_end(run)
    assert (run.state, run.output) == (RunState.COMPLETED, [[0, 1], [1, 2]])


@pytest.mark.parametrize(
    ("data", "content_type", "code", "why"),
    [
        (b'{"n": 1}\n{"n": \n', JSONL, "bad_line", "line 2"),
        (b'{"n": 1}\n\xff\n', JSONL, "bad_line", "line 2"),
        (b'"' + b"x" * 70_000 + b'"', JSONL, "bad_line", "line 1: it has more than 65536 bytes"),
        (b"[1, 2]", "application/json", "not_json_lines", "application/jsonl"),
        (b"1\n", "", "not_json_lines", "application/octet-stream"),
        (b"1\n" * 101, JSONL, "too_many_items", "up to 100 items"),
    ],
)
def test_a_file_that_can_not_be_the_list_fails_the_map_before_any_job(  # noqa: PLR0917
    harness: WorkflowHarness, settings: Any, data: bytes, content_type: str, code: str, why: str
) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_map_items=100)
    run = ended(harness, data, content_type)
    node = Node.objects.get(run=run)
    assert (run.state, node.code) == (RunState.FAILED, code)
    assert why in node.detail
    assert not Job.objects.exists()


def test_a_file_of_another_tenant_is_not_there(harness: WorkflowHarness) -> None:
    artifact = upload(harness, lines(1), tenant_id=10**6)
    run = harness.to_end(harness.start(over(), ref(artifact.pk)))
    assert (run.state, Node.objects.get().code) == (RunState.FAILED, "artifact_gone")


@pytest.fixture
def long_lines(settings: Any) -> bytes:
    """Ten lines, of which a step reads three. Comes before `harness`, which reads them at the end, too."""
    length = STEP_BYTES // 3
    settings.DISPATCHER = replace(settings.DISPATCHER, workflow_line_bytes=2 * length)
    return lines(*({"n": number, "pad": "x" * length} for number in range(10)))


def test_reading_goes_on_where_it_was_after_a_crash(
    long_lines: bytes, harness: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies before and after the commit of each step."""
    artifact = upload(harness, long_lines)
    run = harness.start(over(), ref(artifact.pk))
    seen: list[int] = []
    while not MapState.objects.exists():
        with monkeypatch.context() as patch:
            patch.setattr(writes.Writes, "write", lambda self, now: (_ for _ in ()).throw(SystemExit))
            with pytest.raises(SystemExit):
                harness.advancer.advance(run.id)
        if seen:
            assert MapFile.objects.get().items == seen[-1], "nothing of a step that was not committed"
        harness.advancer.advance(run.id)  # … and the process dies here
        harness.woken.clear()
        EndNotice.objects.update(at=timezone.now() - timedelta(hours=1))
        assert EndNotice.objects.filter(followed_by=f"run:{run.id}").exists(), "a sweep finds the run"
        seen.append(MapFile.objects.get().items)
        assert len(seen) < 10, f"it does not come to its end: {seen}"
    assert seen == [0, 3, 6, 9, 10]
    unread_notices.sweep(harness.ports)
    harness.to_end(run)
    assert run.output == [[n, n] for n in range(10)]


def test_a_run_is_cancelled_while_its_file_is_read(long_lines: bytes, harness: WorkflowHarness) -> None:
    artifact = upload(harness, long_lines)
    run = harness.start(over(), ref(artifact.pk))
    harness.advancer.advance(run.id)
    harness.advancer.advance(run.id)
    pause_run(run.id, ports=harness.ports)
    harness.advance(run)
    assert MapFile.objects.get().items == 3, "a paused run reads no further"
    cancel_run(run.id, ports=harness.ports)
    harness.to_end(run)
    assert (run.state, states(run)) == (RunState.CANCELLED, {"all": "cancelled"})
    assert not Job.objects.exists()


@pytest.mark.database
def test_the_file_stays_while_the_run_lives(harness: WorkflowHarness) -> None:
    artifact = upload(harness, lines({"n": 1}, {"n": 2}))
    definition = over(ref(artifact.pk), max_parallel=1)
    run = harness.start(definition)
    harness.advancer.advance(run.id)
    assert ArtifactUse.objects.get().run == run.id
    Artifact.objects.update(expires_at=timezone.now() - timedelta(days=1))
    assert announce_unused(timezone.now(), 10) == 0
    with pytest.raises(InUse):
        remove_now(artifact.pk, harness.ports.artifact_store, timezone.now())
    assert harness.to_end(run).output == [[0, 1], [1, 2]]


def test_a_file_that_vanishes_meanwhile_fails_the_items_that_have_not_started(
    harness: WorkflowHarness,
) -> None:
    artifact = upload(harness, lines(*({"n": number} for number in range(4))))
    run = harness.start(over(max_parallel=1, fail_at=4), ref(artifact.pk))
    harness.until(run, lambda: Node.objects.filter(index=0).exists())
    harness.ports.artifact_store.remove(artifact.key)
    harness.to_end(run)
    assert Node.objects.filter(code="artifact_gone").count() == 3
    assert run.state == RunState.COMPLETED, "fewer than fail_at"
    harness.keeps_laws = False  # its items can't be read


@pytest.mark.database
def test_a_restart_runs_the_failed_lines_again(harness: WorkflowHarness) -> None:
    definition = over()
    definition["nodes"]["all"]["payload"] = {
        "fault": {"$ref": "item.fault", "default": None},
        "seconds": 0.001,
    }
    definition["nodes"]["all"]["map"]["fail_at"] = 2
    artifact = upload(harness, lines({}, {"fault": "fail"}, {}, {"fault": "fail"}))
    run = harness.to_end(harness.start({**definition, "output": None}, ref(artifact.pk)))
    assert run.state == RunState.FAILED
    restart_run(run.id, ports=harness.ports)
    harness.until(run, lambda: run.round == 2 and run.state == RunState.FAILED)
    assert sorted(
        Node.objects.filter(run=run, round=2).exclude(index=None).values_list("index", flat=True)
    ) == [*(1, 3)]


@pytest.mark.database
def test_items_of_all_groups_are_found(harness: WorkflowHarness) -> None:
    values = [{"n": number} for number in range(2 * GROUP + 2)]
    file = MapFile(artifact=upload(harness, lines(*values)).pk)
    read_on(file, harness.ports)
    assert (file.is_read, file.items, len(file.starts)) == (True, len(values), 3)
    wanted = [0, GROUP - 1, GROUP, 2 * GROUP, 2 * GROUP + 1]
    assert items_of(file, wanted, harness.ports) == {index: values[index] for index in wanted}
