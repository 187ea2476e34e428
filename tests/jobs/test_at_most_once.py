"""A model that allows one run only, on an LLM server whose connection broke: it is not run again.

Through what really raises the error, up to the decision.
"""

from __future__ import annotations

import pytest

from gpu_host.handlers import RunContext
from gpu_host.handlers.errors import failure_of
from gpu_host.llm_servers.declared import LlmServerConfig
from gpu_host.llm_servers.server import LlmServer as Cotenanted
from gpu_host.local.orders import error_of
from gpus.errors import GpuError, ServerLost
from jobs.domain.errors import LOST_AT_MOST_ONCE
from jobs.domain.retry import AttemptHistory, Ending, RetryPolicy, decide_end
from jobs.domain.states import JobState
from tests.support.servers.llm_runs import CHAT, KINDS, Ask
from tests.support.servers.llm_server import Behaviour, LlmServer

ONCE = RetryPolicy(at_most_once=True)
TROUBLES = (Behaviour(cut_after=2), Behaviour(no_last_word=True), Behaviour(status=502, body={}))


def assert_not_run_again(error: GpuError) -> None:
    decision = decide_end(Ending(error, suspect=error.suspect), AttemptHistory(), ONCE)
    assert (decision.job, decision.error_code) == (JobState.FAILED, LOST_AT_MOST_ONCE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("does", TROUBLES)
def test_a_run_whose_answer_broke_is_not_run_again(kind: str, does: Behaviour) -> None:
    with LlmServer(does) as server, pytest.raises(ServerLost) as raised:
        Ask(server, kind, {**CHAT, "stream": True}).run()
    assert not raised.value.suspect, "its slot is free"
    assert_not_run_again(raised.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("does", [*TROUBLES, Behaviour(hang_after=2)])
def test_a_run_whose_answer_broke_on_a_workers_own_server_is_not_run_again(
    kind: str, does: Behaviour
) -> None:
    with LlmServer(does) as server:
        url = server.url + ("/v1" if kind == "openai" else "")
        limit = 0.3 if does.hang_after else 30.0
        handler = Cotenanted(LlmServerConfig("m", kind, url, 1.0, max_run_seconds=limit))
        with pytest.raises(Exception) as raised:
            handler.run({**CHAT, "stream": True}, RunContext())
    error = error_of(failure_of(raised.value))
    assert not error.suspect
    assert_not_run_again(error)
