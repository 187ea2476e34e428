"""The async pattern: the POST is answered with an id, the result is polled or pushed. (A server may still
answer with the result at once.)"""

from __future__ import annotations

from gpus.runners.base import Abort, Accepted, Finished, RunRequest
from gpus.runners.http_runner import HttpRunner
from gpus.runners.json_body import Unreadable
from gpus.runners.transport import ResponseTooLarge


class AsyncHttpRunner(HttpRunner):
    tells_meanwhile = True
    answer_ends_run = True

    def start(self, run: RunRequest, *, abort: Abort) -> Finished | Accepted:
        try:
            return super().start(run, abort=abort)
        except (Unreadable, ResponseTooLarge) as error:
            error.suspect = True  # it may have been accepted all the same, under an id that we don't know
            raise
