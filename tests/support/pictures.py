"""A PNG of one colour."""

from __future__ import annotations

import base64
import struct
import zlib


def png() -> str:
    """An image of one pixel in base64, long enough to be recognised as one."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    whole = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head)
    return base64.b64encode(whole + chunk(b"IDAT", zlib.compress(b"\0\1\2\3")) + chunk(b"IEND", b"")).decode()
