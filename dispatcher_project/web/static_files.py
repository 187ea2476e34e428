"""Static files, served from where their packages have them."""

from __future__ import annotations

from typing import Any

from django.http import FileResponse, HttpRequest
from whitenoise.middleware import WhiteNoiseMiddleware

BLOCK_BYTES = 64 * 1024


class StaticFiles(WhiteNoiseMiddleware):  # type: ignore[misc]
    """WhiteNoise with larger blocks. Each goes from a thread to the event loop on its own, which takes longer
    than to read Django's 4 KiB."""

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> FileResponse:
        """Return the response; ``block_size`` is read when it is sent."""
        response: FileResponse = WhiteNoiseMiddleware.serve(static_file, request)
        response.block_size = BLOCK_BYTES
        return response
