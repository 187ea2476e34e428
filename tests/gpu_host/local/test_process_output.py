"""What a model process writes past Python's streams: lines without the signatures of URLs."""

from __future__ import annotations

import os

import pytest

from gpu_host.local.process_output import ProcessOutput

SIGNED = "http://box/store/a/7/ab?expires=9&signature=SECRET&x=1"


@pytest.mark.parametrize("cut", ["&sign", "signature=", "SEC"])
def test_a_signature_in_a_line_that_is_passed_on_in_parts_is_left_out(cut: str) -> None:
    lines: list[str] = []
    (out, feed), (err, closed) = os.pipe(), os.pipe()
    read = [os.fdopen(one, "rb", buffering=0) for one in (out, err)]
    output = ProcessOutput(read[0], read[1], lambda _, line: lines.append(line))
    first, _, second = SIGNED.partition(cut)
    output._take("stdout", (first + cut).encode())
    output.settle()
    os.write(feed, f"{second}\nSECRETS of another line\n".encode())
    os.close(feed)
    os.close(closed)
    output.read()
    assert "".join(lines[:2]) == SIGNED.replace("SECRET", "…")
    assert lines[2:] == ["SECRETS of another line"]
