// Asks for the preview of a job anew while its form is typed in. Without it the button "Preview" does the same.
"use strict";
{
    const QUIET_MS = 300;
    const begin = () => {
        const panel = document.getElementById("chrono-preview");
        const form = panel && panel.closest("form");
        if (!form) {
            return;
        }
        const said = document.getElementById("chrono-said");
        let timer = null;
        let asked = null;
        // The whole preview would be read out at each pause of typing; so its gist is, where it has changed.
        const say = (gist) => {
            if (said.textContent !== gist) {
                said.textContent = gist;
            }
        };
        const ask = async () => {
            if (asked) {
                asked.abort();
            }
            const mine = asked = new AbortController();
            const typed = new FormData(form);
            try {
                const answer = await fetch(panel.dataset.url, {method: "POST", body: typed, signal: mine.signal});
                // A page to log in at, or an error, is no preview: what is shown stays until the next answer.
                if (answer.ok && !answer.redirected) {
                    panel.innerHTML = await answer.text();
                    say([...panel.querySelectorAll("[data-said]")].map((each) => each.textContent).join(". "));
                }
                panel.classList.toggle("chrono-stale", !answer.ok || answer.redirected);
            } catch (error) {
                if (error.name !== "AbortError") {
                    panel.classList.add("chrono-stale");
                }
            }
        };
        const soon = () => {
            clearTimeout(timer);
            timer = setTimeout(ask, QUIET_MS);
        };
        form.addEventListener("input", soon);
        form.addEventListener("change", soon);
        if (panel.dataset.empty && form.elements.expression.value) {
            soon();
        }
    };
    if (document.readyState === "loading") {
        document.addEventListener("DOMContentLoaded", begin);
    } else {
        begin();
    }
}
