"""A headless Chromium, driven by its DevTools protocol over a websocket of our own.

Only the standard library, and only what the tests of the dashboard need: open a page, run
JavaScript in it, press keys, look at its console and its requests, write a picture.
"""

import base64
import json
import os
import re
import shutil
import socket
import struct
import tempfile
import time
import urllib.parse

import harness

LIMIT_S = 60  # generous: the machine may be busy


def find_chromium():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return shutil.which(name)
    return None


def require_chromium():
    if not find_chromium():
        harness.skip("no chromium (tests/support/packages.sh --clients brings one)")


class WebSocket:
    """The client's side of RFC 6455, text messages only."""

    def __init__(self, url):
        parsed = urllib.parse.urlsplit(url)
        self.socket = socket.create_connection((parsed.hostname, parsed.port), timeout=LIMIT_S)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            (
                f"GET {parsed.path} HTTP/1.1\r\nHost: {parsed.netloc}\r\nUpgrade: websocket\r\n"
                f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
                "Sec-WebSocket-Version: 13\r\n\r\n"
            ).encode()
        )
        self.rest = b""
        while b"\r\n\r\n" not in self.rest:
            self.rest += self._more()
        head, self.rest = self.rest.split(b"\r\n\r\n", 1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise AssertionError(f"no websocket: {head!r}")

    def _more(self):
        data = self.socket.recv(1 << 16)
        if not data:
            raise AssertionError("the browser closed its websocket")
        return data

    def _take(self, count):
        while len(self.rest) < count:
            self.rest += self._more()
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def send(self, text):
        data = text.encode()
        size = len(data)
        if size < 126:
            head = struct.pack("!BB", 0x81, 0x80 | size)
        elif size < 1 << 16:
            head = struct.pack("!BBH", 0x81, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", 0x81, 0x80 | 127, size)
        self.socket.sendall(head + bytes(4) + data)  # masked with zeros: any mask will do

    def receive(self, limit_s):
        """One message; raises TimeoutError when none begins within the limit."""
        whole = b""
        self.socket.settimeout(limit_s)
        while True:
            first, size = self._take(2)
            self.socket.settimeout(LIMIT_S)
            if size == 126:
                (size,) = struct.unpack("!H", self._take(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self._take(8))
            data = self._take(size)
            if first & 0x0F in (0, 1):
                whole += data
                if first & 0x80:
                    return whole.decode()

    def close(self):
        self.socket.close()


class Browser:
    """One Chromium with one page. What the page does is kept: `errors` (exceptions, console errors,
    violated policies), `requests` (their addresses) and `methods` (theirs).
    """

    def __init__(self, folder):
        self.profile = tempfile.mkdtemp(prefix="chromium-", dir=folder)
        command = [
            find_chromium(),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--no-first-run",
            "--hide-scrollbars",
            "--remote-debugging-port=0",
            f"--user-data-dir={self.profile}",
            "about:blank",
        ]
        self.process = harness.Process(command, folder, "chromium")
        found = self.process.wait_for(
            lambda: re.search(r"DevTools listening on ws://([^/]+)/", self.process.read_log()),
            "chromium listens",
        )
        targets = harness.get(f"http://{found[1]}/json/list").ok()
        page = next(target for target in targets if target["type"] == "page")
        self.socket = WebSocket(page["webSocketDebuggerUrl"])
        self.last_id = 0
        self.errors, self.requests, self.methods = [], [], []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(f"{domain}.enable")

    def close(self):
        self.socket.close()
        self.process.close()

    def _event(self, message):
        method, more = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = more["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and more["type"] in ("error", "warning"):
            self.errors.append(str(more["args"]))
        elif method == "Log.entryAdded" and more["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{more['entry']['text']} {more['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(more["request"]["url"])
            self.methods.append(more["request"]["method"])

    def command(self, method, **more):
        self.last_id += 1
        self.socket.send(json.dumps({"id": self.last_id, "method": method, "params": more}))
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            message = json.loads(self.socket.receive(LIMIT_S))
            if message.get("id") == self.last_id:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message["result"]
            self._event(message)
        raise AssertionError(f"{method} had no answer within {LIMIT_S} s")

    def run(self, expression):
        """The value of a JavaScript expression, awaited where it is a promise."""
        result = self.command(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression, what, limit_s=LIMIT_S):
        return harness.wait_until(lambda: self.run(expression), what, limit_s, 0.05)

    def look_like(self, width, height, dark=False, still=False):
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce" if still else "no-preference"},
        ]
        self.command("Emulation.setEmulatedMedia", features=features)

    def open(self, url):
        self.run("window.left = true")  # the page before it may have the same address
        for kept in (self.errors, self.requests, self.methods):
            kept.clear()
        self.command("Page.navigate", url=url)
        there = f"location.href === {json.dumps(url)} && document.readyState === 'complete'"
        self.wait(f"window.left === undefined && {there}", url)

    def press(self, key, code=0):
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            self.command(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=code,
                text=text if kind == "keyDown" else "",
            )

    def picture(self, path):
        """The whole page as PNG."""
        size = self.command("Page.getLayoutMetrics")["cssContentSize"]
        shot = self.command(
            "Page.captureScreenshot",
            captureBeyondViewport=True,
            clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1},
        )
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))
