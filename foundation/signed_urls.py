"""Makes signed URLs useless in what GPU servers answer, which is stored, logged and shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from foundation.json_text import JsonText

_HINT = "ignature"
_SIGNATURE = re.compile(
    r"((?:[?&;]|%3F|%26|\\u0026)(?:X-Amz-Signature|signature)(?:=|%3D))[^&\s\"'<>\\]+", re.IGNORECASE
)


def without_signatures(text: str) -> str:
    """Return a text without the signatures of its URLs. A store refuses a URL without its signature."""
    return _SIGNATURE.sub(r"\1…", text) if _HINT in text else text


def may_have_signatures(value: Any) -> bool:
    """Return True if a text of a JSON value may have the signature of a URL."""
    if isinstance(value, JsonText):
        return _HINT in value.text
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if type(one) is str:
            if _HINT in one:
                return True
        elif type(one) is list:
            waiting += one
        elif type(one) is dict:
            waiting += one
            waiting += one.values()
    return False


def replace_signed(value: Any, new: Callable[[str], Any]) -> Any:
    """Return a JSON value with `new(text)` in place of its texts that have the signature of a URL. Names of
    members lose the signature."""
    if type(value) is str:
        return new(value) if _HINT in value and _SIGNATURE.search(value) else value
    if type(value) is list:
        return [replace_signed(one, new) for one in value]
    if type(value) is dict:
        return {without_signatures(name): replace_signed(one, new) for name, one in value.items()}
    return value
