"""The Lua scripts: read from files, their includes put in, sent by hash.

Each script's head is its contract, and a file without one is refused. A line ``-- include: name`` is replaced
by ``lua/includes/name.lua``, once per script.

Before every script stands the run id of the server it is loaded into, and it is loaded over the very
connection that asked for that id. A server that restarted, or one that took over, does not know the hash: the
client then asks again who it is talking to. So no script ever trusts an index that another run has left
behind, and no connection needs a check of its own.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import NoScriptError, RedisClusterException, RedisError, ResponseError

from gpus.errors import LeasingUnavailable

FOLDER = Path(__file__).parent / "lua"
CONTRACT = ("Why", "Keys", "Args", "Returns")
"""What the head of each script must say."""

LOAD_SECONDS = 1.0
"""How long a thread waits for another that loads: before a Redis that hangs, threads must not queue up. With
the time-out of a load of its own after that (connect.py) a submit still ends in 3.5 s."""

Client = redis.Redis | redis.RedisCluster

FAILURES = (RedisError, RedisClusterException)
"""What redis-py raises when no answer came; the cluster's is not a RedisError."""

_INCLUDE = re.compile(r"^-- include: (\w+)$", re.MULTILINE)
_FUNCTION = re.compile(r"^local function (\w+)\((?:[^\n]* end\n|.*?^end\n)", re.MULTILINE | re.DOTALL)
_WORD = re.compile(r"\w+")
_RUN_ID = re.compile(r"run_id:(\w*)")


class BadScript(Exception):
    """A Lua file does not keep to the rules."""


@cache
def script_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.lua")))


@cache
def read_script(name: str) -> str:
    """The whole text. Raises BadScript: no contract in its head, or an include that is not there."""
    text = read_text(FOLDER / f"{name}.lua")
    head = text.split("\n\n")[0]
    for part in CONTRACT:
        if f"-- {part}: " not in head:
            raise BadScript(f"{name}.lua: its head does not say '{part}:'")
    return leave_out_unused(resolve_includes(text, FOLDER / "includes", set()))


def read_text(path: Path) -> str:
    if not path.exists():
        raise BadScript(f"there is no {path.name}")
    text = path.read_text()
    if not text.startswith("-- "):
        raise BadScript(f"{path.name}: must begin with a comment that says what it is for")
    return text


def resolve_includes(text: str, folder: Path, seen: set[str]) -> str:
    """Puts each include in where it is first asked for."""

    def put_in(match: re.Match[str]) -> str:
        name = match[1]
        if name in seen:
            return ""
        seen.add(name)
        return resolve_includes(read_text(folder / f"{name}.lua"), folder, seen)

    return _INCLUDE.sub(put_in, text)


def leave_out_unused(text: str) -> str:
    """Without the includes' functions that this script does not use: Lua makes each of them anew on every
    call, which costs more than the commands."""
    while True:
        named = Counter(_WORD.findall(text))
        unused = [found[0] for found in _FUNCTION.finditer(text) if named[found[1]] == 1]
        if not unused:
            return text
        for function in unused:
            text = text.replace(function, "")


@dataclass(frozen=True, slots=True)
class Loaded:
    """The scripts as they are on one run of a server; hashes by name."""

    run_id: str
    hashes: Mapping[str, str]


class Scripts:
    """Runs scripts under one key prefix. Every failure is LeasingUnavailable; nothing is ever sent twice."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._client = client
        self._prefix = prefix
        self._loaded: Loaded | None = None
        self._loading = threading.Lock()

    def run(self, name: str, *args: str | int | float) -> Any:
        """The script's answer: None, an int, a text, or lists of these."""
        try:
            loaded = self._loaded or self._load_once(None)
            try:
                answer = self._send(loaded.hashes[name], args)
            except NoScriptError:  # it did not run: another run of the server, or SCRIPT FLUSH
                answer = self._send(self._load_once(loaded).hashes[name], args)
        except ResponseError as error:
            raise LeasingUnavailable(str(error).removeprefix("UNAVAILABLE ")) from error
        except FAILURES as error:
            raise LeasingUnavailable(f"Redis does not answer: {error}") from error
        return _as_text(answer)

    def load(self) -> Loaded:
        """Asks the server for its run id and loads the scripts for it. Raises what is in FAILURES."""
        pool = self._node().connection_pool
        connection: Any = pool.get_connection()
        try:
            connection.send_command("INFO", "server")
            found = _RUN_ID.search(_as_text(connection.read_response()))
            run_id = found[1] if found else ""
            hashes = {}
            for name in script_names():
                text = f"local RUN_ID = '{run_id}'\n{read_script(name)}"
                connection.send_command("SCRIPT", "LOAD", text)
                connection.read_response()
                hashes[name] = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        except BaseException:
            connection.disconnect()  # an answer may still be under way
            raise
        finally:
            pool.release(connection)
        self._loaded = Loaded(run_id, hashes)
        return self._loaded

    def _load_once(self, known: Loaded | None) -> Loaded:
        """A worker's threads start together, and one of them loads for all. known: what does not work."""
        if not self._loading.acquire(timeout=LOAD_SECONDS):
            raise LeasingUnavailable("Redis does not answer: the scripts are still being loaded")
        try:
            return self._loaded if self._loaded and self._loaded is not known else self.load()
        finally:
            self._loading.release()

    def _send(self, script_hash: str, args: tuple[str | int | float, ...]) -> Any:
        return self._client.evalsha(script_hash, 1, self._prefix, *args)

    def _node(self) -> redis.Redis:
        """The server that holds the prefix's hash slot."""
        if not isinstance(self._client, redis.RedisCluster):
            return self._client
        node = self._client.get_node_from_key(self._prefix)  # type: ignore[no-untyped-call]
        if node is None:
            raise RedisError("no node of the cluster holds the fleet's slot")
        return self._client.get_redis_connection(node)


def _as_text(answer: Any) -> Any:
    if isinstance(answer, bytes):
        return answer.decode()
    if isinstance(answer, list):
        return [_as_text(item) for item in answer]
    return answer
