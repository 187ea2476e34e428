"""The runner of a `model_type`: built in, of a package, or refused with a reason."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpus.protocol import ModelSpec
from gpus.runners import registry
from gpus.runners.http_runner import SyncHttpRunner
from gpus.runners.registry import BUILT_IN, GROUP, RunnerMissing, RunnerRegistry, check_runner, runner_for


class Acme(SyncHttpRunner):
    name = "acme"
    summary = "A made-up server."


class Again(Acme):
    pass


class Pinned(Acme):
    is_pinned = True


class Half:
    name = "half"
    summary = "It can only start."

    def start(self) -> None: ...


def entry(name: str, value: str = "Acme") -> EntryPoint:
    return EntryPoint(name, f"{__name__}:{value}", GROUP)


def installed(*entries: EntryPoint) -> RunnerRegistry:
    return RunnerRegistry(declared=lambda: entries)


def test_built_in_runners_come_first_in_order() -> None:
    found = installed(entry("acme"))
    assert list(found.all()) == [*(runner.name for runner in BUILT_IN), "acme"]
    assert found.find("acme") is Acme
    assert found.find("triton") is None
    assert not found.unusable()


def test_a_built_in_runner_is_found_without_loading_entry_points() -> None:
    def declared() -> list[EntryPoint]:
        raise AssertionError("the entry points were read")

    assert RunnerRegistry(declared=declared).find("sync") is SyncHttpRunner


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (EntryPoint("acme", "no_such_package:Acme", GROUP), "ModuleNotFoundError"),
        (entry("acme", "NoSuchClass"), "AttributeError"),
        (entry("other"), "is named 'other', the class 'acme'"),
        (entry("half", "Half"), "poll, cancel, read_pushed, check_options, health_url, health, is_polled"),
        (entry("acme", "Pinned"), "pinned"),
        (entry("acme", "entry"), "it is not a class"),
        (entry("sync"), "the name is taken: the dispatcher itself"),
    ],
)
def test_an_unusable_entry_point_is_reported_once(declared: EntryPoint, why: str) -> None:
    found = installed(declared)
    with capture_logs() as logs:
        assert list(found.all()) == list(found.all()) == [runner.name for runner in BUILT_IN]
    (unusable,) = found.unusable()
    assert unusable.entry == f"{declared.name} = {declared.value}"
    assert why in unusable.why
    assert [(log["event"], log["entry_point"]) for log in logs] == [("runner_not_loaded", unusable.entry)]
    assert found.find("sync") is SyncHttpRunner


@pytest.mark.parametrize(
    ("module", "code", "why"),
    [
        ("exits_at_import", "raise SystemExit(3)", "SystemExit: 3"),
        ("panics_at_import", "class Panic(BaseException): ...\nraise Panic('rust')", "Panic: rust"),
    ],
)
def test_a_package_that_exits_at_import_is_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, code: str, why: str
) -> None:
    (tmp_path / f"{module}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = installed(EntryPoint("acme", f"{module}:Acme", GROUP))
    assert found.find("acme") is None
    assert [one.why for one in found.unusable()] == [why]


def test_the_second_of_two_runners_with_one_name_is_refused() -> None:
    found = installed(entry("acme"), entry("acme", "Again"))
    assert found.find("acme") is Acme
    assert f"the name is taken: acme = {__name__}:Acme" in found.unusable()[0].why


@pytest.mark.parametrize("name", ["", "-acme", "a b", "a" * 65])
def test_a_runners_name_must_fit_into_a_url(name: str) -> None:
    with pytest.raises(ValueError, match="64 letters"):
        check_runner(name, type("Odd", (Acme,), {"name": name}))


METHODS = ("start", "poll", "cancel", "read_pushed", "check_options", "health_url", "health")


def class_of(**attributes: object) -> type:
    """A runner that inherits nothing, as a package may have it."""
    flags = dict.fromkeys(("is_polled", "is_pushed", "is_pinned", "calls_on_sent", "answer_ends_run"), False)
    methods = dict.fromkeys(METHODS, lambda *_: None)
    return type("Own", (), {"name": "own", "summary": "", "options": (), **flags, **methods, **attributes})


def test_a_runner_of_an_earlier_version_gets_the_attributes_that_are_new() -> None:
    found = check_runner("own", class_of())
    assert (found.stopped_by, found.takes_uploads) == ("server confirmed the cancel", False)


def test_a_runners_own_attributes_stay() -> None:
    found = check_runner("own", class_of(stopped_by="its endpoint is open", takes_uploads=True))
    assert (found.stopped_by, found.takes_uploads) == ("its endpoint is open", True)


def test_an_attribute_of_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match="no usable stopped_by, takes_uploads"):
        check_runner("own", class_of(stopped_by=None, takes_uploads="yes"))


def test_after_a_reload_new_packages_are_found() -> None:
    entries: list[EntryPoint] = []
    found = RunnerRegistry(declared=lambda: entries)
    assert found.find("acme") is None
    entries.append(entry("acme"))
    assert found.find("acme") is None, "entry points are read once"
    found.reload()
    assert found.find("acme") is Acme


def test_a_runner_that_is_not_installed_is_refused_with_those_that_are() -> None:
    with pytest.raises(RunnerMissing, match=r"'triton'.*there are: sync, async, "):
        runner_for(ModelSpec("m", "m", model_type="triton"))
    assert not registry.is_polled(ModelSpec("m", "m", model_type="triton"))
