"""In place of `python3` for scripts that tests run: `python -S -E forked_python.py ARGUMENTS`.

The programs of this repository are forked by the run's fork server (fork_server.py), with the streams, the
folder and the environment of this process; all else is run by Python. Standard library only.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys

_LENGTH = struct.Struct("=i")  # as in programs.py, which imports packages


def main(arguments: list[str]) -> int:
    socket_path = os.environ.get("FORK_SERVER_SOCKET")
    if not socket_path or not _is_ours(arguments):
        os.execv(sys.executable, [sys.executable, *arguments])
    asked = {
        "command": [sys.executable, *arguments],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
    }
    data = json.dumps(asked).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(socket_path)
        socket.send_fds(connection, [_LENGTH.pack(len(data))], [0, 1, 2])
        connection.sendall(data)
        (pid,) = _LENGTH.unpack(connection.recv(_LENGTH.size))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        (code,) = _LENGTH.unpack(connection.recv(_LENGTH.size))
    return int(code) if code >= 0 else 128 - int(code)


def _is_ours(arguments: list[str]) -> bool:
    first = arguments[0] if arguments else ""
    return first == "manage.py" or (first == "-m" and arguments[1] == "dispatcher_client")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
