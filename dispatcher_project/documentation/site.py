"""The gate's docs step: `mkdocs build --strict` into var/site, skipped where mkdocs is not installed."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from dispatcher_project.supervisor.data_folder import ROOT

_LOADED = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*(?:src|href)=["'](?:https?:)?//[^>]*>""")


def main() -> int:
    """Return 0 when every link, anchor and page of the navigation exists, and no page needs another host."""
    if importlib.util.find_spec("material") is None:
        sys.stdout.write("skipped: mkdocs-material is not installed (pyproject.toml, extra dev)\n")
        return 0
    # its notice is about MkDocs 2, which constraints.txt does not let in
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    status = subprocess.run(command, env=environment, check=False).returncode
    elsewhere = [] if status else loaded_from_elsewhere(ROOT / "var" / "site")
    for line in elsewhere:
        sys.stdout.write(f"{line}\n")
    return status or int(bool(elsewhere))


def loaded_from_elsewhere(folder: Path) -> list[str]:
    """Return each tag by which a browser would load something from another host, with its page."""
    return [
        f"{page.relative_to(folder)}: {found[0]}"
        for page in sorted(folder.rglob("*.html"))
        for found in _LOADED.finditer(page.read_text())
    ]


if __name__ == "__main__":
    sys.exit(main())
