"""`python -m dispatcher_project.documentation.screenshot`: the README's picture of an `up` that runs jobs."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import urllib.request
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


def main(arguments: list[str]) -> int:
    """Take the picture; exit status 2 where no `up` with its demo fleet runs, or there is no browser."""
    folder = Path(arguments[0] if arguments else os.environ.get("DISPATCHER_DATA_DIR", ROOT / "var"))
    browser = next(filter(None, map(shutil.which, CHROMIUM)), None)
    try:
        facts = json.loads((folder / "up.json").read_text())
        from playwright.sync_api import sync_playwright
    except (OSError, ImportError) as error:
        sys.stderr.write(f"no picture: {error}; `manage.py up` must run, and playwright be installed\n")
        return 2
    if browser is None:
        sys.stderr.write(f"no picture: none of {', '.join(CHROMIUM)} is on PATH\n")
        return 2
    _submit(facts)
    time.sleep(_SETTLE_SECONDS)
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
        sign_in(page, facts)
        page.screenshot(path=str(PICTURE))
        chromium.close()
    sys.stdout.write(f"wrote {PICTURE} ({PICTURE.stat().st_size / 1000:.0f} kB)\n")
    return 0


def sign_in(page: Any, facts: dict[str, Any]) -> None:
    """Sign the tab in as the administrator of `up.json`. It shows the overview then."""
    page.goto(f"{facts['url']}/admin/login/")
    page.fill("input[name=username]", facts["admin_user"])
    page.fill("input[name=password]", facts["admin_password"])
    page.press("input[name=password]", "Enter")
    page.wait_for_url(f"{facts['url']}/admin/")
    page.wait_for_load_state("load")


def _submit(facts: dict[str, Any]) -> None:
    jobs = [
        {"model": model, "payload": {"prompt": "a sunset", "seconds": seconds}}
        for model, count, seconds in _LOADS
        for _ in range(count)
    ]
    request = urllib.request.Request(
        f"{facts['url']}/api/v1/queue/submit-batch",
        data=json.dumps({"jobs": jobs}).encode(),
        headers={"Authorization": f"Bearer {facts['tenant_key']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30):
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
