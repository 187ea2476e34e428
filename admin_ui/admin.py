"""Where Django looks for pages; each subject has a file of its own."""

from __future__ import annotations

from . import (
    account_pages,
    client_pages,
    dead_letter_pages,
    delivery_pages,
    fleet_pages,
    history_pages,
    job_pages,
    server_pages,
)

__all__ = [
    "account_pages",
    "client_pages",
    "dead_letter_pages",
    "delivery_pages",
    "fleet_pages",
    "history_pages",
    "job_pages",
    "server_pages",
]
