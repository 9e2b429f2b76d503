"""Loads the Lua files and calls them.

One file is one operation. A line ``-- include: name`` stands for the text of ``name.lua``, once per script, so that
shared steps such as "free the lock" are written once. Scripts are called by their digest; where the server does not
know it (first use, restart, failover, SCRIPT FLUSH) nothing has run, so loading it and calling again is safe for every
script.
"""
from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

_INCLUDE = re.compile(r"^-- include: (\w+)\n", re.MULTILINE)


@cache
def _texts() -> dict[str, str]:
    """Read every file at the first use of any.

    A worker's renewals must not wait for files: next to a body that hardly lets go of the interpreter's lock, each opening
    and reading costs a wait for that lock.
    """
    found = (files(__package__) / "lua").iterdir()
    return {file.name.removesuffix(".lua"): file.read_text("utf-8") for file in found if file.name.endswith(".lua")}


def _expand(name: str, seen: set[str]) -> str:
    seen.add(name)
    return _INCLUDE.sub(lambda found: "" if found[1] in seen else _expand(found[1], seen), _texts()[name])


class Script:
    """A Lua file with what it includes.

    Args:
        name: of the file, without ``.lua``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = _expand(name, set())
        self.digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def call(self, client: Any, key: str, *args: Any) -> Any:
        """Run the script on the lane of this meta key; returns what it returns."""
        try:
            return client.execute_command("EVALSHA", self.digest, 1, key, *args)
        except NoScriptError:
            client.execute_command("SCRIPT LOAD", self.source)
            return client.execute_command("EVALSHA", self.digest, 1, key, *args)


@cache
def script(name: str) -> Script:
    """Return the script of that name; put together once per process."""
    return Script(name)
