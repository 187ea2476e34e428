"""The refusals of transfers: each names its setting and value."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from dispatcher_project.web import exchange
from dispatcher_project.web.exchange import Exchange, Transfers
from foundation.http_api.problems import Problem


def test_the_limits_of_transfers_name_their_settings(settings: Any) -> None:
    settings.DISPATCHER = replace(settings.DISPATCHER, artifact_transfers=2, artifact_transfers_per_tenant=1)
    transfers = Transfers()
    with transfers.of(1):
        with pytest.raises(Problem) as of_tenant, transfers.of(1):
            pass
        with transfers.of(2), pytest.raises(Problem) as of_all, transfers.of(3):
            pass
    assert str(of_tenant.value.detail).startswith("1 transfers of this tenant")
    assert "(DISPATCHER_ARTIFACT_TRANSFERS_PER_TENANT)" in str(of_tenant.value.detail)
    assert str(of_all.value.detail).startswith("2 transfers")
    assert "(DISPATCHER_ARTIFACT_TRANSFERS)" in str(of_all.value.detail)


async def silent() -> Any:
    await asyncio.Event().wait()


async def unused(message: Any) -> None:
    raise AssertionError(message)


async def one_byte() -> Any:
    return {"type": "http.request", "body": b"x", "more_body": True}


def refusal_of(receive: Any) -> str:
    """Return the text of the refusal of a body that this function sends."""
    scope: dict[str, Any] = {
        "type": "http",
        "method": "PUT",
        "path": "/store/x",
        "headers": [(b"content-length", b"9")],
        "query_string": b"",
    }

    async def read() -> None:
        async for _ in Exchange(scope, receive, unused, "/store/").body():
            pass

    with pytest.raises(Problem) as refused:
        asyncio.run(read())
    assert (refused.value.status, refused.value.code) == (408, "upload_too_slow")
    return str(refused.value.detail)


def test_a_silent_and_a_slow_sender_read_which_setting_ended_them(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DISPATCHER = replace(
        settings.DISPATCHER, upload_idle_seconds=0.01, artifact_bytes_per_second=5_000
    )
    assert "0.01 s (DISPATCHER_UPLOAD_IDLE_SECONDS)" in refusal_of(silent)
    monkeypatch.setattr(exchange, "is_too_slow", lambda moved, began: True)
    assert "5000 bytes per second (DISPATCHER_ARTIFACT_BYTES_PER_SECOND)" in refusal_of(one_byte)
