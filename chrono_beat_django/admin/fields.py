"""Form fields that take what was typed and leave the judging to the validator, whose sentences all ways share."""
from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from chrono_beat_django.admin import instants

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,4})?", re.IGNORECASE)


class _Unjudged(forms.Field):
    """What was typed, in a Python type. ``required`` marks the label only."""

    def validate(self, value: Any) -> None:
        """Leave it to the validator of jobs."""


class Text(_Unjudged):
    """A text, blanks included. Line ends are those that a browser makes of them, so they become plain ones."""

    def to_python(self, value: Any) -> str:
        """Return the text."""
        return plain_lines("" if value is None else str(value))

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Compare as a browser does, to which all line ends are alike."""
        return self.to_python(initial) != self.to_python(data)


class Number(_Unjudged):
    """A number; text that is none stays text, for the validator to refuse."""

    def to_python(self, value: Any) -> int | float | str | None:
        """Return the number, or None where nothing was typed."""
        if isinstance(value, (int, float)) or value is None:
            return value
        text = str(value).strip()
        if _WHOLE.fullmatch(text):
            return int(text)
        return float(text) if _DECIMAL.fullmatch(text) else text or None

    def prepare_value(self, value: Any) -> Any:
        """Show whole seconds without a fraction, and any other number with all its digits."""
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Compare numbers, not how they are written."""
        return bool(self.to_python(initial) != self.to_python(data))


class Instant(_Unjudged):
    """An instant in the form's zone; text that is none stays text, for the validator to refuse."""

    def to_python(self, value: Any) -> datetime | str | None:
        """Return the instant in UTC, or None where nothing was typed."""
        if isinstance(value, datetime):
            return value
        text = "" if value is None else str(value).strip()
        try:
            return instants.from_form(text).astimezone(UTC) if text else None
        except (ValueError, OverflowError):
            return text
        except LookupError as refused:
            raise forms.ValidationError(str(refused)) from None

    def prepare_value(self, value: Any) -> Any:
        """Show an instant in the form's zone, and again as typed what was refused."""
        return instants.for_form(value) if isinstance(value, datetime) else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Compare instants, not how they are written."""
        try:
            return bool(self.to_python(initial) != self.to_python(data))
        except forms.ValidationError:
            return True


class Suggesting(forms.TextInput):
    """A line of text with suggestions that need no script and bind nobody."""

    suggestions: Iterable[str] = ()

    def render(self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None) -> SafeString:
        """Return the input and the list that it names."""
        line = super().render(name, value, {**(attrs or {}), "list": f"{name}_suggestions"}, renderer)
        options = format_html_join("", '<option value="{}"></option>', ((word,) for word in self.suggestions))
        return format_html('{}<datalist id="{}_suggestions">{}</datalist>', line, name, options)


def plain_lines(text: str) -> str:
    """Return a text with one kind of line end."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def line(label: str, help_text: str = "", *, required: bool = False, wide: bool = False) -> Text:
    """Return a field for a line of text."""
    widget = forms.TextInput(attrs={"class": "vLargeTextField" if wide else "vTextField"})
    return Text(label=label, help_text=help_text, required=required, widget=widget)


def suggesting(label: str, help_text: str = "") -> Text:
    """Return a field for a line of text whose form sets suggestions."""
    return Text(label=label, help_text=help_text, widget=Suggesting(attrs={"class": "vTextField"}))


def lines(label: str, help_text: str = "", *, rows: int = 4) -> Text:
    """Return a field for text of several lines."""
    widget = forms.Textarea(attrs={"class": "vLargeTextField", "rows": rows})
    return Text(label=label, help_text=help_text, required=False, widget=widget)


def choice(label: str, words: Iterable[str], help_text: str = "") -> Text:
    """Return a field for one of a few words."""
    widget = forms.Select(choices=[(word, word) for word in words])
    return Text(label=label, help_text=help_text, required=False, widget=widget)


def number(label: str, help_text: str = "", *, required: bool = False) -> Number:
    """Return a field for a number."""
    widget = forms.NumberInput(attrs={"class": "vIntegerField", "step": "any"})
    return Number(label=label, help_text=help_text, required=required, widget=widget)


def instant(label: str, help_text: str = "") -> Instant:
    """Return a field for an instant."""
    widget = forms.TextInput(attrs={"class": "vTextField", "placeholder": "2026-01-02 09:00"})
    return Instant(label=label, help_text=help_text, required=False, widget=widget)
