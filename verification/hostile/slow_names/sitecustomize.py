"""On the path of the trial's own processes: names in ``.slow.test`` take the resolver two seconds."""

import socket
import time
from typing import Any

_find = socket.getaddrinfo
SECONDS = 2.0


def _slowly(  # noqa: PLR0917  (the names and places are those of socket itself)
    host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
) -> Any:
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    asks = not flags & socket.AI_NUMERICHOST  # otherwise no resolver is called
    if asks and isinstance(name, str) and name.rstrip(".").endswith(".slow.test"):
        time.sleep(SECONDS)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return _find(host, port, family, type, proto, flags)


socket.getaddrinfo = _slowly
