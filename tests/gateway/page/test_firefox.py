"""The page in Firefox, where it and `marionette_driver` (PyPI) are installed: what differs between browsers."""

import shutil
from base64 import b64decode
from contextlib import closing
from pathlib import Path

import pytest
from tests.gateway.page.test_hostile import ALLOWED, SHOW
from tests.gateway.page.test_reading import SLOW, TIME
from tests.gateway.support.browser import CONTENT, QUESTION, REASONING, SHOTS, harmony
from tests.gateway.support.hostile import CORPUS

marionette = pytest.importorskip("marionette_driver.marionette", reason="marionette_driver is not installed")
driver = pytest.importorskip("marionette_driver")
FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(FIREFOX is None, reason="no Firefox on this machine"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # marionette_driver's sockets
]
ENTER = "\ue006"  # WebDriver's name of the key
RICH = CONTENT + "\n\nWith $\\alpha$:\n\n$$\\sum_{n=0}^N \\frac{x^n}{n!}$$\n"
MODULE = """const [source, given, resolve] = arguments;
addEventListener("told", ({ detail }) => resolve(JSON.parse(detail)), { once: true });
(0, eval)(source)(given).then((found) => dispatchEvent(new CustomEvent("told", { detail: JSON.stringify(found) })));"""


class Browser:
    """Firefox without a window: names, clicks and texts of elements, each awaited."""

    def __init__(self) -> None:
        self.driver = marionette.Marionette(bin=FIREFOX, headless=True, gecko_log="-", startup_timeout=120)
        self.driver.start_session()
        self.driver.timeout.script = 60
        self.driver.timeout.implicit = 15

    def close(self) -> None:
        self.driver.quit()

    def find(self, css: str):
        return self.driver.find_element("css selector", css)

    def until(self, script: str) -> None:
        """Wait until an expression of the page is true."""
        wait = driver.Wait(self.driver, timeout=20)
        wait.until(lambda m: m.execute_script(f"return {script}"), message=f"still false: {script}")


@pytest.fixture(scope="module")
def firefox():
    with closing(Browser()) as browser:
        yield browser


def test_a_conversation(site, codec, firefox):
    one = site(lambda request, choice: harmony(codec, RICH, REASONING))
    firefox.driver.navigate(one.url)
    firefox.find("#input").send_keys(QUESTION + ENTER)
    firefox.until("document.querySelector('.stats')?.textContent.includes('acceptance length')")
    firefox.until("document.querySelectorAll('.assistant .code .t-k').length > 2")
    firefox.until("document.querySelectorAll('.assistant math mfrac').length === 1")
    firefox.until("document.querySelectorAll('.assistant td').length === 4")
    firefox.until(f"document.querySelector('.talk').textContent === {QUESTION!r}")
    firefox.find(".user .actions button").click()
    firefox.find("[aria-label='Edit your message']").send_keys(" And when?" + ENTER)
    firefox.until("document.querySelector('.user .versions')?.textContent.includes('2 of 2')")
    firefox.until("document.querySelector('.stats')")
    firefox.driver.refresh()
    firefox.until("document.querySelectorAll('.assistant').length === 1")
    firefox.find("[data-show=live]").click()
    firefox.until("document.querySelector('#running').textContent === '0'")
    firefox.driver.set_window_rect(width=500, height=800)
    firefox.until("document.documentElement.scrollWidth <= innerWidth")
    if SHOTS:
        firefox.find("[data-show=chat]").click()
        (Path(SHOTS) / "firefox.png").write_bytes(b64decode(firefox.driver.screenshot(full=False)))


def test_hostile_texts_and_slow_ones(site, firefox):
    firefox.driver.navigate(site().url)
    assert firefox.driver.execute_async_script(MODULE, [SHOW, [CORPUS, ALLOWED]], sandbox=None) == []
    assert firefox.driver.execute_script("return window.wrappedJSObject.hacked") is None
    for name, text in SLOW.items():
        assert firefox.driver.execute_async_script(MODULE, [TIME, text], sandbox=None) < 1000, name
