"""Objects of a store."""

from __future__ import annotations

import hashlib
import random

from artifacts.keys import ObjectKey

DATA = random.Random(1).randbytes(300_000)  # the same in all processes of a test run


def key_of(data: bytes, tenant: int = 7) -> ObjectKey:
    return ObjectKey(tenant, hashlib.sha256(data).hexdigest())


KEY = key_of(DATA)
