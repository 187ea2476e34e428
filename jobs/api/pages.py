"""Cursor pages of jobs, newest first."""

from __future__ import annotations

import re

from foundation.http_api.parameters import PARAMETERS, CursorPages

__all__ = ["PARAMETERS", "JobPages"]


class JobPages(CursorPages):
    ordering = "-id"
    position = re.compile(r"[0-9A-Z]{1,26}\Z")
