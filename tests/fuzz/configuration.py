"""Input from operators, other processes of the dispatcher, and Redis."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured
from hypothesis import strategies as st

from dispatcher_project.settings.dispatcher import DispatcherSettings, read_settings
from dispatcher_project.supply.lock import read_pins
from dispatcher_project.supply.secrets import find
from gpu_host.handlers.errors import ContractError
from gpu_host.llm_servers.declared import read_file
from gpu_host.node.config import ConfigError, read_handlers
from gpus.leasing import codec
from gpus.leasing.values import QueueStatus, read_queue_status
from jobs.events.announce import read_announcement
from tests.fuzz.parser import Parser

FOLDER = Path(mkdtemp(prefix="fuzz-files-"))
NAMES = [f"DISPATCHER_{name.upper()}" for name in DispatcherSettings.__dataclass_fields__]
GARBLED = (ValueError, TypeError, KeyError, OverflowError)
"""What a reply raises that none of our scripts makes; Redis is trusted not to send one."""


def settings(text: str) -> None:
    for name in NAMES:
        env = environ.Env()
        env.ENVIRON = {name: text}
        with suppress(ImproperlyConfigured):
            assert isinstance(read_settings(env), DispatcherSettings)


def llm_servers(content: bytes) -> None:
    path = FOLDER / "servers.toml"
    path.write_bytes(content)
    read_file(path)


def handlers(text: str) -> None:
    read_handlers(text.split(","))


ANSWERS: dict[str, tuple[Any, list[Any]]] = {
    "read_lease": (
        codec.read_lease,
        ["p", "s/0", "job", "att", 1, "m", "t", 5, 9, 1_700_000_000_000_000, "1.5", 0],
    ),
    "read_expired": (codec.read_expired, ["p", "s/0", "job", "att", 1, "m", "t", 0, "w", "2.5", "", "", ""]),
    "read_wakes": (codec.read_wakes, ["p", "", 2, "p", "host", 1]),
    "read_pushed": (codec.read_pushed, [[1, 0, -1, 0, 0, 2, 5, 100, 200, 3], ["p", "", 1], ["m"]]),
    "read_spare": (codec.read_spare, [[1, 2], -1, []]),
    "read_tokens": (codec.read_tokens, [1, 5, 0, 100]),
    "read_slot": (
        codec.read_slot,
        ["s/0", "p", "leased", 0, "", "job", "att", 1, "m", "1.5", "2.5", "open", ""],
    ),
    "read_circuits": (codec.read_circuits, ["m", "open", 1, 2, "3.5"]),
    "read_telemetry": (codec.read_telemetry, ["1700000000000000", '{"a": 1}']),
}


def depth(answer: Any) -> None:
    codec.read_depth("p", answer)


def queue_status(text: str) -> None:
    assert isinstance(read_queue_status(text), QueueStatus)


WRITTEN = st.sampled_from(
    [
        "'openai'",
        "'http://127.0.0.1:1'",
        "'http://['",
        "5",
        "0x" + "f" * 5000,
        "['serve', 'a']",
        "{a = 1}",
        "1e999",
        "true",
    ]
)
TOML = (
    st.dictionaries(
        st.sampled_from(
            ["protocol", "url", "vram_mb", "slots", "command", "unit", "start_seconds", "min_resident"]
        ),
        WRITTEN,
        max_size=6,
    )
    .map(
        lambda table: (
            {"protocol": "'openai'", "url": "'http://a:1'", "vram_mb": "5", "command": "['a']"} | table
        )
    )
    .map(lambda table: ("[llama]\n" + "".join(f"{name} = {text}\n" for name, text in table.items())).encode())
)

PARSERS = [
    Parser(
        "settings of the environment",
        settings,
        st.text(max_size=12) | st.sampled_from(["5", "-1", "1e9", "nan", "a,b"]),
    ),
    Parser("file of LLM servers", llm_servers, TOML, (ContractError,)),
    Parser("handlers of a node", handlers, st.text("ab=:.,", max_size=20), (ConfigError,)),
    Parser("announcement of changed jobs", read_announcement, st.binary(max_size=60)),
    *(Parser(f"Redis: {name}", read, st.just(right), GARBLED) for name, (read, right) in ANSWERS.items()),
    Parser(
        "Redis: read_depth", depth, st.just([["t", 1], [], ["x", 2], ["free", 1], ["m", "open"]]), GARBLED
    ),
    Parser(
        "Redis: read_queue_status",
        queue_status,
        st.just('{"held": "", "asked_seconds": -1, "seen": 2}'),
        (*GARBLED, AttributeError, RecursionError),
    ),
    Parser(
        "constraints.txt",
        lambda text: list(read_pins(text)),
        st.just("a==1 ; extra == 'b' \\\n    --hash=sha256:aa\n"),
    ),
    Parser("search for secrets", lambda text: list(find(text, "a")), st.text(max_size=80)),
]
