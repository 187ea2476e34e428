"""Every fault by name, in the order of a trial.

No process is hit twice within a minute: its supervisor would consider it faulty, and wait longer and longer
before each restart."""

from __future__ import annotations

from collections.abc import Mapping

from verification.proving.faults.base import Fault
from verification.proving.faults.clocks import (
    BeatBehind,
    CallbacksBehind,
    RedisAhead,
    RedisBack,
    SweepsAhead,
    WorkersAhead,
)
from verification.proving.faults.cluster import MoveSlot
from verification.proving.faults.database import (
    DatabaseDown,
    DiskFull,
    FailoverPostgresql,
    KillPostgresql,
    LockDatabase,
)
from verification.proving.faults.fleet import (
    HangServer,
    LateServer,
    LyingServer,
    PartitionServer,
    RestartServer,
)
from verification.proving.faults.folder import FullFolder, KillWriter, StopWriter
from verification.proving.faults.others import ReceiverDown
from verification.proving.faults.processes import (
    KillBeat,
    KillCallbacks,
    KillSweeps,
    KillWeb,
    KillWorker,
    StopBeat,
    StopCallbacks,
    StopSweeps,
    StopWeb,
    StopWorker,
    TermBeat,
    TermCallbacks,
    TermSweeps,
    TermWeb,
    TermWorker,
)
from verification.proving.faults.redis import (
    BlackHole,
    CutConnections,
    EmptyValkey,
    Flush,
    FullValkey,
    KillValkey,
    StopValkey,
)
from verification.proving.faults.sentinel import (
    HangMaster,
    KillMaster,
    PartitionMaster,
    PauseMaster,
    PromoteStale,
)
from verification.proving.faults.store import (
    STORE_MOMENTS,
    CutStore,
    FullStore,
    KillStore,
    SlowStore,
    StopStore,
)
from verification.proving.faults.workflows import KillWorkflows

_ORDER: tuple[type[Fault], ...] = (
    KillWorker,
    KillBeat,
    ReceiverDown,
    KillWeb,
    CutConnections,
    KillCallbacks,
    RestartServer,
    KillSweeps,
    KillValkey,
    StopWorker,
    TermBeat,
    HangServer,
    StopWeb,
    EmptyValkey,
    StopCallbacks,
    TermWorker,
    BlackHole,
    StopSweeps,
    KillWorkflows,
    PartitionServer,
    TermWeb,
    LockDatabase,
    DatabaseDown,
    KillPostgresql,
    StopBeat,
    FailoverPostgresql,
    LateServer,
    TermCallbacks,
    LyingServer,
    DiskFull,
    TermSweeps,
    WorkersAhead,
    FullValkey,
    RedisBack,
    CallbacksBehind,
    StopValkey,
    BeatBehind,
    RedisAhead,
    SweepsAhead,
    PauseMaster,
    KillMaster,
    HangMaster,
    PartitionMaster,
    PromoteStale,
    MoveSlot,
    KillStore,
    SlowStore,
    StopStore,
    CutStore,
    FullStore,
    *STORE_MOMENTS,
    StopWriter,
    FullFolder,
    KillWriter,
    Flush,
)
FAULTS: Mapping[str, type[Fault]] = {fault.name: fault for fault in _ORDER}
