"""How long a system of processes may take."""

from __future__ import annotations

SOON = {"DISPATCHER_ANSWER_SECONDS": "4", "DISPATCHER_RECONCILE_SECONDS": "1"}
"""For test_front_door.py: to give up on the database, and to look for jobs without a ticket, sooner than
others do. On SQLite it has a system of its own."""
