"""What the admin's lists have in common: bounded counts, no order without an index, pages to read only."""
from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString

from chrono_beat_django.admin.instants import in_utc
from chrono_beat_django.models import Job, JobEvent, Tenant

MOST_COUNTED = 10_000
"""Rows that a list counts at most; what lies behind is found by narrowing, not by paging."""

MOST_TENANTS_LISTED = 50
"""Tenants that a filter offers; others are reached from the list of tenants, or by searching for ``tenant/``."""

MOST_ACTED_ON = 1_000
"""Rows that one action takes where each is a transaction: a page has to come back some time."""

MOST_JOBS_SEARCHED = 200
"""Jobs whose rows a search by name looks through."""


class BoundedPaginator(Paginator):
    """Pages over a table that may hold many millions of rows: the database stops counting at a bound."""

    @cached_property
    def count(self) -> int:
        """Return how many rows there are, MOST_COUNTED at most."""
        return min(self._seen, MOST_COUNTED)

    @property
    def bounded(self) -> bool:
        """Say whether there are more."""
        return self._seen > MOST_COUNTED

    @cached_property
    def _seen(self) -> int:
        found: int = self.object_list.order_by()[:MOST_COUNTED + 1].count()
        return found


class SlimList(ChangeList):
    """A list that leaves long texts in the database and looks up what its page needs in one go."""

    def get_queryset(self, *args: Any, **kwargs: Any) -> QuerySet[Any]:
        """Return the rows without the columns that no list shows."""
        return super().get_queryset(*args, **kwargs).defer(*self.model_admin.long_columns)

    def get_results(self, request: HttpRequest) -> None:
        """Read the page's rows, and what belongs to them."""
        super().get_results(request)
        # Where all is on one page Django would read it past the paginator.
        self.result_list = list(self.result_list if self.multi_page else self.paginator.page(1).object_list)
        self.model_admin.complete(self.result_list)


class Page(admin.ModelAdmin):
    """The root of this admin's pages.

    No list can be sorted by a click: without an index for that order the database would read the whole table.
    """

    paginator = BoundedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    long_columns: tuple[str, ...] = ()
    anywhere: dict[str, str] = {}
    """Filters under which the list leaves no row out."""

    class Media:
        css = {"all": ("chrono_beat/admin.css",)}

    def deeds(self, row: Any) -> dict[str, str]:
        """Return the actions that make sense for a row, offered on its page: name to what the button says."""
        return {}

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Offer the list's actions for this row alone, to who may take them."""
        if (row := context.get("original")) is not None:
            allowed = self.get_actions(request)
            context["deeds"] = [deed for deed in self.deeds(row).items() if deed[0] in allowed]
            where = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist", current_app=self.admin_site.name)
            context["deeds_url"] = f"{where}?{urlencode({**self.anywhere, 'q': row.pk})}"
        return super().render_change_form(request, context, *args, **kwargs)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the kind of list."""
        return SlimList

    def may(self, request: HttpRequest, deed: str) -> bool:
        """Say whether the user may do something to rows: by a permission of its own, or because they may change them."""
        of = self.opts
        return any(request.user.has_perm(f"{of.app_label}.{word}_{of.model_name}") for word in (deed, "change"))

    def too_many(self, request: HttpRequest, queryset: QuerySet[Any]) -> bool:
        """Say whether these are more rows than an action takes, and tell the user so."""
        if len(queryset.order_by().values_list("pk")[:MOST_ACTED_ON + 1]) <= MOST_ACTED_ON:
            return False
        self.message_user(
            request, f"Nothing was done: an action takes {MOST_ACTED_ON:,} {self.opts.verbose_name_plural} at most. Narrow the "
                     f"list, or use the command “chrono {self.opts.model_name}s”.", messages.ERROR)
        return True

    def complete(self, rows: list[Any]) -> None:
        """Look up what belongs to a page's rows; a number of statements that does not grow with them."""


