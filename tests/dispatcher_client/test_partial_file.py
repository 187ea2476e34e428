"""The file of a download: resumed by one at a time, and published without harm to other files."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from dispatcher_client.partial_file import PartialFile, has_content

DATA = b"all bytes of a film"
SHA = hashlib.sha256(DATA).hexdigest()


def opened(folder: Path, data: bytes = b"") -> PartialFile:
    file = PartialFile(folder, "ART", len(DATA), SHA)
    file.write([data])
    return file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_partial_file_of_an_earlier_download_is_continued(tmp_path: Path) -> None:
    opened(tmp_path, DATA[:5]).close(is_wanted=True)
    file = opened(tmp_path)
    assert file.bytes == 5
    file.write([DATA[5:]])
    assert file.is_whole()
    assert file.replace(tmp_path / "film") == tmp_path / "film"
    file.close(is_wanted=False)
    assert names(tmp_path) == ["film"]
    assert (tmp_path / "film").read_bytes() == DATA


def test_a_second_download_writes_a_file_of_its_own(tmp_path: Path) -> None:
    first = opened(tmp_path, DATA[:5])
    second = opened(tmp_path, DATA)
    assert len(names(tmp_path)) == 2
    assert second.is_whole()
    second.replace(tmp_path / "film")
    second.close(is_wanted=False)
    first.write([b"wrong"])
    first.close(is_wanted=True)
    assert (tmp_path / "film").read_bytes() == DATA
    third = opened(tmp_path)
    assert third.bytes == 10
    third.close(is_wanted=False)
    assert names(tmp_path) == ["film"]


def test_an_unwanted_or_empty_partial_file_is_removed(tmp_path: Path) -> None:
    opened(tmp_path).close(is_wanted=True)
    opened(tmp_path, b"x").close(is_wanted=False)
    one, other = opened(tmp_path, b"x"), opened(tmp_path, b"y")
    other.close(is_wanted=True)
    one.close(is_wanted=False)
    assert names(tmp_path) == []


@pytest.mark.parametrize("has_links", [True, False])
def test_no_other_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool) -> None:
    def no_links(*_: Any) -> None:
        raise OSError(errno.EPERM, "no hard links")

    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    found = []
    for _ in range(2):
        file = opened(tmp_path, DATA)
        assert file.is_whole()
        found.append(file.publish(["film", "ART-film"]))
        file.close(is_wanted=False)
    assert found == [tmp_path / "film"] * 2, "the second one found the same bytes"
    (tmp_path / "film").write_bytes(b"another")
    for _ in range(2):
        file = opened(tmp_path, DATA)
        assert file.is_whole()
        assert file.publish(["film", "ART-film"]) == tmp_path / "ART-film"
        file.close(is_wanted=False)
    assert names(tmp_path) == ["ART-film", "film"]
    assert (tmp_path / "film").read_bytes() == b"another"


def test_a_file_that_was_published_by_a_killed_download_is_not_written(tmp_path: Path) -> None:
    """The process was killed after it had named the file, and the file was changed since."""
    (tmp_path / ".ART.part").write_bytes(DATA)
    os.link(tmp_path / ".ART.part", tmp_path / "film")
    (tmp_path / "film").write_bytes(b"changed")
    file = opened(tmp_path, DATA)
    assert file.publish(["film", "ART-film"]) == tmp_path / "ART-film"
    file.close(is_wanted=False)
    assert (tmp_path / "film").read_bytes() == b"changed"


def test_a_link_that_another_user_planted_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / ".ART.part").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic links"):
        opened(tmp_path)
    assert (tmp_path / "mine").read_bytes() == b"mine"


def test_a_device_or_pipe_is_not_read() -> None:
    assert not has_content(Path(os.devnull), 0, hashlib.sha256(b"").hexdigest())
