"""Python imports this at its start where the folder is on PYTHONPATH: a process whose wall clock is wrong.

TEST_CLOCKS: JSON, seconds by a word of the command line; the first word found there counts.
"""

import datetime
import json
import os
import sys
import time
from typing import Any

_words = " ".join(sys.orig_argv)
_clocks = json.loads(os.environ.get("TEST_CLOCKS", "{}"))
SKEW = next((float(seconds) for word, seconds in _clocks.items() if word in _words), 0.0)


def _skew() -> None:
    real_time, real_time_ns, real = time.time, time.time_ns, datetime.datetime

    class Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, real)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, real)

    class Skewed(real, metaclass=Kind):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return real.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return real.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Any:
            return cls.now()

    time.time = lambda: real_time() + SKEW
    time.time_ns = lambda: real_time_ns() + int(SKEW * 1e9)
    datetime.datetime = Skewed  # type: ignore[misc]


if SKEW:
    _skew()
