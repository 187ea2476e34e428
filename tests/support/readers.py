"""Readers of event streams."""

from __future__ import annotations

import asyncio

from jobs.events.handover import Follow
from jobs.events.stream import Message

NEVER = 1e9


FOLLOW = Follow("job", 0, with_output=True, in_full=False, reader="key")


async def stays() -> Message:
    """A client that never disconnects."""
    await asyncio.sleep(NEVER)
    return {"type": "http.disconnect"}


class Client:
    """A client that records each message with its time."""

    def __init__(self) -> None:
        self.said: list[tuple[float, bytes]] = []
        self.has_ended = False

    async def send(self, message: Message) -> None:
        assert not self.has_ended
        self.said.append((asyncio.get_running_loop().time(), message.get("body", b"")))
        self.has_ended = message["type"] == "http.response.body" and not message["more_body"]
