"""The files that come with a submit: parts of its form, and `data:` URIs and https URLs at the places that
the model's schema marks for files. They become artifacts, and the payload refers to them.

A payload of a model without such places, sent as plain JSON, costs nothing here.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from django.conf import settings

from artifacts.errors import ArtifactRefused
from artifacts.file_fields import FileFields, file_fields
from artifacts.keep import HashedFile, LocalFile, keep_file
from artifacts.media_types import bare, fits, type_of
from artifacts.models import Artifact
from artifacts.refs import REF, ref
from artifacts.store.contract import StoreError
from foundation.data_uri import BadDataUri, is_data_uri, read_data_uri
from foundation.fetch import NotFetched, NotKept
from foundation.foreign_schema import Schema, SchemaRefused, compiled
from foundation.json_paths import Path, pointer, with_values
from foundation.stored_schema import StoredSchema
from jobs.domain.errors import (
    ArtifactStoreUnavailable,
    FileInvalid,
    FileNotFetched,
    FileNotSent,
    FileRefused,
    FileTypeWrong,
    FileUnused,
    Refused,
    TooManyArtifacts,
)
from jobs.ports import Ports
from jobs.submission.artifact_refs import require_one_host

FILE = "$file"
"""The one member of an object that refers to a part of the form, by name."""
_POINTER = "/payload"
_HTTPS = "https://"
_CHECKED_AS = "https://artifact.invalid/" + "0" * 26
"""What a schema is checked with in place of a file: the server gets a URL there."""
_CHECKED_AS_REF = ref("0" * 26)


FetchedFile = LocalFile | NotFetched | NotKept


@dataclass(frozen=True, slots=True)
class InputFiles:
    """The files of one request. uploaded: parts of its form, by name; None: it is no form, so a payload may
    have objects that look like references to parts. made_by_key: name of the API key. fetched: what was read
    from each URL, or why it was not; None: URLs stay as they are."""

    uploaded: Mapping[str, LocalFile] | None = None
    made_by_key: str = ""
    fetched: Mapping[str, FetchedFile] | None = None


NO_FILES = InputFiles()


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in a payload that holds a file. source: None for one that is an artifact already.
    media_types: that the schema declares."""

    path: Path
    source: LocalFile | str | None
    media_types: tuple[str, ...] = ()
    is_marked: bool = True


class PayloadFiles:
    """The files of one payload. Raises Refused."""

    def __init__(self, payload: Any, schema: Schema | StoredSchema | None, files: InputFiles) -> None:
        self._payload, self._files = payload, files
        self._places = [*_marked(payload, _fields(schema), files)]
        if files.uploaded is not None:
            known = {one.path for one in self._places}
            self._places += [one for one in _references(payload, files, known)]
            _check_all_used(self._places, files)

    def for_check(self) -> Any:
        """Return the payload as the model's schema is checked with it: the server gets a URL for a file."""
        if not self._places:
            return self._payload
        new = {
            one.path: _CHECKED_AS if one.is_marked else _CHECKED_AS_REF
            for one in self._places
            if not isinstance(one.source, str)
        }
        return with_values(self._payload, new) if new else self._payload

    def stored(self, tenant_id: int, now: datetime, ports: Ports) -> Any:
        """Make the files artifacts of the tenant; return the payload with references to them."""
        sources = [one for one in self._places if one.source is not None]
        if len(sources) > settings.DISPATCHER.max_artifact_refs:
            raise TooManyArtifacts(
                f"A payload may have {settings.DISPATCHER.max_artifact_refs} files "
                "(DISPATCHER_MAX_ARTIFACT_REFS).",
                pointer=_POINTER,
            )
        if not sources:
            return self._payload
        require_one_host(ports, pointer=_pointer(sources[0]))
        found = [
            (one, *_opened(one, self._files)) for one in sources
        ]  # all are checked before the first is stored
        new = {}
        for place, file, content_type in found:
            keep = partial(keep_file, file, tenant_id=tenant_id, content_type=content_type, now=now)
            keep = partial(keep, unused_seconds=settings.DISPATCHER.submit_file_seconds)
            row = _kept(
                place,
                partial(keep, made_by_key=self._files.made_by_key, store=ports.artifact_store),
            )
            new[place.path] = ref(row.pk)
        return with_values(self._payload, new)

    def check_types(self, tenant_id: int) -> None:
        """Check the types of artifacts that stand at places for files."""
        marked = {
            value[REF]: one
            for one in self._places
            if one.source is None and isinstance(value := _at(self._payload, one.path), dict)
        }
        ids = [one for one in marked if isinstance(one, str)]
        rows = Artifact.objects.filter(tenant_id=tenant_id, pk__in=ids).exclude(content_type="")
        for artifact_id, content_type in rows.values_list("pk", "content_type"):
            place = marked[artifact_id]
            if not fits(content_type, place.media_types):
                raise _wrong_type(place, content_type)


def _kept(place: _Place, keep: Callable[[], Artifact]) -> Artifact:
    try:
        return keep()
    except ArtifactRefused as refused:
        raise FileRefused(refused, pointer=_pointer(place)) from None
    except StoreError as error:
        raise ArtifactStoreUnavailable(
            f"The file can't be stored. {error}", pointer=_pointer(place), retry_after_seconds=5.0
        ) from None


def has_files(schema: Schema | StoredSchema | None) -> bool:
    """Return True if a schema marks places for files."""
    return _fields(schema) is not None


