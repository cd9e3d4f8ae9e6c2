"""A headless Chromium that opens pages, and takes them for broken if they complain; driven by Playwright."""

import contextlib
import shutil

from playwright.sync_api import sync_playwright

BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PHONE = {"width": 360, "height": 740, "phone": True}
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
_IS_DRAWN = "() => [...document.querySelectorAll('.plot')].every(p => p.querySelector('.main-svg'))"


@contextlib.contextmanager
def launched():
    """A Chromium for several pages, one after another."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=BINARY, args=_ARGUMENTS)
        yield chromium
        chromium.close()


@contextlib.contextmanager
def opened(chromium, file, width=1200, height=900, dark=False, phone=False):
    """The page in a file, once its figures are drawn: it may log nothing, and fetch nothing but itself.

    Args:
        chromium: Of `launched`.
        file: The page.
        width, height: Of the window in CSS pixels.
        dark: Whether a dark colour scheme is preferred.
        phone: Whether to be touched and to scale as a phone does.
    """
    page = chromium.new_page(
        viewport={"width": width, "height": height},
        device_scale_factor=2 if phone else 1,
        is_mobile=phone,
        has_touch=phone,
        color_scheme="dark" if dark else "light",
    )
    page.set_default_timeout(60_000)
    complaints, requests = [], []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_function(_IS_DRAWN)
    yield page
    assert complaints == []
    assert [address for address in requests if not address.startswith("data:")] == [file.as_uri()]
    page.close()
