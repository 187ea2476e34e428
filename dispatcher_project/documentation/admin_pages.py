"""`python -m dispatcher_project.documentation.admin_pages FOLDER`: a picture of every admin page of a running
`up`, at the widths of a desktop and a phone, to be looked at after a change of templates or styles."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dispatcher_project.documentation.screenshot import NoPicture, read_facts, signed_in_tab, submit

WIDTHS = (1400, 390)
_HEIGHT = 900
_JOBS: tuple[dict[str, Any], ...] = (
    *({"model": "flux", "payload": {"prompt": "a sunset", "seconds": 40}} for _ in range(12)),
    *({"model": "zimg", "payload": {"prompt": "a fox", "seconds": 0.2}, "tags": ["demo"]} for _ in range(20)),
    {"model": "zimg", "payload": {"prompt": "a fox", "fault": 422}},
    {"model": "ltx2", "payload": {"prompt": "a wave", "seconds": 0.3, "fault": "fail"}, "max_retries": 2},
)
"""Jobs of every kind of end on the demo fleet, and some that wait."""
_SETTLE_SECONDS = 15.0
"""Until the last of them has failed for good, and rollups have counted the first ends."""
_ONE_ROW = 'th a[href*="/change/"], td a[href*="/change/"]'
_WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
_PATH_OF = "href => new URL(href, location.href).pathname"
_JOB_STATES = ("running", "queued", "completed", "failed")


def main(arguments: list[str]) -> int:
    """Write `NAME-WIDTH.png` for each page into the folder; exit status 1 where a page is wider than the
    window, 2 where no `up` with its demo fleet runs or there is no browser."""
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write("usage: python -m dispatcher_project.documentation.admin_pages FOLDER\n")
        return 2
    folder = Path(arguments[0])
    try:
        facts = read_facts()
        with signed_in_tab(facts, WIDTHS[0], _HEIGHT) as page:
            folder.mkdir(parents=True, exist_ok=True)
            submit(_JOBS, facts)
            time.sleep(_SETTLE_SECONDS)
            wider = list(_picture_all(page, facts["url"], folder))
    except NoPicture as why:
        sys.stderr.write(f"no pictures: {why}\n")
        return 2
    sys.stdout.write(
        "".join(f"{line}\n" for line in wider) + f"wrote {len(list(folder.glob('*.png')))} pictures\n"
    )
    return 1 if wider else 0


def _picture_all(page: Any, url: str, folder: Path) -> Iterator[str]:
    """Write the pictures; yield a line for each page that is wider than the window."""
    for name, path in _paths(page, url):
        page.goto(url + path)
        page.wait_for_timeout(300)  # the live parts of a page arrive by themselves
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": _HEIGHT})
            page.screenshot(path=str(folder / f"{name}-{width}.png"), full_page=True)
            over = page.evaluate(_WIDER)
            if over > 0:
                yield f"{path} is {over} px wider than {width} px"


def _paths(page: Any, url: str) -> Iterator[tuple[str, str]]:
    """Yield (name, path) of the pages of the sidebar, the first row of each list, and a job in each state."""
    page.goto(f"{url}/admin/")
    hrefs = page.eval_on_selector_all("nav a[href]", "links => links.map(link => link.getAttribute('href'))")
    lists = sorted({href for href in hrefs if href.startswith("/admin/") and "flower" not in href})
    yield from ((_name(path), path) for path in lists)
    for path in lists:
        page.goto(url + path)
        row = page.locator(f"#result_list :is({_ONE_ROW})").first
        if row.count():
            yield f"{_name(path)}-row", page.evaluate(_PATH_OF, row.get_attribute("href"))
        if page.locator("a.addlink, a[href$='/add/']").count():
            yield f"{_name(path)}-add", f"{path}add/"
    for state in _JOB_STATES:
        page.goto(f"{url}/admin/jobs/job/?state__exact={state}")
        row = page.locator(f"#result_list :is({_ONE_ROW})").first
        if row.count():
            yield f"job-{state}", page.evaluate(_PATH_OF, row.get_attribute("href"))
    yield "bulk", "/admin/jobs/job/bulk/"
    yield "password", "/admin/password_change/"


def _name(path: str) -> str:
    return re.sub(r"\W+", "-", path.removeprefix("/admin/")).strip("-") or "overview"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
