"""The async pattern: the POST is answered with an id, the result is polled or pushed. (A server may still
answer with the result at once.)"""

from __future__ import annotations

from gpus.protocol import ModelSpec
from gpus.runners.base import Abort, Accepted, Finished, OptionRefused, RunRequest
from gpus.runners.http_runner import HttpRunner
from gpus.runners.json_body import Unreadable
from gpus.runners.transport import ResponseTooLarge


class AsyncHttpRunner(HttpRunner):
    name = "async"
    summary = "The answer to the POST names a run to poll; a server may push the result."
    is_polled = True
    tells_meanwhile = True
    answer_ends_run = True

    def start(self, run: RunRequest, *, abort: Abort) -> Finished | Accepted:
        try:
            return super().start(run, abort=abort)
        except (Unreadable, ResponseTooLarge) as error:
            error.suspect = True  # it may have been accepted all the same, under an id that we don't know
            raise

    @classmethod
    def check_options(cls, model: ModelSpec) -> None:
        if model.poll_endpoint_template is None:
            raise OptionRefused(
                "poll_endpoint_template",
                "poll_template_required",
                "An async model needs a poll_endpoint_template, as in /status/{id}.",
            )
        super().check_options(model)
