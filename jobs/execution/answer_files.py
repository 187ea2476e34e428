"""Files in the results of servers that know nothing of artifacts: texts with base64, `data:` URIs or URLs, at
the places that the model names (`output_files`) or marks (`result_schema`). They become outputs of the run,
and the result gets references in their place. Also the check of a result against `result_schema`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from mimetypes import guess_extension
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit

from django.conf import settings

from artifacts.file_fields import FileValue, checked_schema, file_fields
from artifacts.keep import clean_name
from artifacts.media_types import type_of
from artifacts.refs import only_ref
from artifacts.uploads import SNIFFED_BYTES
from foundation.base64_file import as_file, decoded, unquoted, without_first
from foundation.data_uri import BadDataUri, is_data_uri, read_head
from foundation.foreign_schema import (
    CHEAP_STEPS,
    CheckTimedOut,
    ForeignSchema,
    Mismatch,
    NoFreeProcess,
    SchemaProcesses,
    SchemaRefused,
    TimeBudget,
    TooMuchMemory,
)
from foundation.http_client import MAX_URL_LENGTH
from foundation.json_paths import Path, pointer, with_values
from foundation.json_places import places
from foundation.json_text import JsonText, NotReadable, unwrap
from foundation.long_texts import LongText, LongTexts
from gpus.errors import OutputInvalid, OutputRefused
from gpus.protocol import ModelSpec
from gpus.runners.base import SaveOutput
from gpus.runners.transport import restored
from jobs.execution.file_schema import schema_of_shown
from jobs.execution.output_errors import OutputsUnavailable, no_room
from jobs.execution.url_files import UrlFiles

_SHOWN_URL, _SHOWN_BASE64 = "https://artifact.invalid/file", "QUFB"
"""In place of a file's text while a result is checked against its schema."""
_URLS = ("https://", "http://")
_HEAD_CHARS = MAX_URL_LENGTH + 1
_PIECE_CHARS = 256 * 1024
_MAX_FIELDS = 10


@dataclass(frozen=True, slots=True)
class _File:
    """A text that holds a file. text: itself, or where it is. head: its first characters. media_types: that
    its place may have."""

    path: Path
    text: str | LongText
    head: str
    media_types: tuple[str, ...]

    @property
    def is_url(self) -> bool:
        return self.head.startswith(_URLS)

    @property
    def shown(self) -> str:
        """The text that replaces this one while the schema is checked."""
        return _SHOWN_URL if self.is_url or is_data_uri(self.head) else _SHOWN_BASE64

    def chunks(self) -> Iterator[bytes]:
        """Yield the text in pieces. Raises NotReadable."""
        if isinstance(self.text, LongText):
            yield from self.text.chunks()
            return
        for first in range(0, len(self.text), _PIECE_CHARS):
            try:
                yield self.text[first : first + _PIECE_CHARS].encode("ascii")
            except UnicodeEncodeError:
                raise NotReadable("the text has characters beyond ASCII") from None


@dataclass(frozen=True, slots=True)
class _Read:
    """A result whose files are known. shown: with other texts in their place."""

    shown: Any
    files: list[_File]


