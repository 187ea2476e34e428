"""docs/reference/settings.md says what code reads."""

from __future__ import annotations

import re
from dataclasses import fields

from dispatcher_project.documentation.settings import settings_page
from dispatcher_project.settings.dispatcher import DispatcherSettings
from dispatcher_project.supervisor.data_folder import ROOT

_READ = re.compile(r'env\.\w+\(\s*"([A-Z_]+)"')


def test_each_setting_has_a_meaning() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", settings_page(), re.MULTILINE))
    for field in fields(DispatcherSettings):
        assert rows[f"DISPATCHER_{field.name.upper()}"].endswith((".", ")"))


def test_each_variable_that_the_settings_read_is_on_it() -> None:
    text = (ROOT / "dispatcher_project/settings/base.py").read_text()
    assert set(_READ.findall(text)) <= set(re.findall(r"^\| `(\w+)`", settings_page(), re.MULTILINE))
