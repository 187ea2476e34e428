"""Wall clocks of single processes of the trial, settable while they run (clock_shim.c)."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock_shim.c")


class Clocks:
    """The settable wall clocks of the trial's processes.

    folder: created here. words: names of the clocks, each a word of its processes' command lines. why_not:
    why this machine can't shift clocks; empty if it can."""

    def __init__(self, folder: Path, words: Iterable[str]) -> None:
        self._files = folder / "set"
        self._files.mkdir(parents=True, exist_ok=True)
        self._library = folder / "clock_shim.so"
        for word in words:
            self._write(word, 0.0)
        self.why_not = self._compile()

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the variables for processes whose clocks shall be settable."""
        if self.why_not:
            return {}
        return {"LD_PRELOAD": str(self._library), "PROVE_CLOCKS": str(self._files)}

    def shift(self, word: str, seconds: float) -> None:
        """Set the wall clock of these processes ahead of the machine's by `seconds`."""
        if not (self._files / word).exists():
            raise KeyError(word)
        self._write(word, seconds)

    def _write(self, word: str, seconds: float) -> None:
        with (self._files / word).open("r+b" if (self._files / word).exists() else "wb") as file:
            file.write(struct.pack("=q", round(seconds * 1_000_000)))

    def _compile(self) -> str:
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if sys.platform != "linux":
            return "only on Linux can single processes get another clock"
        if compiler is None:
            return "there is no C compiler (cc) to build the clock shim with"
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(self._library), str(_SOURCE), "-ldl"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        return f"the clock shim was not built: {made.stderr.strip()[-300:]}" if made.returncode else ""
