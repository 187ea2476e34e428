"""Decides from the seed which faults happen, when, and for how long."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from verification.simulation.artifact_faults import ArtifactFaults
from verification.simulation.callback_faults import DATABASE_AWAY, CallbackFaults
from verification.simulation.clock_faults import ClockFaults
from verification.simulation.operators import Operators
from verification.simulation.scheduler import Process
from verification.simulation.size import Size
from verification.simulation.store_faults import StoreFaults
from verification.simulation.version_faults import VersionFaults
from verification.simulation.workflow_faults import WorkflowFaults
from verification.simulation.world import WARM_UP_SECONDS, World

LEASE_SECONDS = 15.0
WEIGHTS = {
    "advancer_killed": 6,
    "advancer_paused": 4,
    "cut_from_redis": 2,
    "deploy": 2,
    "hints_lost_and_doubled": 3,
    "kill": 3,
    "kill_in_a_step": 4,
    "pause": 2,
    "pause_in_a_step": 3,
}
"""Faults that are more frequent than others (1)."""
CLOCKS = frozenset(
    {
        "callbacks_clock_steps",
        "clock_steps",
        "database_clock_steps",
        "redis_clock_steps",
        "redis_fails_over_to_another_clock",
    }
)
LASTING = CLOCKS | {
    "fleet_hangs",
    "layouts_change",
    "placement_removed",
    "redis_full",
    "secret_unreadable",
    "server_removed",
    "slow_sweeper",
    "tenants_capped",
}
"""Faults that only end by themselves."""
CLAIMS_GO_ON = frozenset(
    {
        "advancer_killed",
        "advancer_paused",
        "all_advancers_killed",
        "callbacks_clock_steps",
        "callbacks_killed",
        "clock_steps",
        "database_clock_steps",
        "definitions_changed",
        "deploy",
        "fewer_slots",
        "fleet_hangs",
        "gpu_hangs",
        "gpu_replies_lost",
        "gpu_restarts",
        "gpu_unreachable",
        "hints_lost_and_doubled",
        "kill",
        "kill_in_a_step",
        "model_paused",
        "moved_in_line",
        "placement_removed",
        "quota_cut",
        "receiver_is_sick",
        "receivers_hang",
        "redis_clock_steps",
        "redis_full",
        "secret_unreadable",
        "server_off",
        "server_removed",
        "slow_sweeper",
        "system_paused",
        "tenant_paused",
        "tenant_ruled",
        "tenants_capped",
    }
)
"""Faults under which free slots are claimed, dead leases judged and cancels ended as usual; after a kill,
once others had time to notice."""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault of the plan. at: virtual time in seconds."""

    at: float
    name: str


def make_plan(seed: int, size: Size) -> list[PlannedFault]:
    """Return the faults of a seed, by time."""
    chance = random.Random(f"{seed} nemesis")
    left_out = (OF_RUNS if not size.runs else frozenset()) | (OF_FILES if not size.files else frozenset())
    names = size.names or [name for name in FAULTS if name not in left_out]
    kinds = [name for name in sorted(names) for _ in range(WEIGHTS.get(name, 1))]
    planned = (
        PlannedFault(WARM_UP_SECONDS + 1.0 + chance.random() * size.fault_seconds, chance.choice(kinds))
        for _ in range(size.faults)
    )
    return sorted(planned, key=lambda one: one.at)


