"""The raw limit: threads that pop a Redis list and send HTTP over a socket. Nothing is stored."""

from __future__ import annotations

import json
import socket
import sys
import threading
from typing import Any
from urllib.parse import urlsplit

import redis

from benchmarks.peers.call import GPU, REDIS_URL, SLOTS, read_jobs

QUEUE = "jobs"


def work() -> None:
    """Run jobs for ever."""
    client = redis.Redis.from_url(REDIS_URL)
    parts = urlsplit(GPU)
    gpu = socket.create_connection((parts.hostname or "", parts.port or 80))
    gpu.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = b"POST /run HTTP/1.1\r\nHost: %s\r\nContent-Length: %%d\r\n\r\n" % parts.netloc.encode()
    while True:
        taken: Any = client.blpop([QUEUE], 0)
        gpu.sendall(head % len(taken[1]) + taken[1])
        answer = b""
        while not answer.endswith(b"}}"):  # {"status": …, "result": {…}}
            piece = gpu.recv(65536)
            if not piece:
                raise ConnectionError("the GPU server hung up")
            answer += piece
        if not answer.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(f"the GPU server answered {answer[:80]!r}")


def main() -> None:
    if sys.argv[1] == "fill":
        client = redis.Redis.from_url(REDIS_URL)
        jobs = [json.dumps({"job": job, "seconds": seconds}) for job, seconds in read_jobs()]
        for at in range(0, len(jobs), 1000):
            client.rpush(QUEUE, *jobs[at : at + 1000])
        return
    threads = [threading.Thread(target=work) for _ in range(SLOTS)]
    for thread in threads:
        thread.start()


if __name__ == "__main__":
    main()
