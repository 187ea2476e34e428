"""The routes of the API, and their URLs with real ids."""

from __future__ import annotations

from collections.abc import Iterator

from django.urls import URLPattern, URLResolver, get_resolver

PUBLIC = {"schema", "docs", "tasks/callback/<str:job_id>", "tasks/artifacts/<str:job_id>"}


METHODS = ("get", "post", "put", "patch", "delete")


def routes() -> Iterator[tuple[str, str]]:
    """Return every (method, path) under /api/v1, from the URL configuration."""
    for prefix, pattern in _walk(get_resolver().url_patterns, ""):
        if prefix.startswith("api/v1/") and prefix.removeprefix("api/v1/") not in PUBLIC:
            view = pattern.callback.view_class  # type: ignore[attr-defined]
            for method in METHODS:
                if hasattr(view, method):
                    yield method, "/" + prefix


def _walk(patterns: list[URLPattern | URLResolver], prefix: str) -> Iterator[tuple[str, URLPattern]]:
    for pattern in patterns:
        whole = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _walk(pattern.url_patterns, whole)
        else:
            yield whole, pattern


ROUTES = sorted(routes())


RUN_ID = "01M8ECJK143KH8VXVH2QXVYVF3"


def filled(path: str, job_id: str) -> str:
    names = {
        "<str:job_id>": job_id,
        "<str:artifact_id>": job_id,
        "<str:model>": "zimg",
        "<str:server>": "s1",
        "<str:machine>": "box",
        "<str:tenant>": "acme",
        "<str:name>": "film",
        "<str:number>": "1",
        "<str:run_id>": RUN_ID,
        "<str:key>": "best",
    }
    for place, name in names.items():
        path = path.replace(place, name)
    return path
