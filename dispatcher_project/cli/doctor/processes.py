"""Beat, sweeps, and workers for every queue that has something to serve."""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings

from dispatcher_project.cli.doctor.finding import Finding, Level, View
from dispatcher_project.cli.texts import age, plain
from foundation.texts import counted
from gpus.models import Server
from gpus.protocol import STARTED_HERE
from jobs.api.metrics import SET_A_TOKEN
from jobs.domain.states import JobState
from jobs.models import Job
from jobs.sweeps.base import TICK, sweep_ages
from jobs.sweeps.registry import Sweeps
from jobs.wakes import CALLBACKS_QUEUE, SWEEPS_QUEUE, queue_of

SILENT_SECONDS = 15.0
LATE_PERIODS = 5
"""A sweep that did not run for so many of its periods, and for a minute more, is stuck."""
LATE_SECONDS = 60.0


def metrics(view: View) -> Iterator[Finding]:
    token = settings.DISPATCHER.metrics_token
    if not token:
        yield Finding(
            Level.WARNING, "metrics", "/metrics answers nobody", "Prometheus reads nothing.", SET_A_TOKEN
        )
    else:
        who = "everybody" if token == "open" else "who sends its token"
        yield Finding(Level.OK, "metrics", f"/metrics answers {who}")


def web(view: View) -> Iterator[Finding]:
    url = settings.DISPATCHER.public_url
    try:
        status, body = view.web()
    except OSError as error:
        yield Finding(
            Level.WARNING,
            "web",
            f"does not answer at {url}: {plain(error, 120)}",
            "No job is accepted, and GPU servers can't push results; or only this host does not reach it.",
            "see that the web runs, and DISPATCHER_PUBLIC_URL",
        )
        return
    if status == 200:
        yield Finding(Level.OK, "web", f"is ready at {url}")
        return
    wrong = [name for name, check in dict(body.get("checks", {})).items() if not check.get("ok")]
    fleets = dict(body.get("checks", {})).get("redis", {}).get("fleets", {})
    wrong += [f"fleet {name}: {fleet.get('error')}" for name, fleet in fleets.items() if not fleet.get("ok")]
    degraded = body.get("status") == "degraded"
    yield Finding(
        Level.WARNING if degraded else Level.ERROR,
        "web",
        f"is {body.get('status', f'answering {status}')} at {url}: {plain(', '.join(wrong), 200)}",
        "Jobs are accepted, and none of these fleets starts." if degraded else "No job is accepted.",
        "see the findings above; each process reaches database and Redis by its own network",
    )


def beat(view: View) -> Iterator[Finding]:
    tick = sweep_ages(view.now).get(TICK)
    if tick is None or tick > SILENT_SECONDS:
        yield Finding(
            Level.ERROR,
            "beat",
            f"its last tick was {age(tick)} ago" if tick is not None else "it never ticked",
            "No repairs: lost workers are not noticed, retries and callbacks do not become due.",
            "see that `celery … beat` and `manage.py queue_worker --queues sweeps` run, and their logs",
        )
        return
    yield Finding(Level.OK, "beat", f"ticked {age(tick)} ago")
    yield from _late_sweeps(view)


def _late_sweeps(view: View) -> Iterator[Finding]:
    ages = sweep_ages(view.now)
    for name, entry in Sweeps().entries().items():
        passed = ages.get(name)
        if passed is not None and passed > LATE_PERIODS * entry.period_seconds + LATE_SECONDS:
            yield Finding(
                Level.ERROR,
                f"sweep {name}",
                f"last ended {age(passed)} ago, its period is {age(entry.period_seconds)}",
                f"What jobs/sweeps/{name}.py repairs stays broken.",
                "look for `sweep_failed` in the log of the sweeps worker; a restart of it does no harm",
            )


def workers(view: View) -> Iterator[Finding]:
    consumed = view.consumed()
    if consumed is None:
        yield Finding(
            Level.ERROR,
            "broker",
            "no worker answers through it",
            "Either the broker of BROKER_URL is away, or no worker runs: then nothing is started.",
            "see that the broker runs, and `manage.py gpu_worker`",
        )
        return
    names = sorted({worker for served in consumed.values() for worker in served})
    yield Finding(Level.OK, "workers", f"{counted(len(names), 'answers', 'answer')}: {', '.join(names)}")
    for queue in (SWEEPS_QUEUE, CALLBACKS_QUEUE):
        if queue not in consumed:
            yield _nobody(queue, Level.ERROR, f"`manage.py queue_worker --queues {queue}`")
    waiting = set(
        Job.objects.filter(state=JobState.QUEUED.value).order_by().values_list("pool", flat=True).distinct()
    )
    for pool, host in sorted(
        set(Server.objects.values_list("pool_id", "host")), key=lambda pair: (pair[0], pair[1] or "")
    ):
        queue = queue_of(pool, host)
        if queue not in consumed:
            level = Level.ERROR if pool in waiting else Level.WARNING
            yield _nobody(queue, level, _gpu_worker(pool, host))


def _gpu_worker(pool: str, host: str | None) -> str:
    """What would consume the queue of this pool and host again."""
    if not host:
        return "`manage.py gpu_worker`"
    # a worker with a GPU of its own is another host at each start: none can be started under the old name
    pinned = Server.objects.filter(
        pool=pool, host=host, placements__endpoint__startswith=f"{STARTED_HERE}://"
    ).first()
    if pinned is None:
        return f"`manage.py gpu_worker --host {host}`"
    where = f" on {pinned.machine}" if pinned.machine else " on its machine"
    return (
        f"its worker again{where} with the arguments that it had (`manage.py gpu_worker --gpu … --name "
        f"{pinned.name}`); or forget the server (`DELETE /api/v1/admin/servers/{pinned.name}`, or delete it "
        "on the admin's list of servers)"
    )


def _nobody(queue: str, level: Level, command: str) -> Finding:
    return Finding(
        level,
        f"queue {queue}",
        "no worker consumes it",
        "What it stands for is not done; in a GPU queue's case the pool's slots stay idle.",
        f"start {command}",
    )
