"""A headless Chromium that tells what a page draws, logs and fetches; driven by Playwright."""

import contextlib
import shutil

from playwright.sync_api import sync_playwright

BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
_IS_DRAWN = "[...document.querySelectorAll('.plot')].every(p => p.querySelector('.main-svg'))"


@contextlib.contextmanager
def launched():
    """A Chromium for several pages, one after another."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BINARY, args=_ARGUMENTS)
        yield chromium
        chromium.close()


class Browser:
    """One page.

    Args:
        chromium: Of `launched`.
        width, height: Of the window in CSS pixels.
        dark: Which colour scheme is preferred.
        phone: Whether to be touched and to scale as a phone does.
    """

    def __init__(self, chromium, width=1200, height=900, dark=False, phone=False):
        self.page = chromium.new_page(
            viewport={"width": width, "height": height},
            device_scale_factor=2 if phone else 1,
            is_mobile=phone,
            has_touch=phone,
            color_scheme=_scheme(dark),
        )
        self.page.set_default_timeout(60_000)
        self.complaints, self.requests = [], []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda said: self.complaints.append(said.text))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.page.close()

    def prefer(self, dark):
        self.page.emulate_media(color_scheme=_scheme(dark))

    def open(self, address):
        """Open a page, and wait until its figures are drawn."""
        self.complaints.clear()
        self.requests.clear()
        self.page.goto(address)
        self.wait_for(_IS_DRAWN)

    def wait_for(self, condition):
        self.page.wait_for_function(f"() => ({condition})")

    def evaluate(self, expression):
        return self.page.evaluate(expression)


def _scheme(dark):
    return "dark" if dark else "light"
