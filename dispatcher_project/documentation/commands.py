"""docs/reference/commands.md: each command of `manage.py` with its arguments, as `--help` shows them."""

from __future__ import annotations

import re
from argparse import SUPPRESS, Action, ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from pathlib import Path

from django.core.management import get_commands, load_command_class
from django.core.management.base import DjangoHelpFormatter

from dispatcher_project.cli.commands import CHECKOUT_ONLY, ENTRIES, GROUPS
from dispatcher_project.supervisor.data_folder import ROOT

HIDDEN = {"seed_up"}
"""Called by `up` only."""
_PAGE = re.compile(r"docs/reference/(\w+)\.md")
_SAID_DEFAULT = re.compile(r" ?\(default:? (?:%\(default\)s|\d+)\)")
_HEAD = ("| Argument | Default | Meaning |", "| --- | --- | --- |")


def own_commands() -> set[str]:
    """The commands of this repository; those of Django and of other packages are not among them."""
    own = ("dispatcher_project", "verification", "benchmarks")
    return {name for name, app in get_commands().items() if app in own}


def commands_page() -> str:
    """Return the whole page, Markdown."""
    lines = [
        "# Commands",
        "",
        "<!-- Made from the commands' arguments by `python3 manage.py write_docs`; don't edit. -->",
        "",
        "`python3 manage.py COMMAND` in a checkout, `gpu-dispatcher COMMAND` where the wheel is installed",
        "(with hyphens in the name); `--help` shows the same. Words in capitals are values that you give.",
        "A command that cannot do what you asked says so in one line and exits with status 2; Ctrl-C exits",
        "with 130. What changes something is recorded in the audit log as `cli:<login name>`.",
    ]
    for group, names in groups().items():
        lines += ["", f"## {group}"]
        for name in names:
            lines += ["", f"### {name}", "", *(_command(name) if name in own_commands() else _other(name))]
    return "\n".join([*lines, ""])


def groups() -> dict[str, list[str]]:
    """Return the groups of `gpu-dispatcher --help`, and one for the commands that work on the source."""
    found = {heading: [entry.name for entry in entries] for heading, entries in GROUPS.items()}
    return {**found, "Development": sorted(CHECKOUT_ONLY & own_commands())}


def _other(name: str) -> Iterator[str]:
    """One of Django's, or a part that only the installed command starts by name."""
    yield f"{ENTRIES[name].summary}."


def _command(name: str) -> Iterator[str]:
    command = load_command_class(get_commands()[name], name)
    parser = command.create_parser("manage.py", name)
    yield _sentence(command.help or parser.description or "")
    yield from _arguments(parser)


def _arguments(parser: ArgumentParser) -> Iterator[str]:
    rows = [action for action in parser._actions if _is_shown(action)]
    if rows:
        yield from ("", *_HEAD)
    for action in rows:
        yield f"| {_names(action)} | {_default(action)} | {_help(action)} |"
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            said = {one.dest: one.help or "" for one in action._choices_actions}
            for name, part in action.choices.items():
                yield from ("", f"**`{name}`**: {_sentence(said.get(name, ''))}")
                yield from _arguments(part)


def _is_shown(action: Action) -> bool:
    """Return False for options of every Django command, and for hidden ones that only programs use."""
    everywhere = {name.lstrip("-").replace("-", "_") for name in DjangoHelpFormatter.show_last} | {"help"}
    hidden = action.help == SUPPRESS or isinstance(action, _SubParsersAction)
    return not hidden and action.dest not in everywhere  # `job` has a `--traceback` of its own


def _names(action: Action) -> str:
    value = _value(action)
    if not action.option_strings:
        return f"`{value}`"
    longest = max(action.option_strings, key=len)
    return f"`{longest} {value}`" if value else f"`{longest}`"


def _value(action: Action) -> str:
    if action.nargs == 0:
        return ""
    metavar = action.metavar if isinstance(action.metavar, str) else None
    name = metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    return {"?": f"[{name}]", "*": f"[{name} …]", "+": f"{name} …"}.get(str(action.nargs), name)


def _default(action: Action) -> str:
    if action.default in ("", []) or any(action.default is one for one in (None, False, True, SUPPRESS)):
        return ""
    path = Path(str(action.default))
    return f"`{path.relative_to(ROOT) if path.is_relative_to(ROOT) else action.default}`"


def _help(action: Action) -> str:
    """As argparse shows it, without the default that the table has in a column of its own."""
    text = _SAID_DEFAULT.sub("", action.help or "")
    return _sentence(text % {**vars(action)} if "%(" in text else text)


def _sentence(text: str) -> str:
    """One line that a table cell may hold."""
    text = " ".join(text.split()).replace("%%", "%").replace("|", r"\|")
    text = _PAGE.sub(r"[\1](\1.md)", text)
    return text[:1].upper() + text[1:]
