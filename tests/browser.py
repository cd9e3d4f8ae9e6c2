"""A headless Chromium that tells what a page draws, logs and fetches; driven over the pipe of its DevTools."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page.

    Args:
        folder: For the browser's profile.
        width, height: Of the window in CSS pixels.
        dark: Which colour scheme is preferred.
        phone: Whether to be touched and to scale as a phone does.
    """

    def __init__(self, folder, width=1200, height=900, dark=False, phone=False):
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        command = [
            *("bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash"),  # other shells know one-digit files alone
            *(BINARY, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
            *(f"--user-data-dir={folder}", "about:blank"),
        ]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, pass_fds=(commands, answers), stdout=quiet, stderr=quiet)
        os.close(commands)
        os.close(answers)
        self._received = b""
        self._number = 0
        self._session = None
        self.events = []
        page = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        scale = 2 if phone else 1
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        self.prefer(dark)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def prefer(self, dark):
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address):
        """Open a page, and wait until its figures are drawn."""
        self.events.clear()
        self.call("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")
        self.wait_for("[...document.querySelectorAll('.plot')].every(p => p.querySelector('.main-svg'))")

    def wait_for(self, condition, seconds=60):
        deadline = time.monotonic() + seconds
        while not self.evaluate(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not so after {seconds} s: {condition}; {self.complaints()}")
            time.sleep(0.1)

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def screenshot(self, path, whole=True):
        clip = self.call("Page.getLayoutMetrics")["cssContentSize"] | {"scale": 1}
        more = {"clip": clip, "captureBeyondViewport": True} if whole else {}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **more)["data"]))

    def complaints(self):
        """What the page threw, or wrote to the console."""
        self.call("Runtime.evaluate", expression="0")
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event for event in self.events if event["method"] in kinds]

    def requests(self):
        """Addresses that were asked for."""
        self.call("Runtime.evaluate", expression="0")
        sent = (event for event in self.events if event["method"] == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _receive(self, seconds=60):
        while b"\0" not in self._received:
            if not select.select([self._read], [], [], seconds)[0]:
                raise TimeoutError(f"the browser said nothing for {seconds} s")
            some = os.read(self._read, 2**20)
            if not some:
                raise RuntimeError(f"the browser has ended, exit status {self._process.poll()}")
            self._received += some
        answer, self._received = self._received.split(b"\0", 1)
        return json.loads(answer)
