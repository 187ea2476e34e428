"""Runs on this machine's own GPU: the model is in a process beside us, and no HTTP is spoken."""

from __future__ import annotations

import json
from collections.abc import Mapping

from gpu_host.local.gpu import LocalGpu
from gpu_host.local.orders import Order, Stopped
from gpus.errors import RunFailed
from gpus.runners.base import Abort, Finished, PollFailed, RunRequest, StillRunning
from gpus.runners.json_body import check_storable


class LocalRunner:
    """`gpus.runners.base.Runner` over a `LocalGpu`. The run limit counts from when the model is loaded."""

    is_polled = False
    is_pushed = False
    is_pinned = True
    tells_meanwhile = False
    answer_ends_run = False

    def __init__(self, gpu: LocalGpu) -> None:
        self._gpu = gpu

    def start(self, run: RunRequest, *, abort: Abort) -> Finished:
        result = self._gpu.run(
            Order(
                attempt=run.attempt_id,
                job=run.job_id,
                model=run.model.name,
                payload=run.payload,
                limit_seconds=min(run.model.run_limit_seconds, run.limit_seconds),
                max_result_bytes=run.model.max_response_bytes,
                tell=run.tell,
            ),
            abort,
        )
        size = len(json.dumps(result, separators=(",", ":")))
        if size > run.model.max_response_bytes:
            raise RunFailed(f"The result has {size} bytes, {run.model.max_response_bytes} at most.")
        check_storable(result)
        return Finished(result)

    def poll(self, run: RunRequest, remote_id: str, *, abort: Abort) -> Finished | StillRunning:
        raise PollFailed("A run on this machine has no remote id.", gone=True)

    def cancel(self, run: RunRequest, remote_id: str | None) -> bool:
        """What does not heed the cancel is killed with its process. False: that is not gone."""
        return self._gpu.stop_run(run.attempt_id) is not Stopped.NOT_GONE

    def read_pushed(self, run: RunRequest, body: Mapping[str, object]) -> Finished | StillRunning:
        return StillRunning()
