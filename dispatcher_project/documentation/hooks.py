"""What mkdocs.yml cannot say: pages with a diagram load Mermaid, from the site itself and not from a CDN."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

LIBRARY = "assets/mermaid.js"
"""In docs/ as `.gz`: dist/mermaid.tiny.js of the npm package `@mermaid-js/tiny` 11.17.2 (MIT)."""
_DIAGRAM = '<pre class="mermaid">'


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Add the script to a page that needs it. Material finds `window.mermaid` and then loads no other."""
    if _DIAGRAM not in output:
        return output
    script = f'<script src="{"../" * page.url.count("/")}{LIBRARY}"></script>'
    before, mark, after = output.rpartition("</body>")
    first = before.index("<script src=")
    return f"{before[:first]}{script}{before[first:]}{mark}{after}"


def on_post_build(*, config: Any) -> None:
    """Unpack the library into the site."""
    packed = Path(config["site_dir"]) / f"{LIBRARY}.gz"
    (Path(config["site_dir"]) / LIBRARY).write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
