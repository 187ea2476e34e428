"""Files that a run's result names: saved, and nothing else of the machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from gpu_host.local.gpu import LocalRunner
from gpu_host.local.result_files import label, with_files_saved
from gpus.errors import OutputNotStored, RunFailed
from gpus.protocol import Endpoint, ModelSpec
from gpus.runners.base import Abort, RunRequest


class Saved:
    """A store of outputs: their bytes, names and types, in order."""

    def __init__(self) -> None:
        self.outputs: list[tuple[bytes, str, str]] = []

    def __call__(self, file: BinaryIO, *, name: str = "", content_type: str = "") -> dict[str, str]:
        self.outputs.append((file.read(), name, content_type))
        return {"$artifact": str(len(self.outputs))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "runs" / "attempt"
    made.mkdir(parents=True)
    (made / "a.png").write_bytes(b"a")
    return made


def test_a_model_saves_bytes_and_files_and_names_files_of_its_folder(bench) -> None:
    request = RunRequest(
        "j",
        "attempt-1",
        ModelSpec("wild", "wild", max_run_seconds=30.0),
        Endpoint("box", "local://box/wild"),
        {"do": "saves", "name": "größe 图片 🦀.png"},
        "box/0",
        1,
    )
    finished = LocalRunner(bench.gpu).start(request, abort=Abort())
    assert finished.finish is not None
    for _ in range(2):  # again, after a store that did not answer
        saved = Saved()
        result = finished.finish(saved)
        ours = str(bench.folder / "output" / "attempt-1")
        assert result == {
            "bytes": {"$artifact": "1"},
            "files": [{"$artifact": "2"}, {"$artifact": "3"}],
            "path": {"$artifact": "4"},
            "folder": ours,
            "missing": f"{ours}/missing.png",
        }
        assert saved.outputs == [
            (b"bytes", "größe 图片 🦀.png", "image/x-test"),
            (b"elsewhere", "elsewhere.bin", ""),
            (b"here", "here.png", ""),
            (b"named", "named.png", ""),
        ]


def test_a_result_without_files_is_complete(bench) -> None:
    order = bench.order("wild", {"do": "echo"})
    request = RunRequest(
        "j", order.attempt, ModelSpec("wild", "wild"), Endpoint("box", "x"), order.payload, "b/0", 1
    )
    assert LocalRunner(bench.gpu).start(request, abort=Abort()).finish is None


def link_to(target: Path, folder: Path) -> str:
    (folder / "link").symlink_to(target)
    return "link"


def in_linked_folder(target: Path, folder: Path) -> str:
    (folder / "sub").symlink_to(target.parent)
    return f"sub/{target.name}"


def pipe(target: Path, folder: Path) -> str:
    os.mkfifo(folder / "pipe")
    return "pipe"


HOSTILE = [
    link_to,
    in_linked_folder,
    pipe,
    lambda target, folder: f"../../{target.name}",
    lambda target, folder: str(target),
    lambda target, folder: f"./{target.name}",
    lambda target, folder: "",
    lambda target, folder: "a.png/",
    lambda target, folder: "a\0.png",
    lambda target, folder: "missing",
]


@pytest.mark.parametrize("place", HOSTILE, ids=range(len(HOSTILE)))
def test_only_plain_files_below_the_folder_are_read(folder, tmp_path, place) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    named = place(secret, folder)
    saved = Saved()
    with pytest.raises(RunFailed, match="has not saved"):
        with_files_saved({"$output": {"file": named, "name": "x"}}, folder, saved)
    assert with_files_saved([f"{folder}/{named}"], folder, saved) == [f"{folder}/{named}"]
    assert saved.outputs == []


def test_a_folder_that_became_a_link_is_not_followed(tmp_path, folder) -> None:
    (tmp_path / "runs" / "other").symlink_to(folder)
    saved = Saved()
    other = tmp_path / "runs" / "other"
    assert with_files_saved([f"{other}/a.png"], other, saved) == [f"{other}/a.png"]
    assert saved.outputs == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_read(folder) -> None:
    """A hard link to it, where the system allows them."""
    os.chown(folder, 12345, 12345)
    saved = Saved()
    with pytest.raises(RunFailed):
        with_files_saved({"$output": {"file": "a.png"}}, folder, saved)
    os.chown(folder / "a.png", 12345, 12345)
    assert with_files_saved({"$output": {"file": "a.png"}}, folder, saved) == {"$artifact": "1"}


def test_a_file_is_saved_once_however_often_it_is_named(folder) -> None:
    saved = Saved()
    declared = {"$output": {"file": "b.png", "name": "b.png"}}
    (folder / "b.png").write_bytes(b"b")
    result = with_files_saved([f"{folder}/a.png", declared] * 1000, folder, saved)
    assert result == [{"$artifact": "1"}, {"$artifact": "2"}] * 1000
    assert len(saved.outputs) == 2


def test_objects_that_only_look_like_files_stay(folder) -> None:
    for value in ({"$output": 5}, {"$output": {}}, {"$output": {"file": "a.png"}, "x": 1}, "$output"):
        assert with_files_saved(value, folder, Saved()) == value


def test_an_error_of_the_store_is_passed_on(folder) -> None:
    def save(*_: Any, **__: Any) -> Any:
        raise OutputNotStored

    with pytest.raises(OutputNotStored):
        with_files_saved({"$output": {"file": "a.png"}}, folder, save)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../etc/passwd", "passwd"),
        ("..", ""),
        ("a\\b.png", "b.png"),
        ("фильм.mp4", "фильм.mp4"),
        ("صورة.png", "صورة.png"),
        ("x" * 400, "x" * 255),
        ("", ""),
    ],
)
def test_a_name_is_a_label(name, shown) -> None:
    assert label(name) == shown


def test_control_characters_of_a_name_are_not_kept() -> None:
    assert label("a\n\x1b[31mb\u202e.png").isprintable()
