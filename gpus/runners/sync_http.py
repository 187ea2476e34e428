"""The sync pattern: the answer to the POST is the result. (A server may still answer `processing`, if the
model says where to poll.)"""

from __future__ import annotations

from gpus.runners.base import Abort, Accepted, Finished, RunRequest
from gpus.runners.http_runner import HttpRunner
from gpus.runners.json_body import Unreadable


class SyncHttpRunner(HttpRunner):
    name = "sync"
    summary = "The answer to the POST is the result."
    tells_meanwhile = True
    answer_ends_run = True

    def start(self, run: RunRequest, *, abort: Abort) -> Finished | Accepted:
        outcome = super().start(run, abort=abort)
        if isinstance(outcome, Accepted) and not run.model.poll_endpoint_template:
            error = Unreadable("The server works on it, and the model has no poll_endpoint_template.")
            error.suspect = True
            raise error
        return outcome
