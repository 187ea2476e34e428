"""`gpu-dispatcher completion bash|zsh|fish`: a script made from the parsers of all commands.

The script holds every command, option and choice, so that a press of Tab starts no Python.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dispatcher_project.cli.commands import COMPLETION, COMPLETION_SUMMARY, ENTRIES, Entry
from foundation.program import INSTALLED_AS

_FILES = "files"
_CELERYS = ("beat", "flower")
"""Commands whose options Celery reads."""
_FILE_OF = {
    "bash": "~/.local/share/bash-completion/completions/gpu-dispatcher",
    "zsh": "a file _gpu-dispatcher in a folder of $fpath",
    "fish": "~/.config/fish/completions/gpu-dispatcher.fish",
}


@dataclass(frozen=True, slots=True)
class Option:
    """flags: ``-h``, ``--help``. value: None for a switch, else what completes it: choices, or `_FILES`."""

    flags: tuple[str, ...]
    help: str
    value: tuple[str, ...] | str | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """words: choices of the positional arguments."""

    name: str
    summary: str
    options: tuple[Option, ...]
    words: tuple[str, ...] = ()


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 2 for bad arguments."""
    parser = argparse.ArgumentParser(
        prog=f"{INSTALLED_AS} {COMPLETION}",
        description=f"{COMPLETION_SUMMARY}.",
        epilog="Write the output to: "
        + "; ".join(f"{shell}: {file}" for shell, file in _FILE_OF.items())
        + ".",
    )
    parser.add_argument("shell", choices=sorted(SCRIPTS))
    options = parser.parse_args(arguments)
    sys.stdout.write(SCRIPTS[options.shell](list(specs())))
    return 0


def specs() -> Iterator[Spec]:
    """Every command with its options, in the order of `--help`."""
    import django

    os.environ["DJANGO_SETTINGS_MODULE"] = "dispatcher_project.settings.base"  # it needs no secret key
    django.setup(set_prefix=False)
    for entry in ENTRIES.values():
        parser = _parser(entry)
        actions = parser._actions if parser is not None else []
        yield Spec(
            entry.shown,
            entry.summary,
            tuple(_option(action) for action in actions if action.option_strings and _is_shown(action))
            or (Option(("--help",), "show this help message and exit"),),
            tuple(
                str(word)
                for action in actions
                if not action.option_strings and action.choices
                for word in action.choices
            ),
        )
    yield Spec(COMPLETION, COMPLETION_SUMMARY, (), tuple(sorted(SCRIPTS)))


def _parser(entry: Entry) -> argparse.ArgumentParser | None:
    from django.core.management import get_commands, load_command_class

    if entry.name in _CELERYS:
        return None
    if entry.name == "web":
        from dispatcher_project.web.__main__ import parser

        return parser()
    return load_command_class(get_commands()[entry.name], entry.name).create_parser("", entry.shown)


def _is_shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS


def _option(action: argparse.Action) -> Option:
    value: tuple[str, ...] | str | None = None
    if action.nargs != 0:
        value = tuple(str(choice) for choice in action.choices or ())
        if action.type is Path:
            value = _FILES
    text = " ".join((action.help or "").split()) % {**vars(action), "prog": INSTALLED_AS}
    return Option(tuple(action.option_strings), text, value)


# -- bash ----------------------------------------------------------------------------------------------------

_BASH = """\
# bash completion for gpu-dispatcher, made by `gpu-dispatcher completion bash`
_gpu_dispatcher() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}
    local command=${COMP_WORDS[1]} words=''
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "@COMMANDS@" -- "$current"))
        return
    fi
    case "$command $previous" in
@VALUES@    esac
    case "$command $current" in
@OPTIONS@    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -F _gpu_dispatcher gpu-dispatcher
"""


