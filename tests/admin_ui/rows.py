"""Creates rows of every model for the admin's pages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from foundation.ids import new_id
from gpus.models import (
    AuditEntry,
    ConfigVersion,
    FleetIndex,
    ModelConfig,
    Pause,
    Placement,
    Pool,
    Process,
    QuarantinedSlot,
    Server,
)
from jobs.domain.states import JobState
from jobs.models import (
    ApiKey,
    Attempt,
    Callback,
    CallbackTry,
    EndNotice,
    Event,
    IdempotencyKey,
    Job,
    JobTag,
    PurgeLedger,
    PushedResult,
    ReceiverCircuit,
    Rollup,
    SignInFailure,
    SweepRun,
    TagUsage,
    Tally,
    Tenant,
    WorkerSign,
)
from workflows.models import (
    CachedOutput,
    MapChunk,
    MapFile,
    MapState,
    Node,
    Run,
    RunEvent,
    RunTag,
    SentSignal,
    Version,
    Wait,
    Workflow,
)
from workflows.schedules.models import Firing, Schedule

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
STATES = [
    JobState.QUEUED,
    JobState.RUNNING,
    JobState.RETRYING,
    JobState.COMPLETED,
    JobState.FAILED,
    JobState.CANCELLED,
]


def fill(*, jobs: int) -> None:
    """Create at least one row of every model, and `jobs` jobs with their attempts, events and callbacks."""
    tenants = [Tenant.objects.create(name=name) for name in ("acme", "globex", "initech")]
    for tenant in tenants:
        ApiKey.objects.create_key(tenant=tenant, name=f"{tenant.name} key")
    for number, name in enumerate(("zimg", "flux", "trellis", "ltx2")):
        pool = Pool.objects.create(name=name)
        config = ModelConfig.objects.create(name=name, pool=pool)
        for index in (1, 2):
            server = Server.objects.create(
                name=f"{name}-server-{index}", pool=pool, slots=2, healthy=index == 1, checked_at=NOW
            )
            Placement.objects.create(
                server=server, model=config, endpoint=f"http://10.0.{number}.{index}/generate"
            )
    QuarantinedSlot.objects.create(
        server=server, slot=1, reason="timeout", since=NOW, until=NOW + timedelta(hours=1), job_id=new_id()
    )
    rows = [_job(number, tenants[number % 3]) for number in range(jobs)]
    Job.objects.bulk_create(rows)
    done = [row for row in rows if row.state in (JobState.COMPLETED, JobState.FAILED)]
    Attempt.objects.bulk_create(
        Attempt(
            id=new_id(),
            job=row,
            number=number,
            state="completed" if row.state == JobState.COMPLETED and number == 3 else "failed",
            server=f"{row.model}-server-1",
            slot=0,
            model=row.model,
            error_code="" if row.state == JobState.COMPLETED and number == 3 else "timeout",
            started_at=NOW,
            finished_at=NOW + timedelta(seconds=21),
        )
        for row in done
        for number in (1, 2, 3)
    )
    Event.objects.bulk_create(
        Event(job=row, seq=seq, type=event, at=NOW, data={"n": seq})
        for row in rows
        for seq, event in ((1, "queued"), (2, "started"))
    )
    callbacks = [
        Callback(
            id=f"msg_{new_id()}",
            job=row,
            url="https://hooks.example.com/gpu",
            body=f'{{"job_id":"{row.id}"}}',
            state="gave_up",
            tries=10,
            created_at=NOW,
        )
        for row in done
    ]
    Callback.objects.bulk_create(callbacks)
    CallbackTry.objects.bulk_create(
        CallbackTry(callback=row, number=1, at=NOW, status_code=500, error="HTTP 500") for row in callbacks
    )
    ReceiverCircuit.objects.create(
        tenant=tenants[0],
        receiver="hooks.example.com:443",
        failures=3,
        failing_since=NOW,
        failed_at=NOW,
        last_error="silent",
    )
    JobTag.objects.bulk_create(JobTag(job=row, tag="night") for row in rows[:50])
    IdempotencyKey.objects.create(tenant=tenants[0], key="order-7", fingerprint="f" * 64, job=rows[0])
    PushedResult.objects.create(
        attempt_id=new_id(), job_id=rows[0].id, body={"status": "success"}, received_at=NOW
    )
    Tally.objects.create(name="zombie_results", count=3)
    TagUsage.objects.create(day=NOW.date(), tenant=tenants[0], tag="night", completed=3, gpu_seconds=1.5)
    Rollup.objects.create(span_seconds=60, at=NOW, model="zimg", tenant=tenants[0], completed=3)
    SweepRun.objects.create(name="expired_leases", at=NOW)
    WorkerSign.objects.create(worker="gpu-host:1:abc", at=NOW)
    SignInFailure.objects.create(address="203.0.113.7", account="0" * 64, count=2, last_at=NOW)
    Process.objects.create(name="gpu-host:1:abc", kind="gpu", layout=6, started_at=NOW, beat_at=NOW)
    FleetIndex.objects.create(fleet="main")
    ConfigVersion.objects.create(
        model=config,
        number=1,
        at=NOW,
        actor="user:boss",
        fields={"cancel_endpoint_template": "/cancel/" + "x" * 60},
    )
    AuditEntry.objects.create(
        at=NOW,
        actor="user:boss",
        action="cancel_job",
        target="job:x",
        detail={"endpoint": "http://127.0.0.1:9004/" + "x" * 60},
    )
    Pause.objects.create(kind="model", name="retired", since=NOW, actor="user:boss")
    PurgeLedger.objects.create(tenant=tenants[0], state="completed", count=7)
    _fill_workflows(tenants[0])
    _fill_schedules(tenants[0])


def _fill_workflows(tenant: Tenant) -> None:
    workflow = Workflow.objects.create(tenant=tenant, name="film", latest=1)
    version = Version.objects.create(
        workflow=workflow,
        number=1,
        created_at=NOW,
        spec={"nodes": {"best": {"human": {"title": "Which?", "choose_from": [1, 2]}}}},
    )
    run = Run.objects.create(
        version=version, tenant=tenant, node_states={"best": "running"}, place_us=1, created_at=NOW
    )
    node = Node.objects.create(
        run=run, key="best", base="best", kind="human", state="running", started_at=NOW
    )
    Wait.objects.create(node=node, kind="human", options={"title": "Which?", "choose_from": [1, 2]})
    MapState.objects.create(node=node, total=1)
    CachedOutput.objects.create(key="c" * 64, tenant=tenant, job_id=new_id(), expires_at=NOW)
    MapChunk.objects.create(node=node, first=0, items=[1])
    MapFile.objects.create(node=node, artifact=new_id(), items=1, line=1, is_read=True)
    RunEvent.objects.create(run=run, seq=1, type="started", at=NOW)
    RunTag.objects.create(run=run, tenant=tenant, tag="night")
    SentSignal.objects.create(tenant=tenant, key="paid-7", fingerprint="f" * 64, taken=1, sent_at=NOW)
    EndNotice.objects.create(followed_by=f"run:{run.id}", ended_id=node.id, state="completed", at=NOW)


def _fill_schedules(tenant: Tenant) -> None:
    schedule = Schedule.objects.create(
        tenant=tenant,
        name="nightly",
        cron="30 2 * * *",
        timezone="Europe/Berlin",
        anchor_at=NOW,
        target={"submit": {"model": "zimg", "payload": {"prompt": "a <b>fox</b>"}}},
        handled_at=NOW,
        next_due_at=NOW,
        created_at=NOW,
        updated_at=NOW,
    )
    Firing.objects.create(schedule=schedule, due_at=NOW, outcome="missed", reason="late", count=3, at=NOW)
    Firing.objects.create(schedule=schedule, due_at=NOW, backfill="1", outcome="waiting", at=NOW)
    Firing.objects.create(
        schedule=schedule, due_at=NOW, backfill="2", outcome="started", run_id=new_id(), at=NOW
    )


def _job(number: int, tenant: Tenant) -> Job:
    state = STATES[number % len(STATES)]
    over = state in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
    failed = state == JobState.FAILED
    created = NOW + timedelta(seconds=number)
    return Job(
        id=new_id(created.timestamp()),
        tenant=tenant,
        model=("zimg", "flux", "trellis", "ltx2")[number % 4],
        pool=("zimg", "flux", "trellis", "ltx2")[number % 4],
        payload={"prompt": f"a sunset <b>{number}</b>", "steps": 30},
        tags=["night"],
        metadata={"order": number},
        callback_url="https://hooks.example.com/gpu",
        state=state,
        error_code="timeout" if failed else "",
        error_message="The run took longer than its model allows." if failed else "",
        result={"url": "s3://image.png"} if state == JobState.COMPLETED else None,
        live_attempt=new_id() if state == JobState.RUNNING else None,
        place_us=number,
        created_at=created,
        started_at=created + timedelta(seconds=3) if over else None,
        finished_at=created + timedelta(seconds=24) if over else None,
        due_at=NOW if state == JobState.RETRYING else None,
        attempts_made=3 if over else 0,
        event_seq=2,
    )
