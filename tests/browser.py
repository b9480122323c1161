"""A headless Chromium driven through chromedriver's WebDriver protocol; the standard library is
enough for it."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip
START_S = 30.0
_COMPLETE = "return location.href === arguments[0] && document.readyState === 'complete'"


def missing() -> str:
    """Why there is no browser to drive; empty if there is one."""
    if not _browser():
        return "no Chromium: install it (Debian: apt-get install chromium chromium-driver)"
    return "" if shutil.which("chromedriver") else "no chromedriver (Debian: chromium-driver)"


@contextmanager
def browser(width: int = 1280, height: int = 900) -> Iterator[Browser]:
    """A browser with a profile of its own, gone at the end."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        driver = subprocess.Popen(
            ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            found = _session(f"http://127.0.0.1:{port}", folder, (width, height), driver)
            try:
                yield found
            finally:
                found.close()
        finally:
            driver.terminate()
            driver.wait(10)


def _session(server: str, folder: str, size: tuple[int, int], driver) -> Browser:
    flags = [*FLAGS, f"--user-data-dir={folder}", f"--window-size={size[0]},{size[1]}"]
    wanted = {
        "goog:chromeOptions": {"binary": _browser(), "args": flags},
        "goog:loggingPrefs": {"browser": "ALL"},
    }
    asked = {"capabilities": {"alwaysMatch": wanted}}
    end = time.monotonic() + START_S
    while True:
        try:
            found = _call(f"{server}/session", asked)
            return Browser(f"{server}/session/{found['sessionId']}")
        except (urllib.error.URLError, ConnectionError):
            if driver.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(0.05)  # the driver is not listening yet


class Browser:
    def __init__(self, session: str) -> None:
        self._session = session

    def close(self) -> None:
        """Ends the browser and all of its processes."""
        _call(self._session, method="DELETE")

    def open(self, path: Path) -> None:
        """Returns when the page's load event is over; the driver, on a busy machine, sooner."""
        address, end = path.resolve().as_uri(), time.monotonic() + START_S
        _call(f"{self._session}/url", {"url": address})
        while not self.run(_COMPLETE, address):
            if time.monotonic() > end:
                raise RuntimeError(f"{address} is not loaded after {START_S:g} s")
            time.sleep(0.05)

    def run(self, script: str, *arguments):
        """The value that `script`, the body of a function, returns."""
        return _call(f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def keys(self, *keys: str) -> None:
        """Presses and releases keys in the focused element; special ones are WebDriver's code
        points."""
        presses = [{"type": t, "value": k} for k in keys for t in ("keyDown", "keyUp")]
        _call(f"{self._session}/actions",
              {"actions": [{"type": "key", "id": "keyboard", "actions": presses}]})

    def scheme(self, name: str) -> None:
        """The system prefers "light" or "dark"."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self._devtools("Emulation.setEmulatedMedia", {"features": [feature]})

    def size(self, width: int, height: int) -> None:
        """The window's, in CSS pixels."""
        self._devtools("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})

    def paper(self, on: bool) -> None:
        """The page looks as it is printed, or as on a screen again."""
        self._devtools("Emulation.setEmulatedMedia", {"media": "print" if on else ""})

    def pdf(self) -> bytes:
        found = _call(f"{self._session}/print", {"background": True})
        return base64.b64decode(found)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """For people to look at: the `whole` page, or what is in the window."""
        found = self._devtools("Page.captureScreenshot", {"captureBeyondViewport": whole})
        path.write_bytes(base64.b64decode(found["data"]))

    def errors(self) -> list[str]:
        """What the console was told since the last call, beyond information."""
        found = _call(f"{self._session}/se/log", {"type": "browser"})
        return [e["message"] for e in found if e["level"] in ("SEVERE", "WARNING")]

    def _devtools(self, command: str, parameters: dict):
        asked = {"cmd": command, "params": parameters}
        return _call(f"{self._session}/goog/cdp/execute", asked)


def _browser() -> str | None:
    return next((found for name in CHROMIUM if (found := shutil.which(name))), None)


def _call(url: str, asked: dict | None = None, method: str = "POST"):
    """Errors: RuntimeError with what the driver says."""
    request = urllib.request.Request(
        url, json.dumps(asked or {}).encode(), {"Content-Type": "application/json"}, method=method
    )
    try:
        with _DIRECT.open(request, timeout=60) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(json.load(error)["value"]["message"]) from None


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
