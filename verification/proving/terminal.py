"""Progress lines of the trial, with the time."""

from __future__ import annotations

import sys
import time


def say(text: str) -> None:
    """Print a line with the time of day."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
    sys.stdout.flush()
