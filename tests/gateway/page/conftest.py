"""A headless Chromium, the page of a real server on a stub engine, and what must hold in every test of the page."""

import datetime
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.gateway.support.browser import CHROMIUM, CHROMIUM_FLAGS, CONTENT, REASONING, SHOTS, UnevenStub, harmony
from tests.gateway.support.gateway import running

from eyas.base.bundled import DEMO
from eyas.base.harmony.rendering import stop_ids
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.base.types import ModelInfo
from eyas.gateway.app import create_app
from eyas.gateway.server.context import GatewayOptions

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
TIMEOUT_MS = 15_000
playwright.expect.set_options(timeout=TIMEOUT_MS)


@dataclass
class Site:
    url: str
    engine: UnevenStub


@pytest.fixture(scope="session")
def codec() -> Tokenizer:
    """The demo model's: words of several letters, so that the live view looks as it does with gpt-oss."""
    return Tokenizer.load(DEMO)


@pytest.fixture
def site(codec) -> Iterator:
    """Start a server: `site(reply=..., round_s=..., port=..., **GatewayOptions)`."""
    with ExitStack() as stack:

        def start(reply=None, *, round_s=0.002, drafts=4, port=0, simulated=False, **options) -> Site:
            info = ModelInfo(
                name="gpt-oss-20b",
                context=4096,
                vocab_size=codec.vocab_size,
                eos_ids=stop_ids(codec),
                drafter="eagle3",
                simulated=simulated,
            )
            answer = harmony(codec, CONTENT, REASONING)
            engine = UnevenStub(
                info, reply or (lambda request, choice: answer), round_s=round_s, drafts_per_round=drafts
            )
            options = GatewayOptions(today=lambda: datetime.date(2026, 11, 20), **options)
            app = create_app(engine, codec, options)
            return Site(stack.enter_context(running(app, engine, port=port)), engine)

        yield start


@pytest.fixture(scope="module")  # not longer: playwright keeps an event loop running in this thread
def browser() -> Iterator:
    if not CHROMIUM.exists():
        pytest.skip(f"no {CHROMIUM} on this machine")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=str(CHROMIUM), args=list(CHROMIUM_FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser) -> Iterator:
    """`open_page(url, **context options)`. Afterwards: nothing on the console, nothing asked of another host."""
    with ExitStack() as stack:

        def open_page(url, *, expected_errors=(), **options):
            options = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce"} | options
            context = browser.new_context(**options)
            page = context.new_page()
            page.set_default_timeout(TIMEOUT_MS)
            console, asked = [], []
            page.on("console", lambda message: console.append(message.text) if message.type == "error" else None)
            page.on("pageerror", lambda error: console.append(str(error)))
            page.on("request", lambda request: asked.append(request.url))

            def check() -> None:
                context.close()
                assert [text for text in console if not any(one in text for one in expected_errors)] == []
                assert [one for one in asked if not one.startswith(url)] == []

            stack.callback(check)
            page.goto(url)
            return page

        yield open_page


@pytest.fixture
def shot(tmp_path):
    """Keep a picture of a page, in $EYAS_SHOTS if it is set."""
    return lambda page, name: page.screenshot(path=Path(SHOTS or tmp_path) / f"{name}.png")
