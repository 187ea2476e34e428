"""`python -m dispatcher_project.documentation.screenshot`: the README's picture of an `up` that runs jobs."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dispatcher_project.supervisor.data_folder import ROOT

PICTURE = ROOT / "docs" / "assets" / "overview.png"
CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""Names of the program; the first one shows no window and takes two thirds of the CPU time."""
_WIDTH, _HEIGHT = 1440, 1000
_LOADS = (("zimg", 40, 3.0), ("flux", 10, 8.0), ("trellis", 6, 12.0), ("ltx2", 5, 20.0))
"""Models of the demo fleet: (model, jobs, seconds of each)."""
_SETTLE_SECONDS = 12.0
"""Until rollups have counted the first ends, so that the charts show them."""


class NoPicture(Exception):
    """No `up` with its demo fleet runs, or there is no browser."""


def read_facts(folder: Path | None = None) -> dict[str, Any]:
    """Return what `up` says of itself. folder: of its data; None: the usual one. Raises NoPicture."""
    data = folder or Path(os.environ.get("DISPATCHER_DATA_DIR", ROOT / "var"))
    try:
        facts: dict[str, Any] = json.loads((data / "up.json").read_text())
    except OSError as error:
        raise NoPicture(f"{error}; `manage.py up` must run") from None
    return facts


@contextmanager
def signed_in_tab(facts: dict[str, Any], width: int, height: int) -> Iterator[Any]:
    """Open a tab of a browser that shows the overview to the administrator of `up`. Raises NoPicture."""
    browser = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if browser is None:
        raise NoPicture(f"no browser is installed: none of {', '.join(CHROMIUM)} is on PATH")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise NoPicture(f"{error}; `manage.py test` installs it into .venv") from None
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": width, "height": height})
        _sign_in(page, facts)
        yield page
        chromium.close()


def submit(jobs: Sequence[Mapping[str, Any]], facts: dict[str, Any]) -> None:
    """Submit jobs as the tenant of `up`."""
    request = urllib.request.Request(
        f"{facts['url']}/api/v1/queue/submit-batch",
        data=json.dumps({"jobs": jobs}).encode(),
        headers={"Authorization": f"Bearer {facts['tenant_key']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30):
        pass


def main(arguments: list[str]) -> int:
    """Take the picture; exit status 2 without one."""
    jobs = [
        {"model": model, "payload": {"prompt": "a sunset", "seconds": seconds}}
        for model, count, seconds in _LOADS
        for _ in range(count)
    ]
    try:
        facts = read_facts(Path(arguments[0]) if arguments else None)
        with signed_in_tab(facts, _WIDTH, _HEIGHT) as page:
            submit(jobs, facts)
            time.sleep(_SETTLE_SECONDS)
            page.reload()
            page.screenshot(path=str(PICTURE))
    except NoPicture as why:
        sys.stderr.write(f"no picture: {why}\n")
        return 2
    sys.stdout.write(f"wrote {PICTURE} ({PICTURE.stat().st_size / 1000:.0f} kB)\n")
    return 0


def _sign_in(page: Any, facts: dict[str, Any]) -> None:
    """Sign the tab in as the administrator of `up.json`. It shows the overview then."""
    page.goto(f"{facts['url']}/admin/login/")
    page.fill("input[name=username]", facts["admin_user"])
    page.fill("input[name=password]", facts["admin_password"])
    page.press("input[name=password]", "Enter")
    page.wait_for_url(f"{facts['url']}/admin/")
    page.wait_for_load_state("load")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
