"""The models of `manage.py up --local`: two small ones to try a pinned worker with, on any machine."""

from __future__ import annotations

import hashlib
from typing import Any

from gpu_host.handlers import BadInput, RunContext


class Shout:
    """Returns ``{"text": …}`` in capitals, with progress and partial output after each word."""

    vram_mb = 16

    def run(self, payload: Any, ctx: RunContext) -> Any:
        text = payload.get("text") if isinstance(payload, dict) else None
        if not isinstance(text, str):
            raise BadInput("text is a string")
        words = text.upper().split()
        for number, word in enumerate(words):
            ctx.check()
            ctx.partial(word)
            ctx.report((number + 1) / len(words), f"word {number + 1} of {len(words)}")
        return {"text": " ".join(words)}


class Digest:
    """Returns the SHA-256 of ``{"text": …}``, hashed ``rounds`` times; its table takes memory as weights
    would."""

    vram_mb = 64

    def load(self) -> bytes:
        return bytes(range(256)) * 4096 * 32

    def run(self, payload: Any, ctx: RunContext) -> Any:
        digest = str(payload.get("text", "") if isinstance(payload, dict) else payload).encode()
        for _ in range(int(payload.get("rounds", 1)) if isinstance(payload, dict) else 1):
            ctx.check()
            digest = hashlib.sha256(digest + ctx.model[:64]).digest()
        return {"sha256": digest.hex()}


MODELS = {"shout": Shout, "digest": Digest}
