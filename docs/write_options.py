"""Write docs/options.rst, every option of every command, from the commands themselves: ``python docs/write_options.py``.

The page is kept in the repository, so that it can be read there and be built without chrono_beat; a test compares it.
"""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from chrono_beat.celery.commands import chrono

PAGE = Path(__file__).with_name("options.rst")
HEAD = """\
Every option
============

What ``--help`` says, of all commands together. :doc:`commands` shows how they are used.
"""


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield what can be run, by its words, in the order of the alphabet."""
    for name, command in sorted(group.commands.items()):
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")


def page() -> str:
    """Return the page's text."""
    parts = [HEAD]
    for path, command in commands(chrono, "chrono"):
        title = f"``{path}``"
        arguments = " ".join(_named(parameter) for parameter in command.params if isinstance(parameter, click.Argument))
        parts.append(f"{title}\n{'-' * len(title)}\n")
        parts.append("\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n")) + "\n")
        if arguments:
            parts.append(f"Arguments: ``{arguments}``\n")
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                parts.append(f"``{_written(parameter)}``\n    {_escaped(_said(parameter))}\n")
    return "\n".join(parts)


def _named(argument: click.Argument) -> str:
    """Return an argument as it stands in the usage."""
    name = "|".join(argument.type.choices) if isinstance(argument.type, click.Choice) else str(argument.name).upper()
    return (name if argument.required else f"[{name}]") + (" …" if argument.nargs == -1 else "")


def _written(option: click.Option) -> str:
    """Return an option as it is typed; not as click shows it, which differs from release to release."""
    flags = ", ".join(option.opts) + "".join(f" / {flag}" for flag in option.secondary_opts)
    if option.is_flag:
        return flags
    kind = "|".join(option.type.choices) if isinstance(option.type, click.Choice) else option.type.name.split()[0].upper()
    return f"{flags} {option.metavar or kind}"


def _said(option: click.Option) -> str:
    return f"{option.help} Default: {option.default}." if option.show_default and not option.is_flag else str(option.help)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("*", "\\*").replace("`", "\\`").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
