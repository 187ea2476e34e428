"""The end of a run: its release in Redis, and the row that is written for it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpus.errors import ConnectFailed, GpuBusy
from gpus.leasing.contract import Leases
from gpus.protocol import Lease, ModelSpec, ReleaseMode
from jobs.domain.retry import verdict_of
from jobs.execution import after_commit
from jobs.execution.run_steps import Over
from jobs.execution.worker_state import WorkerState
from jobs.transitions import End, Start, StartOutcome


@dataclass(frozen=True, slots=True)
class RunEnd:
    """max_retries: of its job. seconds: that the run took. at: when it was over. started: the commit of its
    start; None: another worker's."""

    leases: Leases
    lease: Lease
    spec: ModelSpec
    max_retries: int | None
    over: Over
    seconds: float
    at: datetime
    started: Future[StartOutcome] | None = None

    @property
    def charge_seconds(self) -> float:
        ending = self.over.ending
        was_refused = isinstance(ending.error, (GpuBusy, ConnectFailed)) or not ending.sent
        return 0.0 if was_refused else self.seconds

    @property
    def _started_at(self) -> datetime:
        return self.at - timedelta(seconds=self.seconds)

    def release(
        self, worker: WorkerState, *, next_attempt_id: str | None, begun: Lease | None = None
    ) -> Lease | None:
        """Release the slot and, under `next_attempt_id`, claim the next ticket for it, which is returned.
        begun: the prefetched lease that runs there already; the next ticket follows it."""
        lease, ending = self.lease, self.over.ending
        return worker.completion.release(
            self.leases,
            lease,
            ReleaseMode.SUSPECT if ending.suspect else ReleaseMode.SETTLE,
            gpu_seconds=self.charge_seconds,
            next_attempt_id=next_attempt_id,
            rest_seconds=worker.backoff.after_answer(lease.server, ending.error),
            verdict=verdict_of(ending),
            warm=worker.warm() if next_attempt_id else None,
            begun=begun,
        )

    def write(self, worker: WorkerState, *, gather: bool) -> None:
        """After the release: a crash in between leaves a settling lease that the sweep ends. gather: a start
        will be written together with it."""
        lease = self.lease
        end = End(
            job_id=lease.job_id,
            attempt_id=lease.attempt_id,
            epoch=lease.epoch,
            slot=lease.slot,
            ending=self.over.ending,
            policy=after_commit.policy_for(self.spec, self.max_retries),
            at=self.at,
            result=self.over.result,
            gpu_seconds=self.charge_seconds,
            run_limit_seconds=self.spec.run_limit_seconds,
            evidence=self.over.evidence,
            usage=self.over.usage,
            refused_url=self.over.refused_url,
            start=Start(
                lease.job_id, lease.attempt_id, lease.slot, lease.model, worker.name, self._started_at
            ),
        )
        worker.completion.write_end(self.leases, lease, end, gather=gather, started=self.started)