class Nemesis(ArtifactFaults, CallbackFaults, StoreFaults, VersionFaults, WorkflowFaults):
    """Carries out the faults. plan: of this seed, by `make_plan`."""

    def __init__(self, world: World, plan: list[PlannedFault]) -> None:
        super().__init__(world, random.Random(f"{world.seed} faults"))
        self._faults = world.active_faults
        self._disturbing = 0
        for planned in plan:
            world.scheduler.spawn(world.outside, partial(self._play, planned))

    def _play(self, planned: PlannedFault) -> None:
        world = self._world
        world.scheduler.sleep(planned.at)
        world.scheduler.note("NEMESIS", planned.name)
        disturbs = planned.name not in CLAIMS_GO_ON
        self._disturbing += disturbs
        lasts = planned.name in LASTING
        world.lasting += lasts
        if disturbs:
            world.disturbed_until = math.inf
        is_database_away = planned.name in DATABASE_AWAY
        world.database_away += is_database_away
        try:
            FAULTS[planned.name](self)
        finally:
            world.lasting -= lasts
            self._disturbing -= disturbs
            world.database_away -= is_database_away
            if is_database_away:
                world.database_back_at = world.scheduler.now
            if disturbs and not self._disturbing:
                world.disturbed_until = world.scheduler.now

    def _random_process(self) -> Process:
        """Return mostly a worker, which has the most to lose; if none is alive, an idle process."""
        world = self._world
        alive = [process for process in world.processes() if process.alive]
        workers = [role.process for role in world.workers if role.process.alive]
        if workers and self._chance.random() < 0.7:
            return self._chance.choice(workers)
        return self._chance.choice(alive or [world.web.process])

    def _start_successor(self, process: Process) -> None:
        world = self._world
        if process.name.startswith("web") and world.web.process is process:
            world.start_web()
        elif process.name.startswith("sweeps"):
            world.start_sweeper()
        elif process.name.startswith("worker"):
            world.start_worker()
        elif process.name.startswith("advancer"):
            world.advancers.start_successor()

    # -- processes -------------------------------------------------------------------------------------

    def kill(self) -> None:
        process = self._random_process()
        self._world.scheduler.kill(process)
        self._sleep(0.2, 25.0)
        self._start_successor(process)

    def kill_in_a_step(self) -> None:
        """Kill a process at a random point: between a call and its consequence."""
        process = self._random_process()
        process.dies_after = self._chance.randint(1, 40)
        until = self._world.scheduler.now + 10.0
        while process.alive and self._world.scheduler.now < until:
            self._world.scheduler.sleep(0.2)
        if process.alive:
            process.dies_after = 0
            return
        self._sleep(0.2, 10.0)
        self._start_successor(process)

    def pause(self) -> None:
        """Stop a process for longer than the lease, or for a moment."""
        process = self._random_process()
        self._world.scheduler.stop(process)
        self._sleep(0.5, 2.5 * LEASE_SECONDS)
        self._world.scheduler.resume(process)

    def pause_in_a_step(self) -> None:
        """Stop a process at a random point, for instance between a check of its lease and a request under
        it."""
        process = self._random_process()
        process.stops_after = self._chance.randint(1, 60)
        self._sleep(LEASE_SECONDS + 3.0, 2.5 * LEASE_SECONDS)
        process.stops_after = 0
        self._world.scheduler.resume(process)

    def deploy(self) -> None:
        """Stop a random worker in order, and start the next one."""
        role = self._chance.choice(self._world.workers)
        if role.process.alive and role.takes:
            role.stop()
            self._sleep(0.1, 5.0)
            self._world.start_worker()

    def cut_from_redis(self) -> None:
        """A process lives and works while its leases expire."""
        process = self._random_process()
        name = process.name
        self._world.scheduler.mark_disturbed(process)
        self._faults.cut_from_redis.add(name)
        self._sleep(2.0, 3.0 * LEASE_SECONDS)
        self._faults.cut_from_redis.discard(name)

    def cut_from_database(self) -> None:
        """Cut a random process off from the database for up to two lease times."""
        process = self._random_process()
        name = process.name
        self._world.scheduler.mark_disturbed(process)
        self._faults.cut_from_database.add(name)
        self._sleep(2.0, 2.0 * LEASE_SECONDS)
        self._faults.cut_from_database.discard(name)

    def second_sweeper(self) -> None:
        """Run a second sweeper beside the first one for a while."""
        world = self._world
        world.start_sweeper()
        role = world.sweepers[-1]
        self._sleep(10.0, 40.0)
        world.scheduler.kill(role.process)
        if not any(other.process.alive for other in world.sweepers):
            world.start_sweeper()

    def beat_down(self) -> None:
        """Stop beat for a while, so that no sweep is triggered."""
        self._world.beat_is_up = False
        self._sleep(2.0, 30.0)
        self._world.beat_is_up = True

    # -- Redis -----------------------------------------------------------------------------------------

    def redis_flushed(self) -> None:
        """Delete all keys of Redis."""
        self._world.redis.flush()

    def redis_restarted_empty(self) -> None:
        """Restart Redis without its data."""
        self._faults.redis_refuses = True
        self._sleep(0.1, 5.0)
        self._world.redis.restart(empty=True)
        self._faults.redis_refuses = False

    def redis_restarted(self) -> None:
        """Restart Redis with its data."""
        self._faults.redis_refuses = True
        self._sleep(0.1, 5.0)
        self._world.redis.restart(empty=False)
        self._faults.redis_refuses = False

    def redis_fails_over(self) -> None:
        """The last seconds of writes are lost."""
        self._world.redis.save()
        self._sleep(0.05, 6.0)
        self._world.redis.fail_over()

    def redis_refuses(self) -> None:
        """Let Redis refuse connections for a while."""
        self._faults.redis_refuses = True
        self._sleep(0.5, 20.0)
        self._faults.redis_refuses = False

    def redis_silent(self) -> None:
        """Let calls to Redis hang for a while."""
        self._faults.redis_silent = True
        self._sleep(0.5, 30.0)
        self._faults.redis_silent = False

    def redis_replies_lost(self) -> None:
        """Lose one in ten replies of Redis for a while; the calls take effect."""
        self._faults.redis_reply_lost = 0.1
        self._sleep(2.0, 20.0)
        self._faults.redis_reply_lost = 0.0

    def redis_calls_doubled(self) -> None:
        """Run three in ten calls to Redis twice for a while."""
        self._faults.redis_call_doubled = 0.3
        self._sleep(5.0, 30.0)
        self._faults.redis_call_doubled = 0.0

    # -- GPU servers -----------------------------------------------------------------------------------

    def gpu_restarts(self) -> None:
        """Kill a random GPU server, and start it again."""
        server = self._world.servers[self._server()]
        if server.up:
            server.die()
            self._sleep(0.1, 8.0)
            if not server.up:
                server.start()

    def gpu_hangs(self) -> None:
        """Let a random GPU server hang for a while."""
        name = self._server()
        self._faults.hung.add(name)
        self._sleep(1.0, 25.0)
        self._faults.hung.discard(name)

    def gpu_unreachable(self) -> None:
        """Cut a random GPU server off for a while; its runs continue."""
        name = self._server()
        self._faults.unreachable.add(name)
        self._sleep(1.0, 25.0)
        self._faults.unreachable.discard(name)

    def gpu_replies_lost(self) -> None:
        """Lose one in five replies of GPU servers for a while."""
        self._faults.http_reply_lost = 0.2
        self._sleep(1.0, 15.0)
        self._faults.http_reply_lost = 0.0

    # -- database and broker ---------------------------------------------------------------------------

    def database_down(self) -> None:
        """Make the database unavailable to all processes for a while."""
        self._faults.database_down = True
        self._sleep(0.5, 20.0)
        self._faults.database_down = False

    def commit_replies_lost(self) -> None:
        """Lose the replies to three in ten commits for a while; the commits take effect."""
        self._faults.commit_reply_lost = 0.3
        self._sleep(1.0, 15.0)
        self._faults.commit_reply_lost = 0.0

    def commits_fail(self) -> None:
        """The database answers, but every commit fails."""
        self._faults.commit_fails = self._chance.choice([0.3, 1.0])
        self._sleep(1.0, 10.0)
        self._faults.commit_fails = 0.0

    def broker_down(self) -> None:
        """Make the broker unavailable for a while."""
        self._faults.broker_down = True
        self._sleep(1.0, 20.0)
        self._faults.broker_down = False

    def wakes_lost_and_doubled(self) -> None:
        """Lose three in ten wakes, and send three in ten twice, for a while."""
        self._faults.wake_lost, self._faults.wake_doubled = 0.3, 0.3
        self._sleep(5.0, 30.0)
        self._faults.wake_lost = self._faults.wake_doubled = 0.0


FAULTS: dict[str, Callable[[Nemesis], None]] = {
    name: function
    for kind in (
        Operators,
        ArtifactFaults,
        ClockFaults,
        CallbackFaults,
        StoreFaults,
        VersionFaults,
        WorkflowFaults,
        Nemesis,
    )
    for name, function in vars(kind).items()
    if not name.startswith("_") and callable(function)
}
OF_RUNS = frozenset(name for name in vars(WorkflowFaults) if not name.startswith("_"))
"""Faults that only worlds with runs of workflows have."""
OF_FILES = frozenset(name for name in vars(ArtifactFaults) if not name.startswith("_"))
"""Faults that only worlds with files have."""
