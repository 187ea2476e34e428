"""Clients of a server by hand."""

from __future__ import annotations

from collections.abc import Callable

from dispatcher_client import Client

NewClient = Callable[..., Client]
