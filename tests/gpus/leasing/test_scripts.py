"""The loader's rules, and how a script reaches the server: by hash, once, and never under a wrong name."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpus.errors import LeasingUnavailable
from gpus.leasing import library
from gpus.leasing.connect import connect
from gpus.leasing.keys import Keys
from gpus.leasing.library import (
    FUNCTION,
    GREETING,
    LIBRARIES,
    BadScript,
    add_includes,
    check_modules,
    exported_names,
    library_code,
    library_name,
    library_text,
    read_script,
)
from gpus.leasing.scripts import Client
from gpus.leasing.store import RedisLeases
from tests.gpus.leasing.lease_harness import POOL, LeaseHarness

HEAD = "-- Why: w\n-- Keys: k\n-- Args: none\n-- Returns: r\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "includes").mkdir()
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    return tmp_path


@pytest.mark.parametrize("part", [*library.CONTRACT, "Args"])
def test_a_script_without_a_contract_in_its_head_is_refused(folder: Path, part: str) -> None:
    head = "".join(f"{line}\n" for line in HEAD.splitlines() if part not in line)
    (folder / "bad.lua").write_text(head + "\nreturn 1\n")
    with pytest.raises(BadScript, match=f"bad.lua.*{part}"):
        read_script("bad", {})


def test_a_contract_below_the_head_does_not_count(folder: Path) -> None:
    (folder / "bad.lua").write_text("-- Why: w\n\n" + HEAD + "return 1\n")
    with pytest.raises(BadScript, match="Keys"):
        read_script("bad", {})


def test_an_include_is_in_the_library_once_before_its_users(folder: Path) -> None:
    (folder / "includes" / "a.lua").write_text("-- a\nreturn {}\n")
    (folder / "includes" / "b.lua").write_text("-- b\n-- include: a\nreturn {}\n")
    (folder / "good.lua").write_text(HEAD + "-- include: b\n-- include: a\nreturn b\n")
    (folder / "other.lua").write_text(HEAD + "-- include: a\nreturn a\n")
    includes: dict[str, str] = {}
    assert read_script("good", includes).endswith("return b\n")
    assert list(includes) == ["a", "b"]


EXPORTS = {"Slots": frozenset({"read_slot"}), "Keys": frozenset({"slot"})}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("-- include: slots\nreturn Slots.read_slott('a')", "a.lua: Slots has no read_slott"),
        ("return Slots.read_slot('a')", "a.lua: its includes differ from what it uses: Slots"),
        ("-- include: slots\nreturn 1", "a.lua: its includes differ from what it uses: Slots"),
        ("-- include: slots\nreturn 'Slots.a'  -- Slots.a", "its includes differ from what it uses: Slots"),
    ],
)
def test_a_name_that_an_include_has_not_is_found_before_the_library_is_loaded(text: str, why: str) -> None:
    with pytest.raises(BadScript, match=why):
        check_modules("a", text, EXPORTS)
    check_modules("slots", "return Slots.read_slot", EXPORTS, own="Slots")


@pytest.mark.parametrize(
    "path", sorted((library.FOLDER / "includes").glob("*.lua")), ids=lambda path: path.stem
)
def test_an_include_returns_a_table_of_its_exports(path: Path) -> None:
    text = path.read_text()
    assert re.search(r"^return (\{\n(.*\n)+\}|Keys|Call)\n\Z", text, re.MULTILINE), "it ends with its table"
    others = [other.read_text() for other in library.FOLDER.rglob("*.lua") if other != path]
    used = set(re.findall(rf"\b{path.stem.capitalize()}\.(\w+)", "".join((*others, GREETING, FUNCTION))))
    assert used <= exported_names(text)
    if path.stem not in ("keys", "call"):
        assert used == exported_names(text), "an export that no script uses"


def test_an_include_that_is_missing_or_without_a_comment_is_refused(folder: Path) -> None:
    with pytest.raises(BadScript, match=r"nothing\.lua is missing"):
        add_includes("-- include: nothing", folder / "includes", {})
    (folder / "includes" / "mute.lua").write_text("local a = 1\n")
    with pytest.raises(BadScript, match="begin with a comment"):
        add_includes("-- include: mute", folder / "includes", {})


def test_the_library_keeps_the_rules() -> None:
    code = library_code()
    for forbidden in ("'KEYS'", "'SCAN'", "'EXPIRE'", "'PEXPIRE'", "'EX'", "KEYS[2]"):
        assert forbidden not in code
    assert code.count("redis.call('TIME')") == 1


def test_only_one_include_keeps_state_and_each_call_resets_it() -> None:
    """The functions live as long as the library, so a call must not see reads of the previous one."""
    remembered, written = set[tuple[str, str]](), set[str]()
    for path in (library.FOLDER / "includes").glob("*.lua"):
        for line in path.read_text().splitlines():
            if found := re.match(r"local (?!function )([a-z]\w*(?:, \w+)*)", line):
                remembered.add((path.stem, found[1]))
            if path.stem != "call":
                found = re.match(r"(?:.*(?:then|do))? *([A-Z][a-z]+)\.\w+(?:\[.*\])?(?:, [\w.]+)* = ", line)
                written |= {found[1]} if found else set()
    assert remembered == {("keys", "prefix")}
    assert written == {"Call"}


def test_a_call_does_not_see_reads_of_the_previous_call(client: Client, fleet: str) -> None:
    """Two fleets on one server have the same library, and their pools and tenants the same names."""
    limited, free = (
        LeaseHarness(client, f"{fleet}-limited").open(),
        LeaseHarness(client, f"{fleet}-free").open(),
    )
    limited.tenant("t1", band="normal", most=1)
    for harness in (limited, free):
        harness.server(slots=2)
        harness.push("j1", "j2", "j3")
        harness.must_claim()
    assert limited.claim() is None
    assert free.must_claim().job_id == "j2"
    assert (limited.waiting(), free.waiting()) == (0, 1)
    assert limited.leases.depth(POOL).parked == {"flux": 2}


def test_only_one_python_file_contains_key_names() -> None:
    root = Path(library.__file__).parents[2]
    for package in (
        "artifacts", "foundation", "gpus", "gpu_host", "jobs", "workflows", "admin_ui", "dispatcher_project",
        "verification", "benchmarks"
    ):  # fmt: skip
        for path in (*(root / package).rglob("*.py"), *(root / package).rglob("*.lua")):
            if path != Path(library.__file__).with_name("keys.py"):
                assert "gpuq:" not in path.read_text(), path


def test_no_key_has_a_time_to_live(harness: LeaseHarness) -> None:
    harness.server(slots=2)
    harness.push("j1", "j2", "j3")
    harness.release(harness.must_claim())
    harness.leases.expired()
    assert {harness.client.ttl(harness.prefix + name) for name in harness.all_keys()} == {-1}


# -- on the wire ----------------------------------------------------------------------------------------


class LossyProxy:
    """Between client and server; when armed, it passes the next script on and loses the answer."""

    def __init__(self, target: str, path: str) -> None:
        self._target, self.path = target, path
        self.lose, self._losing = 0, False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(inner,), daemon=True).start()

    def _serve(self, inner: socket.socket) -> None:
        with inner, socket.socket(socket.AF_UNIX) as outer:
            outer.connect(self._target)
            back = threading.Thread(target=self._answer, args=(outer, inner), daemon=True)
            back.start()
            while request := _receive(inner):
                self._losing = bool(self.lose) and b"FCALL" in request
                outer.sendall(request)
            outer.shutdown(socket.SHUT_RDWR)
            back.join()

    def _answer(self, outer: socket.socket, inner: socket.socket) -> None:
        while answer := _receive(outer):
            if self._losing:
                self._losing, self.lose = False, self.lose - 1
                inner.shutdown(socket.SHUT_RDWR)
                return
            inner.sendall(answer)


def _receive(source: socket.socket) -> bytes:
    try:
        return source.recv(1 << 16)
    except OSError:
        return b""


@contextmanager
def lossy(server: EmbeddedValkey, folder: Path) -> Iterator[LossyProxy]:
    proxy = LossyProxy(server.socket, str(folder / "p.sock"))
    try:
        yield proxy
    finally:
        proxy.close()


def test_a_lost_answer_is_never_asked_for_twice_by_the_client_itself(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path, append_only=False) as server, lossy(server, tmp_path) as proxy:
        harness = LeaseHarness(connect(f"unix://{proxy.path}"), "main").open()
        harness.server(slots=4)
        harness.push("j1", "j2")
        direct: Any = connect(server.url)
        direct.config_resetstat()
        proxy.lose = 1
        with pytest.raises(LeasingUnavailable, match="does not answer"):
            harness.claim("attempt")
        assert direct.info("commandstats")["cmdstat_fcall"]["calls"] == 1
        assert harness.must_claim("attempt").job_id == "j1"
        assert harness.waiting() == 1


def test_threads_that_come_together_load_the_library_once(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path, append_only=False) as server, ThreadPoolExecutor(16) as threads:
        leases = RedisLeases(connect(server.url), "main")
        together = threading.Barrier(16)

        def ask(_: int) -> str | None:
            together.wait()
            return leases.generation()

        for _ in range(2):
            assert list(threads.map(ask, range(16))) == [None] * 16
            direct: Any = connect(server.url)
            assert direct.info("commandstats")["cmdstat_function|load"]["calls"] == 1
            direct.function_flush()
            direct.config_resetstat()


def test_versions_that_work_side_by_side_each_have_their_library(tmp_path: Path) -> None:
    """Only idle libraries of other versions are deleted, and a returning version loads its own again."""
    with EmbeddedValkey(tmp_path, append_only=False) as server:
        client: Any = connect(server.url)
        ours, used, unused = (f"{LIBRARIES}{name}" for name in (library_name(library_code())[5:], "b", "c"))
        for name in (used, unused):
            client.function_load(library_text(name, library_code()))
            client.fcall(f"{name}_greet", 0, "run")
        client.fcall(f"{used}_beats", 1, "x:", "", "", "server")
        harness = LeaseHarness(client, "main").open()
        assert {found[1] for found in client.function_list()} == {ours, used}
        client.function_delete(ours)
        assert harness.claim() is None


def test_a_server_that_is_not_there_makes_leasing_unavailable(tmp_path: Path) -> None:
    leases = RedisLeases(connect(f"unix://{tmp_path}/missing.sock"), "main")
    with pytest.raises(LeasingUnavailable, match="does not answer"):
        leases.fill()
    with pytest.raises(LeasingUnavailable, match="does not answer"):
        leases.check()


def test_a_client_that_answers_in_bytes_works_too(valkey: EmbeddedValkey, fleet: str) -> None:
    import redis

    client = redis.Redis.from_url(valkey.url)
    leases = RedisLeases(client, fleet)
    assert leases.begin_rebuild("x")
    assert leases.wipe("x")
    assert leases.open_generation("x") == leases.generation()
    client.close()


def test_the_docs_name_every_key() -> None:
    text = (Path(library.__file__).parents[2] / "docs" / "explanation" / "leasing.md").read_text()
    kinds = {name for name in vars(Keys) if not name.startswith("_")}
    assert {kind for kind in kinds if f"`{kind}" not in text and f":{kind}`" not in text} == set()