class AnswerFiles:
    """The files in the result of one attempt.

    processes: run checks of results that may take long. urls: reads the files that a result names by URL.
    """

    def __init__(self, spec: ModelSpec, processes: SchemaProcesses, urls: UrlFiles) -> None:
        self._spec, self._processes, self._urls = spec, processes, urls
        self._read: _Read | None = None
        self._saved: dict[Path, Any] = {}

    def replaced(
        self,
        result: Any,
        texts: LongTexts | None,
        save: SaveOutput,
        saved_types: Mapping[str, str] = MappingProxyType({}),
    ) -> Any:
        """Check the result; return it with references in place of its files.

        It may be called again after OutputNotStored: what is saved then stays so. texts: long texts, for
        which the result has marks. saved_types: media types of the outputs that the run saved itself, by id;
        "": not known yet. Raises OutputInvalid, OutputRefused, OutputNotStored and RunFailed.
        """
        if self._read is None:
            self._read = self._look(unwrap(result), texts, saved_types)
        for file in self._read.files:
            if file.path not in self._saved:
                keep = self._save_url if file.is_url else _save_text
                self._saved[file.path] = keep(file, save)
        whole = with_values(self._read.shown, self._saved) if self._saved else self._read.shown
        return JsonText.of(whole) if isinstance(result, JsonText) else whole

    def _look(self, result: Any, texts: LongTexts | None, saved_types: Mapping[str, str]) -> _Read:
        schema = self._compiled()
        files, refs = self._find(result, texts, schema, saved_types)
        shown = {one.path: one.shown for one in files}
        value = with_values(result, shown) if shown else result
        if texts is not None:
            value = restored(value, texts)
        if schema is not None:
            schema = schema_of_shown(schema, [*shown, *refs])
            self._check(schema, with_values(value, dict.fromkeys(refs, _SHOWN_URL)) if refs else value)
        return _Read(value, files)

    def _compiled(self) -> ForeignSchema | None:
        if self._spec.result_schema is None:
            return None
        try:
            return checked_schema(self._spec.result_schema)
        except SchemaRefused as refused:  # stored by an older version
            raise OutputInvalid("The model's result_schema can't be used.", detail=str(refused)) from None

    def _find(
        self,
        result: Any,
        texts: LongTexts | None,
        schema: ForeignSchema | None,
        saved_types: Mapping[str, str],
    ) -> tuple[list[_File], list[Path]]:
        """Return the files of a result, and the places for files with a reference that its server made."""
        marked = None if schema is None else file_fields(schema.text, of_result=True)
        declared = {} if marked is None else {one.path: one for one in marked.find(result)}
        found = {path: one.value for path, one in declared.items() if type(one.value) is str}
        refs = [path for path, one in declared.items() if only_ref(one.value) is not None]
        for path in refs:
            _check_saved(declared[path], saved_types.get(str(only_ref(declared[path].value)), ""))
        named = self._named(result)
        for path, value in named.items():
            if only_ref(value) is not None:
                refs.append(path)
            elif type(value) is str:
                found[path] = value
            elif value is not None:
                raise OutputInvalid(
                    f"{_shown(path)} is {_kind(value)}, and output_files names a file there: it must be a "
                    "text with base64, a data: URI or a URL."
                )
        most = settings.DISPATCHER.run_artifacts
        if len(found) > most:
            raise OutputRefused(
                f"The result has {len(found)} files, a run may save {most} (DISPATCHER_RUN_ARTIFACTS)."
            )
        files = []
        for path, value in found.items():
            text = (texts.find(value) if texts is not None else None) or value
            media_types = declared[path].media_types if path in declared else ()
            files.append(_File(path, text, _head(path, text), media_types))
        return files, list(dict.fromkeys(refs))

    def _named(self, result: Any) -> Mapping[Path, Any]:
        """Return the values at the paths of `output_files`."""
        paths, found, are_there = self._spec.output_files or (), dict[Path, Any](), False
        for path in paths:
            one = places(path).find(result)
            found |= one.values
            are_there = are_there or one.is_there
        if paths and not are_there:
            raise OutputInvalid(
                f"The result has nothing at {' or '.join(paths)}, where output_files says that its files "
                "are.",
                detail=f"The result is {_kind(result)}.",  # names of a server's choice are for operators
            )
        return found

    def _save_url(self, file: _File, save: SaveOutput) -> Any:
        url = file.head  # a longer one is refused
        try:
            found = tempfile.TemporaryFile()  # noqa: SIM115
        except OSError as error:
            raise no_room(str(error.strerror)) from None
        with found:
            said = self._urls.read(url, found, _shown(file.path))
            name = unquote(urlsplit(url).path.rpartition("/")[2])
            return _save(file, cast("BinaryIO", found), said, save, name=name or _name(file.path))

    def _check(self, schema: ForeignSchema, value: Any) -> None:
        """Raise OutputInvalid for a value that does not match the schema."""
        found = self._mismatch(schema, value)
        if found is not None:
            raise OutputInvalid(
                f"The result does not match the model's result_schema: {_shown(found.path)}: {found.text}"  # type: ignore[arg-type]
            )

    def _mismatch(self, schema: ForeignSchema, value: Any) -> Mismatch | None:
        if schema.steps(json.dumps(value, separators=(",", ":")).encode()) <= CHEAP_STEPS:
            return schema.mismatch(value)
        limits = settings.DISPATCHER
        try:
            return self._processes.mismatch(schema, value, TimeBudget())
        except TooMuchMemory:
            raise OutputInvalid(
                f"The check against result_schema needs more than {limits.schema_check_bytes} bytes of "
                "memory (DISPATCHER_SCHEMA_CHECK_BYTES)."
            ) from None
        except CheckTimedOut:
            raise OutputInvalid(
                f"The check against result_schema takes more than {limits.schema_check_seconds:g} s "
                "(DISPATCHER_SCHEMA_CHECK_SECONDS)."
            ) from None
        except NoFreeProcess:
            raise OutputsUnavailable(
                f"The result is not checked: {limits.schema_checks} long checks run "
                "(DISPATCHER_SCHEMA_CHECKS)."
            ) from None


