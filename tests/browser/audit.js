// Returns what a person on a phone, with a keyboard or with a screen reader would stumble over on this page, as texts.
(() => {
    const faults = [];
    const all = (selector) => [...document.querySelectorAll(selector)];
    const named = (element) => element.tagName.toLowerCase() + (element.id ? `#${element.id}` : "")
        + (element.className && typeof element.className === "string" ? `.${element.className.split(" ").join(".")}` : "");
    const still = new CSSStyleSheet();
    still.replaceSync("* { transition: none !important; }");
    document.adoptedStyleSheets = [still];
    const shown = (element) => element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })
        && [...element.getClientRects()].some((each) => each.width && each.height && each.right > 0 && each.bottom > 0);

    // -- width ------------------------------------------------------------------------------------------------------
    const page = document.scrollingElement;
    if (page.scrollWidth > page.clientWidth) {
        const wide = all("body *").filter((each) => shown(each) && each.getBoundingClientRect().right > page.clientWidth + 1)
            .slice(-1).map(named);
        faults.push(`the page is ${page.scrollWidth} px wide in ${page.clientWidth}: ${wide}`);
    }
    for (const each of all("body *").filter((each) => shown(each) && each.scrollWidth > each.clientWidth + 1)) {
        const scrolls = ["auto", "scroll"].includes(getComputedStyle(each).overflowX);
        if (scrolls && each.tabIndex < 0 && !each.querySelector("a[href], button, input, select, textarea, [tabindex='0']")) {
            faults.push(`the keyboard cannot scroll ${named(each)}`);
        }
    }

    // -- names ------------------------------------------------------------------------------------------------------
    const textOf = (id) => (document.getElementById(id) || { textContent: "" }).textContent;
    const wordsOf = (element) => element.textContent.trim() || [...element.querySelectorAll("img")].map((each) => each.alt).join("");
    const nameOf = (element) => (element.getAttribute("aria-labelledby") || "").split(" ").filter(Boolean).map(textOf).join(" ").trim()
        || (element.getAttribute("aria-label") || "").trim()
        || [...(element.labels || [])].map(wordsOf).join(" ").trim()
        || (element.matches("input[type=submit], input[type=button], input[type=reset]") ? element.value : "")
        || (element.matches("a, button, summary") ? wordsOf(element) : "")
        || element.title;
    for (const each of all("a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']")) {
        if (shown(each) && !nameOf(each)) { faults.push(`nothing names ${named(each)} ${each.name || ""}`); }
        if (each.tabIndex > 0) { faults.push(`${named(each)} is out of the order of the keyboard`); }
    }
    for (const each of all("img:not([alt])")) { faults.push(`no words for the picture ${named(each)}`); }
    for (const each of all("svg").filter(shown)) {
        const described = (each.getAttribute("aria-labelledby") || "").split(" ").map(textOf).every((text) => text.trim());
        const hidden = each.closest("[aria-hidden=true]");
        if (!hidden && !(each.getAttribute("role") === "img" && described)) { faults.push(`no words for ${named(each)}`); }
    }
    const ids = all("[id]").map((each) => each.id);
    for (const id of new Set(ids.filter((id, index) => ids.indexOf(id) !== index))) { faults.push(`the id ${id} is not alone`); }
    for (const table of all("table").filter(shown)) {
        const bare = [...table.querySelectorAll("thead th")].filter((each) => !each.scope && !each.querySelector("input"));
        if (bare.length) { faults.push(`${bare.length} headers of a table have no scope`); }
    }

    for (const each of all("[role=status], [role=alert], [aria-live]")) {
        if (each.textContent.length > 300) { faults.push(`${named(each)} is read out whole at each change`); }
    }

    // -- structure --------------------------------------------------------------------------------------------------
    const levels = all("h1, h2, h3, h4, h5, h6").filter(shown).map((each) => Number(each.tagName[1]));
    if (levels.filter((level) => level === 1).length !== 1) { faults.push(`the page has ${levels.filter((level) => level === 1).length} titles`); }
    levels.forEach((level, index) => {
        if (index && level > levels[index - 1] + 1) {
            faults.push(`a heading of level ${level} follows one of ${levels[index - 1]}: ${all("h1, h2, h3, h4, h5, h6").filter(shown)[index].textContent.trim().slice(0, 40)}`);
        }
    });
    if (!document.documentElement.lang) { faults.push("the page does not say its language"); }
    if (!document.title.trim()) { faults.push("the page has no title"); }

    // -- contrast ---------------------------------------------------------------------------------------------------
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const rgba = (text) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = text;
        canvas.fillRect(0, 0, 1, 1);
        const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
        return [red, green, blue, alpha / 255];
    };
    const over = (top, ground) => [0, 1, 2].map((part) => top[part] * top[3] + ground[part] * (1 - top[3])).concat(1);
    const groundOf = (element) => {
        if (!element) { return matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18, 1] : [255, 255, 255, 1]; }
        const own = rgba(getComputedStyle(element).backgroundColor);
        return own[3] === 1 ? own : over(own, groundOf(element.parentElement));
    };
    const light = (colour) => {
        const [red, green, blue] = colour.slice(0, 3).map((part) => part / 255)
            .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const poor = new Map();
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        if (!texts.currentNode.data.trim() || !shown(element) || element.closest("script, style, noscript, option, [disabled], datalist")) { continue; }
        const style = getComputedStyle(element);
        const ground = groundOf(element);
        const ink = over(rgba(element.closest("svg") ? style.fill : style.color), ground);
        const faded = [];
        for (let each = element; each; each = each.parentElement) { faded.push(Number(getComputedStyle(each).opacity)); }
        const opacity = faded.reduce((one, other) => one * other);
        const seen = over([...ink.slice(0, 3), opacity], ground);
        const [high, low] = [light(seen), light(ground)].sort((one, other) => other - one);
        const ratio = (high + 0.05) / (low + 0.05);
        const size = parseFloat(style.fontSize);
        const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
        if (ratio < (large ? 3 : 4.5)) {
            poor.set(named(element), `${ratio.toFixed(2)} to 1 is the contrast of “${texts.currentNode.data.trim().slice(0, 30)}” in ${named(element)} < ${named(element.parentElement)}`);
        }
    }
    document.adoptedStyleSheets = [];
    return [...faults, ...poor.values()];
})()
