"""On the path of the trial's own processes: names in ``.slow.test`` take the resolver two seconds."""

import socket
import time
from typing import Any

_find = socket.getaddrinfo
SECONDS = 2.0


def _slowly(host: Any, *rest: Any, **more: Any) -> Any:
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    if isinstance(name, str) and name.rstrip(".").endswith(".slow.test"):
        time.sleep(SECONDS)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return _find(host, *rest, **more)


socket.getaddrinfo = _slowly
