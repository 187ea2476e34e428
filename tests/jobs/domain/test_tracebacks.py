"""Tracebacks without the dispatcher's own frames."""

from __future__ import annotations

import pytest

from jobs.domain.tracebacks import split_message, without_own_frames

USERS = '  File "/srv/models/flux.py", line 12, in run\n    raise ValueError\n'
OWN = '  File "/opt/lib/gpu_host/handlers/code.py", line 3, in call\n    run()\n    ~~~^^\n'
HEAD, END = "Traceback (most recent call last):\n", "ValueError: no"


@pytest.mark.parametrize(
    ("trace", "shown"),
    [
        (HEAD + OWN + USERS + END, HEAD + USERS + END),
        (HEAD + USERS + OWN + END, HEAD + USERS + END),
        (HEAD + OWN + END, HEAD + OWN + END),
        ("e 3, in call\n    run()\n" + USERS + END, "e 3, in call\n    run()\n" + USERS + END),
        (HEAD + OWN + USERS + END + "\n\nDuring handling of …\n\n" + HEAD + OWN + USERS + END,
         HEAD + USERS + END + "\n\nDuring handling of …\n\n" + HEAD + USERS + END),
        ("", ""),
    ],
)  # fmt: skip
def test_only_own_frames_are_left_out(trace: str, shown: str) -> None:
    assert without_own_frames(trace) == shown


@pytest.mark.parametrize(
    ("path", "is_own"),
    [
        ("/a/gpu_host/local/child.py", True),
        ("/a/gpus/runners/transport.py", True),
        (r"C:\a\gpu_host\node\work.py", True),
        ("/a/gpu_host/local/demo_models.py", False),
        ("/home/ann/gpu_host/model.py", False),
        ("/home/ann/foundation/models/unet.py", False),
        ("/a/torch/nn/modules/module.py", False),
    ],
)
def test_own_frames_are_known_by_their_folders(path: str, is_own: bool) -> None:
    frame = f'  File "{path}", line 1, in run\n    run()\n'
    assert (frame not in without_own_frames(HEAD + frame + USERS + END)) == is_own


def test_a_message_is_split_from_its_traceback() -> None:
    assert split_message("no weights") == ("no weights", "")
    assert split_message("no\n\nTraceback\n\nDuring") == ("no", "Traceback\n\nDuring")
