"""A page opened in headless Chromium, by the DevTools protocol."""

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from itertools import count

from websockets.sync.client import connect

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


class Page:
    """One tab: commands, what the console said, and how long loading took."""

    def __init__(self, socket):
        self.socket, self.numbers, self.console = socket, count(1), []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method, **parameters):
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            said = self._receive()
            if said.get("id") == number:
                assert "error" not in said, said
                return said["result"]

    def _receive(self):
        said = json.loads(self.socket.recv(timeout=60))
        if said.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
            self.console.append(said["params"])
        if said.get("method") == "Runtime.consoleAPICalled":
            self.console.append(said["params"])
        if said.get("method") == "Network.requestWillBeSent":
            self.console += self._outside(said["params"]["request"]["url"])
        return said

    @staticmethod
    def _outside(url):
        return [] if url.startswith(("file:", "data:")) else [url]

    def open(self, path, width, dark=False):
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.send("Emulation.setDeviceMetricsOverride", **metrics)
        begun = time.perf_counter()
        self.send("Page.navigate", url=path.resolve().as_uri())
        while self._receive().get("method") != "Page.loadEventFired":
            pass
        return time.perf_counter() - begun

    def value(self, expression):
        said = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    def picture(self, **options):
        return base64.b64decode(self.send("Page.captureScreenshot", **options)["data"])


@contextmanager
def browser(folder):
    """A tab of a browser of its own, ended afterwards."""
    process = subprocess.Popen(
        [BROWSER, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        told = folder / "DevToolsActivePort"
        deadline = time.monotonic() + 60
        while not told.exists() or not told.read_text().count("\n"):
            assert time.monotonic() < deadline, "Chromium did not start."
            time.sleep(0.1)
        port = told.read_text().splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            tabs = [tab for tab in json.load(answer) if tab["type"] == "page"]
        with connect(tabs[0]["webSocketDebuggerUrl"], max_size=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        process.wait(30)
