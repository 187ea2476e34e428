"""Operators' own files beside the sources get into no commit and no image; the file that they start
from names only settings that there are."""

from __future__ import annotations

import re
from dataclasses import fields
from fnmatch import fnmatch

import pytest

from dispatcher_project.settings.dispatcher import DispatcherSettings
from dispatcher_project.supervisor.data_folder import ROOT

EXAMPLE = "deploy/dispatcher.env.example"
SECRETS = ["deploy/.env", "deploy/dispatcher.env", "deploy/pinned.env", ".env"]


def is_ignored(path: str, file: str) -> bool:
    """By git's and Docker's rules as far as these files use them: a name without a slash counts in every
    folder (git), ``**/`` stands for any folders (Docker), a star for anything in a name, a first dot too.
    """
    name = path.rpartition("/")[2]
    patterns = (ROOT / file).read_text().split()
    if file == ".gitignore":
        return any(fnmatch(name, pattern) for pattern in patterns if "/" not in pattern.rstrip("/"))
    return any(
        fnmatch(name, pattern.removeprefix("**/")) if pattern.startswith("**/") else fnmatch(path, pattern)
        for pattern in patterns
    )


@pytest.mark.parametrize("file", [".gitignore", ".dockerignore"])
def test_no_secret_gets_into_a_commit_or_an_image(file: str) -> None:
    assert [path for path in SECRETS if not is_ignored(path, file)] == []
    assert not is_ignored(EXAMPLE, file)


@pytest.mark.parametrize("file", [EXAMPLE, "docs/how-to/deploying.md"])
def test_an_environment_file_names_existing_settings(file: str) -> None:
    text = (ROOT / file).read_text()
    named = set(re.findall(r"^#?(DISPATCHER_\w+)=", text, re.MULTILINE))
    known = {f"DISPATCHER_{field.name.upper()}" for field in fields(DispatcherSettings)}
    assert named - known == {"DISPATCHER_LOG_STYLE"}, "read by settings/base.py"
