"""How long a system of processes may take."""

from __future__ import annotations

SOON = {"DISPATCHER_ANSWER_SECONDS": "4", "DISPATCHER_RECONCILE_SECONDS": "1"}
"""For test_submit_during_outages.py: shorter limits for the database, and for jobs without a ticket. On
SQLite that file has a system of its own."""
