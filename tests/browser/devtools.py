"""A page in a Chromium that a test drives: DevTools' messages over a pair of pipes, one JSON text each, ended by a zero byte."""
import fcntl
import json
import os
import shutil
import subprocess
from contextlib import contextmanager

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
KEYS = {"Tab": 9, "Enter": 13}
FIRST_FREE = 10
"""Chromium reads from 3 and writes to 4: its ends are first moved away from there."""


class Page:
    """One tab."""

    def __init__(self, to_browser, from_browser):
        self._to, self._from, self._number = to_browser, from_browser, 0
        self._session = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def send(self, method, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        self._to.write(json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0")
        self._to.flush()
        while (answer := self._read()).get("id") != self._number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _read(self):
        text = bytearray()
        while (byte := self._from.read(1)) != b"\0":
            assert byte, "Chromium is gone"
            text += byte
        return json.loads(text)

    def run(self, script):
        """Return what a script comes to; a promise is waited for."""
        found = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def open(self, url, *, width=1280, height=800, before=""):
        """Load a page, at a size, with a script that runs before its own."""
        self.send("Page.enable")
        self._fit(width, height)
        if before:
            self.send("Page.addScriptToEvaluateOnNewDocument", source=before)
        self.send("Page.navigate", url=url)
        # Evaluated in the page that is there when it is asked; the one that is left behind answers with its own address.
        while self.run("document.readyState + location.href") != f"complete{url}":
            pass

    def _fit(self, width, height):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def see(self, width, scheme, *, height=800):
        """Show the page at another size, in "light" or "dark"."""
        self._fit(width, height)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def leave(self, script):
        """Run a script that leads to another page, and wait for that."""
        self.run("window.left = 'not yet'")
        self.run(f"void setTimeout(() => {{ {script} }})")
        while self.run("document.readyState + (window.left || '')") != "complete":
            pass

    def follow(self, selector):
        """Click on what leads to another page."""
        self.leave(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, key):
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])


@contextmanager
def page(profile):
    """Start a browser and yield its page.

    Args:
        profile: an empty folder for what it keeps.
    """
    theirs, ours = zip(*(map(_away, pair) for pair in (os.pipe(), reversed(os.pipe()))), strict=True)

    def place():
        os.dup2(theirs[0], 3)
        os.dup2(theirs[1], 4)

    browser = subprocess.Popen(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}",
         "--remote-debugging-pipe", "about:blank"],
        pass_fds=(3, 4), preexec_fn=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for end in theirs:
        os.close(end)
    try:
        with os.fdopen(ours[0], "wb") as to_browser, os.fdopen(ours[1], "rb") as from_browser:
            yield Page(to_browser, from_browser)
    finally:
        browser.kill()
        browser.wait()


def _away(end):
    moved = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE)
    os.close(end)
    return moved
