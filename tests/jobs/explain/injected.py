"""Causes of waiting, produced by the real services on a real queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from django.db import transaction

from gpus.errors import Verdict
from gpus.models import ModelConfig, Pause, Server
from gpus.protocol import DesiredState, PoolSpec, QueueAlgorithm, ReleaseMode, TenantSpec
from gpus.registry.controls import pause, switch_server
from gpus.registry.index_sync import mirror_registry
from gpus.registry.queries import rows_changed
from jobs import transitions
from jobs.explain.snapshot import Reason
from jobs.limits import gpu_seconds
from jobs.limits.submit_limits import admit
from jobs.models import Job
from tests.jobs.explain.scene import WORKER, Scene
from tests.support.factories import make_running
from tests.support.fakes import AbsentLeases


def no_server(scene: Scene) -> Job:
    for server in scene.servers:
        scene.leases.forget_server(server.name)
        server.delete()
    scene.some_ahead()
    return scene.job()


def switched(desired: DesiredState) -> Callable[[Scene], Job]:
    def inject(scene: Scene) -> Job:
        for server in scene.servers:
            switch_server(server.name, desired, by="t", leases=scene.ports.leases)
        scene.some_ahead()
        return scene.job()

    return inject


def paused(kind: Pause.Kind) -> Callable[[Scene], Job]:
    def inject(scene: Scene) -> Job:
        if scene.chance.random() < 0.5:
            scene.fill_slots()
        name = {"model": scene.model.name, "tenant": str(scene.tenant.pk), "system": ""}[kind.value]
        pause(kind, name, by="t", leases=scene.ports.leases)
        scene.some_ahead()
        return scene.job()

    return inject


def resting(scene: Scene) -> Job:
    for server in scene.servers:
        scene.leases.rest_server(server.name, scene.chance.uniform(1, 60))
    return scene.job()


def quarantined(scene: Scene) -> Job:
    for lease in scene.fill_slots():
        scene.leases.release(lease.ref, ReleaseMode.SUSPECT, worker=WORKER, gpu_seconds=1.0)
    return scene.job()


def lost_server(scene: Scene) -> Job:
    """A server that is lost with its runs: it is unknown whether they ended."""
    job = quarantined(scene)
    Server.objects.filter(name__in=[server.name for server in scene.servers]).update(healthy=False)
    return job


def between_tries(scene: Scene) -> Job:
    """The ticket is queued now; workers did not claim while the queue was empty."""
    job = scene.job()
    lease = scene.ask()
    assert lease is not None
    scene.end(lease)
    make_running(job, slot=lease.slot, at=scene.clock.now())
    Job.objects.filter(id=job.id).update(state="retrying", live_attempt=None, due_at=scene.clock.now())
    scene.clock.move(scene.chance.uniform(11, 1000))
    with transaction.atomic():
        assert transitions.queue_retry(job.id, scene.clock.now())
    scene.leases.push(scene.pool.name, [job.ticket])
    return job


def server_circuit(scene: Scene) -> Job:
    for _ in range(60):
        scene.tickets(1, of=scene.rival)
        lease = scene.ask()
        if lease is None:
            break
        scene.end(lease, Verdict.SERVER)
    return scene.job()


def model_circuit(scene: Scene) -> Job:
    for _ in range(40):
        scene.tickets(1, of=scene.rival)
        lease = scene.ask()
        if lease is None:
            break
        scene.end(lease, Verdict.MODEL)
        for server in scene.servers:  # so that another server is used, too
            if server.name == lease.server and len(scene.servers) > 1:
                scene.leases.rest_server(server.name, 0.05)
        scene.clock.move(0.02)
    scene.clock.move(0.1)
    if scene.chance.random() < 0.5:
        scene.tickets(1, of=scene.rival, model=scene.other.name)
        scene.ask()
    return scene.job()


def later_start(scene: Scene) -> Job:
    if scene.chance.random() < 0.5:
        scene.fill_slots()
    job = scene.job()
    scene.leases.remove(scene.pool.name, job.ticket)
    due = scene.clock.now() + timedelta(seconds=scene.chance.uniform(1, 500))
    Job.objects.filter(id=job.id).update(state="retrying", due_at=due, attempts_made=1)
    return job


def run_at(scene: Scene) -> Job:
    at = scene.clock.now() + timedelta(seconds=scene.chance.uniform(1, 500))
    job = scene.job()
    scene.leases.remove(scene.pool.name, job.ticket)
    Job.objects.filter(id=job.id).update(state="scheduled", run_at=at)
    return job


def all_busy(scene: Scene) -> Job:
    scene.fill_slots()
    return scene.job()


def behind(scene: Scene) -> Job:
    scene.fill_slots()
    scene.tickets(scene.chance.randint(2, 30), of=scene.tenant)
    return scene.job(priority=5)


def lower_share(scene: Scene) -> Job:
    """The tenant ran a long job while the other tenant waited."""
    scene.tickets(1, of=scene.tenant, model=scene.other.name)
    long = scene.ask()
    assert long is not None
    scene.fill_slots_but_one()
    scene.tickets(scene.chance.randint(3, 9), of=scene.rival)
    scene.end(long, seconds=200.0)
    assert scene.ask()  # of the other tenant
    return scene.job(priority=5)


def no_worker(scene: Scene) -> Job:
    job = scene.job()
    scene.clock.move(scene.chance.uniform(11, 1000))
    return job


def capped(scene: Scene) -> Job:
    """The tenant is at max_running: that many of its jobs hold a slot."""
    scene.tickets(1, of=scene.tenant, model=scene.chance.choice((scene.model.name, scene.other.name)))
    assert scene.ask()
    if scene.chance.random() < 0.5:
        scene.fill_slots_but_one()
    scene.leases.set_tenants([TenantSpec(str(scene.tenant.pk), max_running=1)])
    return scene.job()


def over_quota(scene: Scene) -> Job:
    """The quota of the day is used up, and the sweep has parked the tenant."""
    scene.use_up_the_day()
    if scene.chance.random() < 0.5:
        scene.fill_slots()
    exhausted = gpu_seconds.exhausted(scene.clock.now())
    assert scene.tenant.pk in exhausted
    gpu_seconds.park_exhausted(scene.name, scene.leases, exhausted)
    return scene.job()


def unhealthy(scene: Scene) -> Job:
    """All servers failed their last health check but are still in the index."""
    if scene.chance.random() < 0.5:
        scene.some_ahead()
    scene.pool.servers.update(healthy=False)
    return scene.job()


# -- jobs that are not submitted
# ------------------------------------------------------------------------------------------


def over_quota_at_submit(scene: Scene) -> None:
    scene.use_up_the_day()
    scene.some_ahead()


def too_fast(scene: Scene) -> None:
    scene.limit(submits_per_second=scene.chance.uniform(0.01, 2), submit_burst=scene.chance.randint(1, 5))
    while admit(scene.tenant.pk, 1, scene.ports).refused is None:
        pass
    scene.some_ahead()


def queue_full(scene: Scene) -> None:
    count = scene.chance.randint(1, 9)
    for _ in range(count):
        scene.job()
    if scene.chance.random() < 0.5:
        scene.limit(max_queued=count)
    else:
        scene.model.max_queued = count
        scene.model.save()


def rebuilding(scene: Scene) -> Job:
    job = scene.job()
    assert scene.leases.begin_rebuild("scene")
    if scene.chance.random() < 0.5:
        scene.leases.wipe("scene")
    return job


def away(scene: Scene) -> Job:
    job = scene.job()
    scene.ports = replace(scene.ports, leases=lambda fleet: AbsentLeases())
    return job


def warm_first(scene: Scene) -> Job:
    """The job is next, but a freed slot stays with its loaded model."""
    scene.tickets(2 * scene.slots, of=scene.rival, model=scene.other.name)
    leases = [scene.ask() for _ in range(scene.slots)]
    job = scene.job()
    for lease in leases[: scene.chance.randint(1, min(scene.slots, 7))]:
        assert lease
        scene.hand_on(lease)
    return job


def fifo_behind(scene: Scene) -> Job:
    scene.leases.configure_pool(PoolSpec(scene.pool.name, QueueAlgorithm.FIFO))
    return behind(scene)


def no_runner(scene: Scene) -> Job:
    """The package of the runner was removed; the registry is written to Redis again."""
    ModelConfig.objects.filter(name=scene.model.name).update(model_type="gone")
    rows_changed.send(None)
    mirror_registry(scene.leases, fleet=scene.name)
    return scene.job()


CAUSES: dict[str, tuple[str, Callable[[Scene], Job | None]]] = {
    "no_server": ("no_server", no_server),
    "no_runner": ("no_runner", no_runner),
    "off": ("servers_off", switched(DesiredState.OFF)),
    "draining": ("draining", switched(DesiredState.DRAINING)),
    "system_paused": ("system_paused", paused(Pause.Kind.SYSTEM)),
    "model_paused": ("model_paused", paused(Pause.Kind.MODEL)),
    "tenant_paused": ("tenant_paused", paused(Pause.Kind.TENANT)),
    "resting": ("resting", resting),
    "quarantined": ("quarantined", quarantined),
    "server_circuit": ("circuit_open", server_circuit),
    "model_circuit": ("circuit_open", model_circuit),
    "later_start": ("later_start", later_start),
    "run_at": ("later_start", run_at),
    "all_busy": ("all_busy", all_busy),
    "behind": ("behind", behind),
    "fifo_behind": ("behind", fifo_behind),
    "warm_first": ("passed_over", warm_first),
    "lower_share": ("lower_share", lower_share),
    "no_worker": ("no_worker", no_worker),
    "between_tries": ("next", between_tries),
    "tenant_cap": ("tenant_cap", capped),
    "quota": ("quota", over_quota),
    "unhealthy": ("no_healthy_server", unhealthy),
    "quota_at_submit": ("quota", over_quota_at_submit),
    "rate": ("rate", too_fast),
    "queue_full": ("queue_full", queue_full),
    "index_rebuilding": ("index_rebuilding", rebuilding),
    "index_away": ("index_away", away),
}
"""By name: the code that must come first, and what brings it about; without a job: of one that is only
thought of."""


def first_reason(scene: Scene, inject: Callable[[Scene], Job | None]) -> Reason:
    job = inject(scene)
    return (scene.explain(job) if job is not None else scene.estimate()).reasons[0]
