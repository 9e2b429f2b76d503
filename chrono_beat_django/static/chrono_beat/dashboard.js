// Fetches the page anew while somebody can see it, and keeps what was opened, scrolled and focused.
"use strict";
(function () {
    const EVERY_MS = 15000;
    const REACHABLE = "a[href], summary, [tabindex]";
    let waiting = null;

    function main(page) { return page.querySelector("main"); }

    // What stays the same of an element while its figures change.
    function markOf(element) {
        const details = element.closest("details");
        return [element.tagName, element.getAttribute("href") || element.getAttribute("aria-label")
            || (details && details.dataset.key) || element.textContent].join(" ");
    }

    function alike(place, element) {
        const mark = markOf(element);
        return [...place.querySelectorAll(REACHABLE)].filter((each) => markOf(each) === mark);
    }

    // Whoever types or marks a text would lose it.
    function busy(old) {
        const selection = getSelection();
        return (old.contains(document.activeElement) && document.activeElement.matches("input, button"))
            || (!selection.isCollapsed && old.contains(selection.anchorNode));
    }

    function replace(page) {
        const old = main(document);
        const fresh = main(page);
        const focused = old.contains(document.activeElement) && document.activeElement !== old ? document.activeElement : null;
        const heir = focused && alike(fresh, focused)[alike(old, focused).indexOf(focused)];
        if (busy(old) || (focused && !heir)) { return; }
        const open = new Map([...old.querySelectorAll("details")].map((each) => [each.dataset.key, each.open]));
        const scrolled = new Map([...old.querySelectorAll(".wide")].map((each) => [each.getAttribute("aria-label"), each.scrollLeft]));
        const [across, down] = [scrollX, scrollY];
        fresh.querySelectorAll("details").forEach((each) => {
            each.open = open.has(each.dataset.key) ? open.get(each.dataset.key) : each.open;
        });
        old.replaceChildren(...fresh.childNodes);
        old.querySelectorAll(".wide").forEach((each) => { each.scrollLeft = scrolled.get(each.getAttribute("aria-label")) || 0; });
        scrollTo(across, down);
        if (heir) { heir.focus({ preventScroll: true }); }
        document.title = page.title;
    }

    function tell(text) {
        const place = document.getElementById("stale");
        if (place.textContent !== text) { place.textContent = text; }
        place.hidden = !text;
    }

    async function refresh() {
        const abort = new AbortController();
        const limit = setTimeout(() => abort.abort(), EVERY_MS);
        try {
            const answer = await fetch(location.href, { credentials: "same-origin", signal: abort.signal });
            if (answer.redirected) {
                tell("You are logged out, so this page stays as it is. Load it anew to log in.");
            } else if (!answer.ok) {
                tell(`The server answers with error ${answer.status}, so this page stays as it is. It tries again every 15 s.`);
            } else {
                replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
                tell("");
            }
        } catch (error) {
            tell("The server does not answer, so this page stays as it is. It tries again every 15 s.");
        } finally {
            clearTimeout(limit);
        }
    }

    function plan() {
        clearTimeout(waiting);
        waiting = null;
        if (!document.hidden) {
            waiting = setTimeout(async () => { await refresh(); plan(); }, EVERY_MS);
        }
    }

    document.addEventListener("visibilitychange", plan);
    plan();
})();
