"""One signed message, sent once: the address is resolved and checked, and the checked one connected to."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings

from jobs.domain.errors import CallbackUrlRefused

from .guard import read_url
from .pinned_post import Answer, post
from .refused_origins import Origins
from .resolver import Resolver
from .signing import sign


@dataclass(frozen=True, slots=True)
class Message:
    """body: as stored. secrets: those that sign it. refused: where it may not go."""

    id: str
    tenant_id: int
    url: str
    body: str
    secrets: list[str]
    refused: Origins


@dataclass(frozen=True, slots=True)
class Outcome:
    """answer: None if there was none. error: empty when the receiver answered 2xx. duration_ms: all of it."""

    answer: Answer | None
    error: str
    duration_ms: int

    @property
    def status(self) -> int | None:
        return self.answer.status if self.answer else None


async def send(message: Message, resolver: Resolver, *, now: datetime) -> Outcome:
    """Sign and send; ends within DISPATCHER_CALLBACK_TIMEOUT_SECONDS. Never raises."""
    began = time.monotonic()
    seconds = settings.DISPATCHER.callback_timeout_seconds
    answer, error = None, ""
    try:
        async with asyncio.timeout(seconds) as limit:
            answer = await _post(message, resolver, now, limit)
        error = "" if 200 <= answer.status < 300 else f"HTTP {answer.status}"
    except TimeoutError as failure:
        error = f"TimeoutError: no answer in {seconds:g} s" if limit.expired() else failure_text(failure)
    except Exception as failure:  # whatever it was, the message stays on its schedule and the log says why
        error = failure_text(failure)
    return Outcome(answer, error, int((time.monotonic() - began) * 1000))


def send_now(message: Message, *, now: datetime) -> Outcome:
    """`send` for a caller without an event loop. Never inside a transaction."""

    async def alone() -> Outcome:
        return await send(message, Resolver(), now=now)

    return asyncio.run(alone())


async def _post(message: Message, resolver: Resolver, now: datetime, limit: asyncio.Timeout) -> Answer:
    target = read_url(message.url)
    addresses = await resolver.allowed_addresses(target, message.refused, tenant_id=message.tenant_id)
    if not addresses:
        raise CallbackUrlRefused
    headers = sign(message.secrets, message.id, now, message.body)
    headers |= {"Content-Type": "application/json", "User-Agent": "gpu-dispatcher", "Connection": "close"}
    return await post(target, addresses, body=message.body.encode(), headers=headers, limit=limit)


def failure_text(failure: Exception) -> str:
    """For the delivery log: a receiver's bytes may stand in it, and PostgreSQL takes no NUL."""
    text = f"{type(failure).__name__}: {failure}"[:500]
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
