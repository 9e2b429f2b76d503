// Fetches the page anew while somebody can see it, and keeps what was opened, scrolled and focused.
"use strict";
(function () {
    const EVERY_MS = 15000;
    let waiting = null;

    function keyOf(details) { return details.dataset.key; }

    async function refresh() {
        const abort = new AbortController();
        const limit = setTimeout(() => abort.abort(), EVERY_MS);
        try {
            const answer = await fetch(location.href, { credentials: "same-origin", signal: abort.signal });
            if (!answer.ok || answer.redirected) { return; }
            const page = new DOMParser().parseFromString(await answer.text(), "text/html");
            const fresh = page.querySelector("main");
            const old = document.querySelector("main");
            // Whoever walks through the page by keyboard would lose their place.
            if (!fresh || (old.contains(document.activeElement) && document.activeElement !== old)) { return; }
            const open = new Set([...old.querySelectorAll("details[open]")].map(keyOf));
            fresh.querySelectorAll("details").forEach((each) => { each.open = open.has(keyOf(each)); });
            old.replaceChildren(...fresh.childNodes);
        } catch (error) {
            // The time on the page says how old it is; the next round tries again.
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
