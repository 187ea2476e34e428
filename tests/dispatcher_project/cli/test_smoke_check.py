"""`gpu-dispatcher check`: each step's outcome, against the requests' imitation and against the real web."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dispatcher_client.urllib_transport import UrllibTransport
from dispatcher_project.cli import smoke_check
from dispatcher_project.web.protocol import WebLimits
from tests.support.live_web import redis_url, tenant, web
from tests.support.ports import free_port
from tests.support.servers.api_imitation import ME, ApiImitation
from tests.support.servers.serving import serving
from tests.support.servers.web import Web

__all__ = ["redis_url", "tenant", "web"]

Found = tuple[int, dict[str, tuple[str, str, str]]]
PATIENT_SECONDS = 30.0
"""On a busy machine a stream that nothing buffers may be late too."""


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run it with --json: its status, and step → level, what, do."""

    def run(url: str, *options: str, key: str = "k", stream_seconds: float = PATIENT_SECONDS) -> Found:
        status = smoke_check.main([url, "--key", key, "--json", *options], stream_seconds=stream_seconds)
        document = json.loads(capsys.readouterr().out)
        assert document["status"] == ("ok", "warning", "error")[status]
        return status, {one["step"]: (one["level"], one["what"], one["do"]) for one in document["steps"]}

    return run


@contextmanager
def imitated(**given: Any) -> Iterator[tuple[str, ApiImitation]]:
    api = ApiImitation(**given)
    with serving(WebLimits(), api) as served:
        yield f"http://127.0.0.1:{served.port}", api


def test_all_is_well(check: Any) -> None:
    with imitated() as (url, _):
        status, steps = check(url)
    assert status == 0
    assert [*steps] == ["tls", "reach", "ready", "key", "submit", "events", "result"]
    assert {level for level, _, _ in steps.values()} == {"ok"}
    assert steps["key"][1] == "ab12 of tenant acme: cancel, read, submit"


def test_a_line_per_step_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    models = [{"model": "zimg", "paused": True}]
    with imitated(answers={"/api/v1/me": (200, ME | {"models": models})}) as (url, _):
        assert smoke_check.main([url, "--key", "k"]) == 1
    *fine, last = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in fine] == [["ok", step] for step in ("tls", "reach", "ready", "key")]
    assert last == (
        "warning  submit  zimg is paused  → run `python3 manage.py resume`, or choose another with --model"
    )


def test_a_stream_that_is_held_back_is_found(check: Any) -> None:
    with imitated(mute_seconds=1.5) as (url, _):
        status, steps = check(url, stream_seconds=0.3)
    assert (status, steps["events"][0], steps["result"][0]) == (2, "error", "ok")
    assert steps["events"][1].startswith("buffered: nothing of the event stream came within ")


TWO = [{"model": name, "paused": False} for name in ("zimg", "llm")]


@pytest.mark.parametrize(
    ("path", "answer", "expected"),
    [
        ("/livez", (400, {}), ("reach", "error", "/livez answers 400")),
        ("/readyz", (503, {"checks": {"database": {"ok": False}}}), ("ready", "error",
         "not ready: database")),
        ("/readyz", (200, {"status": "degraded", "checks": {"redis": {"ok": False}}}), ("ready", "warning",
         "degraded: redis; jobs are accepted and do not start")),
        ("/api/v1/me", (401, {"code": "not_authenticated", "detail": "No such key."}), ("key", "error",
         "401 not_authenticated: No such key.")),
        ("/api/v1/me", (200, ME | {"scopes": ["read"]}), ("job", "skipped", "the key lacks submit")),
        ("/api/v1/me", (200, ME | {"models": TWO}), ("submit", "skipped",
         "the key may use several models: zimg, llm")),
        ("/api/v1/me", (200, ME | {"models": []}), ("submit", "skipped",
         "no model is registered that the key may use")),
        ("/api/v1/queue/submit", (422, {"code": "invalid", "detail": "no prompt"}), ("submit", "error",
         "422 invalid: no prompt")),
        ("/api/v1/queue/jobs/job1",
         (200, {"job_id": "job1", "status": "failed", "error": {"code": "gpu_error", "message": "Xid 79"}}),
         ("result", "error", "failed: gpu_error Xid 79")),
    ],
)  # fmt: skip
def test_a_step_that_fails_names_its_cause(
    check: Any, path: str, answer: Any, expected: tuple[str, str, str]
) -> None:
    step, level, what = expected
    with imitated(answers={path: answer}) as (url, _):
        status, steps = check(url)
    assert status == (2 if level == "error" else 1)
    assert steps[step][:2] == (level, what)
    assert steps[step][2], "what to do"


def test_a_late_job_is_cancelled_with_its_reason(check: Any) -> None:
    waiting = {"job_id": "job1", "status": "queued"}
    with imitated(answers={"/api/v1/queue/jobs/job1": (200, waiting)}) as (url, api):
        status, steps = check(url, "--timeout", "0.5")
    assert (status, steps["result"][0]) == (2, "error")
    assert steps["result"][1].startswith("still queued after ")
    assert steps["result"][1].endswith("s: No server runs zimg.; the job is cancelled")
    assert api.asked[-1] == "/api/v1/queue/jobs/job1/cancel"


def test_an_address_without_a_listener_or_without_tls_ends_it(check: Any) -> None:
    status, steps = check(f"http://127.0.0.1:{free_port()}")
    assert (status, steps["reach"][:2]) == (2, ("error", "nothing listens there"))
    with imitated() as (url, _):
        status, steps = check(url.replace("http:", "https:"))
    assert (status, [*steps]) == (2, ["tls"])
    assert steps["tls"][1].startswith("no TLS there: ")


def test_a_payload_or_address_that_is_none_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["http://x", "--key", "k", "--payload", "{"], ["ftp://x", "--key", "k"], ["http://x"]):
        with pytest.raises(SystemExit) as end:
            smoke_check.main(words)
        assert end.value.code == 2
    assert "give a key with --key or DISPATCHER_API_KEY" in capsys.readouterr().err


def test_the_real_web_takes_its_requests(web: Web, tenant: Any) -> None:
    """Up to the result, for which a worker would have to run."""
    steps = smoke_check.Check(
        web.url, UrllibTransport(web.url, tenant.key), "zimg", {}, 60.0, stream_seconds=PATIENT_SECONDS
    ).steps()
    found = {step.step: step.level.value for step in itertools.islice(steps, 6)}
    assert found.pop("ready") in ("ok", "warning"), "no beat runs"
    assert found == dict.fromkeys(("tls", "reach", "key", "submit", "events"), "ok")


@pytest.mark.parametrize(
    ("life", "left", "level", "shown"),
    [
        (90 * 86400, 60 * 86400, "ok", "60 more days"),
        (90 * 86400, 13 * 86400, "warning", "13 more days"),
        (12 * 3600, 8 * 3600, "ok", "8 more hours"),
        (12 * 3600, 2 * 3600, "warning", "2 more hours"),
    ],
)
def test_a_certificate_that_was_not_renewed_is_a_warning(
    life: int, left: int, level: str, shown: str
) -> None:
    now = 1_800_000_000
    times = {
        name: time.strftime("%b %d %H:%M:%S %Y GMT", time.gmtime(at))
        for name, at in (("notBefore", now + left - life), ("notAfter", now + left))
    }
    step = smoke_check.certificate_step("TLSv1.3", times, now)
    assert (str(step.level), step.what) == (level, f"TLSv1.3, the certificate is valid for {shown}")