def bash(commands: Sequence[Spec]) -> str:
    values, options = [], []
    for spec in commands:
        free = [flag for option in spec.options if option.value == () for flag in option.flags]
        if free:
            values.append(f"        {_any_of(spec.name, free)}) return ;;\n")
        for option in spec.options:
            if not option.value:
                continue
            pattern = _any_of(spec.name, option.flags)
            if option.value == _FILES:
                do = 'compopt -o filenames; COMPREPLY=($(compgen -f -- "$current"))'
            else:
                do = f'COMPREPLY=($(compgen -W "{" ".join(option.value)}" -- "$current"))'
            values.append(f"        {pattern}) {do}; return ;;\n")
        flags = " ".join(flag for option in spec.options for flag in option.flags)
        options.append(f'        "{spec.name} -"*) words="{flags}" ;;\n')
        if spec.words:
            options.append(f'        "{spec.name} "*) words="{" ".join(spec.words)}" ;;\n')
    names = " ".join([*(spec.name for spec in commands), "--help", "--version"])
    return (
        _BASH.replace("@COMMANDS@", names)
        .replace("@VALUES@", "".join(values))
        .replace("@OPTIONS@", "".join(options))
    )


def _any_of(command: str, flags: Iterable[str]) -> str:
    return "|".join(f'"{command} {flag}"' for flag in flags)


# -- zsh -----------------------------------------------------------------------------------------------------

_ZSH = """\
#compdef gpu-dispatcher
# zsh completion for gpu-dispatcher, made by `gpu-dispatcher completion zsh`
_gpu-dispatcher() {
    local -a commands
    commands=(
@COMMANDS@    )
    if (( CURRENT == 2 )); then
        _describe -t commands command commands
        return
    fi
    shift words
    (( CURRENT-- ))
    case $words[1] in
@OPTIONS@    esac
}
if [[ $funcstack[1] == _gpu-dispatcher ]]; then
    _gpu-dispatcher "$@"
else
    compdef _gpu-dispatcher gpu-dispatcher
fi
"""


def zsh(commands: Sequence[Spec]) -> str:
    described = "".join(f"        {_quoted(f'{spec.name}:{spec.summary}')}\n" for spec in commands)
    cases = []
    for spec in commands:
        arguments = [_zsh_option(flag, option) for option in spec.options for flag in option.flags]
        arguments.append(f"*:argument:({' '.join(spec.words)})" if spec.words else "*:argument:_files")
        lines = " \\\n                ".join(_quoted(argument) for argument in arguments)
        cases.append(f"        {spec.name})\n            _arguments \\\n                {lines} ;;\n")
    return _ZSH.replace("@COMMANDS@", described).replace("@OPTIONS@", "".join(cases))


def _zsh_option(flag: str, option: Option) -> str:
    text = option.help
    for mark in "\\[]:":
        text = text.replace(mark, f"\\{mark}")
    if option.value is None:
        return f"{flag}[{text}]"
    value = "_files" if option.value == _FILES else f"({' '.join(option.value)})" if option.value else " "
    return f"{flag}[{text}]:value:{value}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# -- fish ----------------------------------------------------------------------------------------------------


def fish(commands: Sequence[Spec]) -> str:
    lines = [
        f"# fish completion for {INSTALLED_AS}, made by `{INSTALLED_AS} completion fish`",
        f"complete -c {INSTALLED_AS} -f",
        f"complete -c {INSTALLED_AS} -n __fish_use_subcommand -l help -d 'Show the commands'",
        f"complete -c {INSTALLED_AS} -n __fish_use_subcommand -l version -d 'Show the version'",
    ]
    for spec in commands:
        name, summary = spec.name, _fish_quoted(spec.summary)
        lines.append(f"complete -c {INSTALLED_AS} -n __fish_use_subcommand -a {name} -d {summary}")
        where = f"complete -c {INSTALLED_AS} -n '__fish_seen_subcommand_from {name}'"
        if spec.words:
            lines.append(f"{where} -a {_fish_quoted(' '.join(spec.words))}")
        for option in spec.options:
            flags = " ".join(
                f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags
            )
            value = ""
            if option.value == _FILES:
                value = " -r -F"
            elif option.value is not None:
                value = " -x" + (f" -a {_fish_quoted(' '.join(option.value))}" if option.value else "")
            lines.append(f"{where} {flags}{value} -d {_fish_quoted(option.help)}")
    return "\n".join(lines) + "\n"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS: dict[str, Callable[[Sequence[Spec]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