class ReadOnlyPage(Page):
    """Rows that services write: to be seen by whoever may view them, to be changed by nobody."""

    actions = None

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse."""
        return False


def instant_column(column: str, label: str) -> Callable[[Any, Any], str]:
    """Return a column that shows an instant in UTC."""
    @admin.display(description=label)
    def shown(page: Any, row: Any) -> str:
        return in_one_line(in_utc(getattr(row, column)))

    return shown


def isolated(text: object) -> str:
    """Return a text that does not turn around what stands beside it, whichever way it is written.

    At the beginning of a message it also keeps Django from writing a name with a capital.
    """
    return f"\u2068{text}\u2069"


def in_one_line(text: str) -> SafeString:
    """Return a text that a narrow column does not break."""
    return format_html('<span class="nowrap">{}</span>', text)


class TenantFilter(admin.SimpleListFilter):
    """One tenant's rows."""

    title = "tenant"
    parameter_name = "tenant"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Offer the tenants where they are few, else the chosen one."""
        slugs = list(Tenant.objects.order_by("slug").values_list("slug", flat=True)[:MOST_TENANTS_LISTED + 1])
        offered = [] if len(slugs) > MOST_TENANTS_LISTED else slugs
        chosen = self.value()
        return [(slug, slug) for slug in offered + ([chosen] if chosen and chosen not in offered else [])]

    def has_output(self) -> bool:
        """Take the parameter also where there is nothing to offer."""
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Narrow the list."""
        return queryset.filter(tenant=self.value()) if self.value() else queryset


class DefaultFilter(admin.SimpleListFilter):
    """A filter whose first choice is taken where none was made."""

    words: tuple[tuple[str, str], ...] = ()

    def lookups(self, request: HttpRequest, model_admin: Any) -> tuple[tuple[str, str], ...]:
        """Offer the words."""
        return self.words

    def chosen(self) -> str:
        """Return the word that holds."""
        return str(self.value() or self.words[0][0])

    def choices(self, changelist: ChangeList) -> Iterator[dict[str, Any]]:
        """Offer the words alone: "All" is one of them or not wanted."""
        for word, label in self.lookup_choices:
            yield {"selected": self.chosen() == str(word), "display": label,
                   "query_string": changelist.get_query_string({self.parameter_name: word})}


def jobs_named(queryset: QuerySet[Job], term: str, *, how: str = "icontains") -> QuerySet[Job]:
    """Keep the jobs that a search means: a job's id, ``tenant/name``, or a name."""
    if (job_id := _uuid(term)) is not None:
        return queryset.filter(id=job_id)
    tenant, name = _split(term)
    return (queryset.filter(tenant=tenant) if tenant else queryset).filter(**{f"name__{how}": name})


def rows_of_jobs_named(queryset: QuerySet[Any], term: str) -> QuerySet[Any]:
    """Keep the rows of the jobs that a search means, deleted ones too, by the index on their ids."""
    if (job_id := _uuid(term)) is not None:
        return queryset.filter(job_id=job_id)
    tenant, name = _split(term)
    gone = JobEvent.objects.filter(action="delete", job_name__istartswith=name)
    gone = gone.filter(tenant=tenant) if tenant else gone
    found = jobs_named(Job.objects.order_by(), term, how="istartswith").values_list("id", flat=True)
    ids = [*found[:MOST_JOBS_SEARCHED], *gone.values_list("job_id", flat=True)[:MOST_JOBS_SEARCHED]]
    return queryset.filter(job_id__in=ids)


def _split(term: str) -> tuple[str, str]:
    """Return (tenant, name); a name may have a slash too, so the tenant counts only where it exists."""
    slug, slash, name = term.partition("/")
    if slash and Tenant.objects.filter(slug=slug).exists():
        return slug, name
    return "", term


def _uuid(term: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(term)
    except ValueError:
        return None