def fingerprint_body(body: Any, files: InputFiles) -> Any:
    """Return a submit's body with the hash of each part that it refers to in place of its name."""
    if not files.uploaded:
        return body
    new = {path: {FILE: files.uploaded[name].sha256} for path, name in _names(body) if name in files.uploaded}
    return with_values(body, new) if new else body


def _fields(schema: Schema | StoredSchema | None) -> FileFields | None:
    if schema is None:
        return None
    try:
        return file_fields(compiled(schema).text)
    except SchemaRefused:
        return None


def _marked(payload: Any, fields: FileFields | None, files: InputFiles) -> Iterator[_Place]:
    """Yield the places that the schema marks and that hold a file."""
    if fields is None:
        return
    for one in fields.find(payload):
        value = one.value
        if isinstance(value, str) and (is_data_uri(value) or (files.fetched is not None and is_url(value))):
            yield _Place(one.path, value, one.media_types)
        elif isinstance(value, dict) and REF in value:
            yield _Place(one.path, None, one.media_types)
        elif _is_reference(value):
            yield _Place(one.path, _part(value[FILE], one.path, files), one.media_types)


def _references(payload: Any, files: InputFiles, known: set[Path]) -> Iterator[_Place]:
    """Yield the references to parts at other places."""
    for path, name in _names(payload):
        if path not in known:
            yield _Place(path, _part(name, path, files), is_marked=False)


def _names(value: Any) -> Iterator[tuple[Path, str]]:
    """Yield the references to parts in a JSON value, with their places."""
    waiting: list[tuple[Any, Path]] = [(value, ())]
    while waiting:
        one, path = waiting.pop()
        if _is_reference(one):
            yield path, one[FILE]
        elif isinstance(one, dict):
            waiting += [(child, (*path, key)) for key, child in one.items() if isinstance(child, dict | list)]
        elif isinstance(one, list):
            waiting += [
                (child, (*path, at)) for at, child in enumerate(one) if isinstance(child, dict | list)
            ]


def _is_reference(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get(FILE), str)


def _part(name: str, path: Path, files: InputFiles) -> LocalFile:
    place = f"{_POINTER}{pointer(path)}"
    if files.uploaded is None:
        raise FileNotSent(
            f'{{"{FILE}": …}} refers to a part of a form (multipart/form-data), and the request is none.',
            pointer=place,
        )
    found = files.uploaded.get(name)
    if found is None:
        raise FileNotSent(
            f"The form has no file {name[:100]!r}; it has {_listed(files.uploaded)}.", pointer=place
        )
    return found


def _check_all_used(places: Sequence[_Place], files: InputFiles) -> None:
    used = {id(one.source) for one in places}
    unused = [name for name, file in (files.uploaded or {}).items() if id(file) not in used]
    if unused:
        raise FileUnused(
            f"The payload does not refer to the file {unused[0][:100]!r} of the form. Refer to it by "
            f'{{"{FILE}": "{unused[0][:100]}"}}.',
            pointer=_POINTER,
        )


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(repr(name[:50]) for name in list(names)[:10]) or "none"


def is_url(text: str) -> bool:
    """Return True for a URL whose file the dispatcher may read."""
    return text[: len(_HTTPS)].lower() == _HTTPS


def urls_of(payload: Any, schema: Schema | StoredSchema | None) -> Iterator[str]:
    """Yield the https URLs at the places that the schema marks for files."""
    if (fields := _fields(schema)) is not None:
        for one in fields.find(payload):
            if isinstance(one.value, str) and is_url(one.value):
                yield one.value


def _fetched(url: str, place: _Place, files: InputFiles) -> LocalFile:
    """Return the file that was read from a URL. Raises FileNotFetched, ArtifactStoreUnavailable."""
    assert files.fetched is not None
    found = files.fetched.get(url)
    if isinstance(found, LocalFile):
        return found
    if isinstance(found, NotKept):
        raise ArtifactStoreUnavailable(
            "The server has no disk space for the file of the URL.",
            pointer=_pointer(place),
            retry_after_seconds=60.0,
        )
    why = "was not read, because the model's schema has changed meanwhile" if found is None else str(found)
    raise FileNotFetched(f"The URL {why}.", pointer=_pointer(place))


def _opened(place: _Place, files: InputFiles) -> tuple[LocalFile, str]:
    """Return the file of a place, and its type. Raises FileInvalid, FileTypeWrong, FileNotFetched."""
    file = place.source
    if isinstance(file, str) and not is_data_uri(file):
        file = _fetched(file, place, files)
    elif isinstance(file, str):
        try:
            media_type, data = read_data_uri(file)
        except BadDataUri as bad:
            raise FileInvalid(f"Not a file: {bad}.", pointer=_pointer(place)) from None
        hashed = HashedFile(io.BytesIO())
        hashed.add(data)
        file = hashed.done(media_type=media_type)
    assert file is not None
    found = type_of(file.head(), file.media_type, place.media_types)
    if found is None:
        raise _wrong_type(place, type_of(file.head(), file.media_type) or "unknown")
    return file, found


def _wrong_type(place: _Place, found: str) -> Refused:
    return FileTypeWrong(
        f"The model's schema requires {' or '.join(place.media_types)[:200]} here; "
        f"the file is {bare(found)}.",
        pointer=_pointer(place),
    )


def _pointer(place: _Place) -> str:
    return f"{_POINTER}{pointer(place.path)}"


def _at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value
