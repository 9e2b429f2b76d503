"""The page on settings says what the code has."""
import re
from dataclasses import fields
from pathlib import Path

from chrono_beat.core.config import Config

PAGE = Path(__file__).resolve().parents[2] / "docs" / "settings.rst"


def test_the_page_lists_every_setting_with_its_default():
    rows = dict(re.findall(r"^``([A-Z_]+)``\s+(\S+(?: \S+)*)", PAGE.read_text(), re.MULTILINE))
    wanted = {}
    for field in fields(Config):
        default = field.default
        if isinstance(default, tuple):
            wanted[field.name.upper()] = str(list(default)).replace("'", '"')
        else:
            wanted[field.name.upper()] = f"{default:g}" if isinstance(default, float) else str(default)

    assert rows == wanted
