"""Pages by cursor: each names the last row of the page before, so rows that come or go shift nothing."""
import base64
import difflib
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from pydantic import BaseModel

from chrono_beat.core.errors import InvalidInput, Problem
from chrono_beat.core.field_checks import instant, unstorable

MAX_PAGE = 200


def refuse_unknown(request: HttpRequest, filters: BaseModel) -> None:
    """Refuse a list whose filter is misspelt, instead of showing more than was asked for.

    Raises:
        InvalidInput: with every parameter that there is not.
    """
    known = type(filters).model_fields
    problems = []
    for name in sorted(request.GET.keys() - known.keys()):
        near = difflib.get_close_matches(name, known, n=1)
        mend = "this list has no such parameter" + (f"; did you mean {near[0]}?" if near else "")
        problems.append(Problem(name[:100], mend, "unknown"))
    if problems:
        raise InvalidInput(*problems)


def page(
    rows: QuerySet[Any], cursor: str | None, limit: int, by: Sequence[str], facts: Callable[[Any], dict[str, Any]],
    *, falling: bool = False, read: Callable[[QuerySet[Any], int], tuple[Sequence[Any], Sequence[Any] | None]] | None = None,
) -> dict[str, Any]:
    """Return {items, next_cursor}: a page of *rows* in the order of some columns, *by*, the last one unique.

    Args:
        read: returns the first *limit* rows in that order, and the values of *by* of the last one where there are more;
            None for the plain way.

    Raises:
        InvalidInput: the cursor is none of ours.
    """
    sign, word = ("-", "lt") if falling else ("", "gt")
    if cursor:
        said = dict(zip(by, _read(cursor, rows.model, by), strict=True))
        behind = Q()
        for number, name in enumerate(by):
            equal = {other: said[other] for other in by[:number]}
            behind |= Q(**equal, **{f"{name}__{word}": said[name]})
        rows = rows.filter(behind, **{f"{by[0]}__{word}e": said[by[0]]})     # the latter is what an index understands
    rows = rows.order_by(*(sign + name for name in by))
    if read is None:
        found = list(rows[:limit + 1])
        last = [getattr(found[limit - 1], name) for name in by] if len(found) > limit else None
    else:
        found, last = read(rows, limit)
    return {"items": [facts(row) for row in found[:limit]], "next_cursor": None if last is None else _write(last)}


def _write(values: Sequence[Any]) -> str:
    text = json.dumps([value.isoformat() if isinstance(value, datetime) else str(value) for value in values])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read(cursor: str, model: type[Model], by: Sequence[str]) -> list[Any]:
    try:
        values = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if len(values) != len(by) or not all(isinstance(value, str) and not unstorable(value) for value in values):
            raise ValueError
        found = [model._meta.get_field(name).to_python(value) for name, value in zip(by, values, strict=True)]
        if any(isinstance(value, datetime) and instant(value)[1] for value in found):
            raise ValueError
    except Exception:  # whatever a made-up text does to the decoders
        raise InvalidInput(Problem("cursor", "is none that this API gave; begin without one", "cursor")) from None
    return found