def _check_saved(file: FileValue, content_type: str) -> None:
    """Raise OutputInvalid for a file that the run saved itself and whose type the schema does not declare."""
    if content_type and type_of(b"", content_type, file.media_types) is None:
        raise _wrong_type(file.path, content_type, file.media_types)


def _wrong_type(path: Path, found: str, declared: tuple[str, ...]) -> OutputInvalid:
    return OutputInvalid(f"{_shown(path)} is {found}, result_schema says {' or '.join(declared)}.")


def _head(path: Path, text: str | LongText) -> str:
    if isinstance(text, str):
        return text[:_HEAD_CHARS]
    try:
        return next(text.chunks(), b"")[:_HEAD_CHARS].decode("ascii")
    except NotReadable as error:
        raise _not_a_file(path, error) from None


def _save_text(file: _File, save: SaveOutput) -> Any:
    try:
        chunks, said = _bytes_of(file)
        with as_file(chunks) as found:
            return _save(file, found, said, save, name=_name(file.path))
    except (BadDataUri, NotReadable) as error:
        raise _not_a_file(file.path, error) from None


def _save(file: _File, found: BinaryIO, said: str, save: SaveOutput, *, name: str) -> Any:
    """Store a file, and return the reference to it. found: its bytes. said: its type, as its server says."""
    found.seek(0)
    first, place = found.read(SNIFFED_BYTES), _shown(file.path)
    if not first:
        raise OutputInvalid(f"{place} is empty, and the model's results have a file there.")
    content_type = type_of(first, said, file.media_types)
    if content_type is None:
        raise _wrong_type(file.path, str(type_of(first, said)), file.media_types)
    if not PurePosixPath(name).suffix:  # so that a downloaded picture opens
        name += guess_extension(content_type) or ""
    return save(found, name=clean_name(name), content_type=content_type)


def _bytes_of(file: _File) -> tuple[Callable[[], Iterator[bytes]], str]:
    """Return what reads the bytes of a file from their beginning, and the type that its text says."""
    if not is_data_uri(file.head):
        return lambda: decoded(file.chunks()), ""
    head = read_head(file.head)
    decode = decoded if head.is_base64 else unquoted
    return lambda: decode(without_first(file.chunks(), head.length)), head.media_type


def _not_a_file(path: Path, error: Exception) -> OutputInvalid:
    return OutputInvalid(
        f"{_shown(path)} is no file: {error}. The model's output_files or result_schema says that its server "
        "answers base64, a data: URI or a URL there."
    )


def _shown(path: Path) -> str:
    """Return a place in the result for a message."""
    return pointer(path)[:200] or "The result itself"


def _kind(value: Any) -> str:
    """Return what a value is, for a message."""
    if isinstance(value, dict):
        names = ", ".join(str(name)[:50] for name in list(value)[:_MAX_FIELDS])
        return f"an object with {names}" if names else "an empty object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if value is None:
        return "null"
    return {str: "a text", bool: "a boolean"}.get(type(value), "a number")


def _name(path: Path) -> str:
    """Return the name of a file for downloads, by its place."""
    return "-".join(str(part) for part in path)
