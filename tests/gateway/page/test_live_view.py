"""The live view in a real browser: eight requests, marks and colours, memory, pausing, and an engine that is killed."""

import json
import os
import re
import signal
import threading
from contextlib import ExitStack, closing, contextmanager

import httpx
import pytest
from playwright.sync_api import expect
from tests.gateway.support.gateway import eventually, running

from eyas.base.settings.config import EngineConfig
from eyas.engine.ports.null import load_null
from eyas.engine.ports.process import EngineProcess
from eyas.gateway.app import create_app
from eyas.gateway.server.context import GatewayOptions

REFUSED = "Failed to load resource"
NUM_REQUESTS = 8


@contextmanager
def load(url, count=NUM_REQUESTS, **fields):
    """`count` requests under way."""

    def ask(number: int) -> None:
        body = {"stream": True, "messages": [{"role": "user", "content": "word " * (20 + 60 * number)}]} | fields
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=20) as response:
            response.read()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.slow
def test_eight_requests(site, open_page, shot):
    one = site(round_s=0.02)
    page = open_page(one.url, viewport={"width": 1360, "height": 900}, color_scheme="dark")
    assert one.engine._observe is None
    page.click("[data-show=live]")
    expect(page.locator("#no-requests")).to_be_visible()
    with load(one.url):
        expect(page.locator(".card")).to_have_count(NUM_REQUESTS)
        expect(page.locator("#running")).to_have_text("8")
        for origin in ("accepted", "rejected", "own"):
            page.wait_for_selector(f".card .{origin}:visible")  # the first drafts may hold no whole character
        page.wait_for_timeout(1200)
        shot(page, "live-dark")
        page.emulate_media(color_scheme="light")
        page.wait_for_timeout(200)
        shot(page, "live-light")
    expect(page.locator(".card.ended")).to_have_count(NUM_REQUESTS)
    expect(page.locator("#running")).to_have_text("0")
    stats = one.engine.stats()
    rounds = stats.num_rounds - NUM_REQUESTS  # the first token of each is no round's
    length = float(page.inner_text("#length"))
    assert length == pytest.approx(1 + stats.num_accepted_tokens / rounds, abs=0.006)
    assert page.inner_text("#drafts") == "4" and page.locator("#positions li").count() == 4
    assert f"{rounds:,} rounds" in page.inner_text("#positions-note")
    assert {page.inner_text(".card .finish >> nth=0")} == {"stop"}
    assert "0 pages held" in page.inner_text("#memory-full")


@pytest.mark.slow
def test_marks_tell_the_origins_apart_without_colour(site, open_page):
    one = site()
    page = open_page(one.url)
    page.click("[data-show=live]")
    with load(one.url, 1):
        page.wait_for_selector(".card.ended")
    marks = {
        origin: page.locator(f".card .{origin}").first.evaluate(
            "(it) => { const s = getComputedStyle(it); return [s.textDecorationLine, s.borderBottomStyle].join(); }"
        )
        for origin in ("accepted", "rejected", "own")
    }
    assert marks == {"accepted": "none,solid", "rejected": "line-through,none", "own": "none,dotted"}
    text = page.locator(".card .accepted, .card .own").all_inner_texts()
    assert "draft head" in "".join(text).replace("**", "")
    page.uncheck("#show-rejected")
    assert not page.locator(".card .rejected").first.is_visible()


@pytest.mark.slow
def test_blank_mode_draws_no_text(site, open_page, shot):
    one = site(live="blank")
    page = open_page(one.url)
    page.click("[data-show=live]")
    with load(one.url, 3):
        expect(page.locator(".card.ended")).to_have_count(3)
    assert page.locator(".card .tokens .blank").count() > 100
    assert page.locator(".card .tokens").first.inner_text().strip() == ""
    shot(page, "live-blank")


@pytest.mark.slow
def test_the_engine_is_observed_only_while_the_view_is_seen(site, open_page):
    one = site()
    page = open_page(one.url)
    for view, is_observed in (("live", True), ("chat", False), ("both", True)):
        page.click(f"[data-show={view}]")
        assert eventually(lambda expected=is_observed: (one.engine._observe is not None) == expected), view
    page.click("text=Pause")
    assert eventually(lambda: one.engine._observe is None)
    page.click("text=Resume")
    assert eventually(lambda: one.engine._observe is not None)
    page.evaluate("""() => {
        Object.defineProperty(document, "hidden", { value: true, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }""")
    assert eventually(lambda: one.engine._observe is None)


@pytest.mark.slow
def test_own_request_is_marked_beside_the_chat(site, open_page, shot):
    one = site(round_s=0.01)
    page = open_page(one.url, viewport={"width": 1440, "height": 900})
    page.click("[data-show=both]")
    page.fill("#input", "How can speculative decoding be exact?")
    page.press("#input", "Enter")
    page.wait_for_selector(".stats")
    expect(page.locator(".card .own-chat")).to_have_count(1)
    shot(page, "both")


@pytest.mark.slow
def test_switched_off_the_page_says_so(site, open_page):
    page = open_page(site(live="off").url, expected_errors=[REFUSED])
    page.click("[data-show=live]")
    expect(page.locator("#live-note")).to_contain_text("the live view is off")


@pytest.fixture
def killable():
    """A server whose engine is a process that can be killed: (url, engine)."""
    engine = EngineProcess(EngineConfig(model="null:100"))  # answers of seconds: a kill comes in time
    try:
        with running(create_app(engine, engine.tokenizer, GatewayOptions()), engine) as url:
            yield url, engine
    finally:
        engine.close()


@pytest.mark.slow
def test_an_engine_killed_under_the_page_is_told_and_comes_back(killable, open_page, shot):
    url, engine = killable
    page = open_page(url, expected_errors=[REFUSED])
    page.click("[data-show=both]")
    page.fill("#input", "Say much")
    page.press("#input", "Enter")
    page.wait_for_selector(".card .accepted:visible")
    expect(page.locator(".growing")).to_contain_text("fox")
    os.kill(engine.pid, signal.SIGKILL)
    page.wait_for_selector(".banner")
    assert "fox" in page.inner_text(".text") and page.is_visible("text=The answer was cut; ask again.")
    shot(page, "killed")
    page.wait_for_selector(".banner.good", timeout=30_000)
    page.click(".banner button")
    page.wait_for_selector(".stats", timeout=30_000)
    expect(page.locator(".card .own-chat")).to_have_count(2)
    assert not page.is_visible("#live-note") and not page.is_visible("#banner")


@pytest.mark.slow
def test_steps_are_gone_through_while_the_view_is_paused(site, open_page, shot):
    one = site(round_s=0.02)
    page = open_page(one.url)
    page.click("[data-show=live]")
    expect(page.locator("#drafter")).to_have_text("EAGLE-3")
    with load(one.url, 3):
        expect(page.locator(".card .drafts").first).to_contain_text("drafted 4.0 a round")
        expect(page.locator("#reaches li").first).to_contain_text("% of")
        expect(page.locator("#worth")).to_contain_text("With 4 drafts for each of 3 sequences")
        expect(page.locator("#rounds input")).to_have_attribute("max", re.compile(r"[5-9]|\d\d"))
        page.click("[aria-label='Step before']")
        expect(page.locator("#hold")).to_have_text("Resume")
        expect(page.locator(".slots li")).not_to_have_count(0)
        before = page.inner_text(".step")
        page.press("#rounds input", "ArrowLeft")
        assert page.inner_text(".step") != before
        shot(page, "steps")
        page.click("#hold")
        expect(page.locator(".slots li")).to_have_count(0)


@pytest.mark.slow
def test_a_link_leads_to_a_step_of_the_trace(site, open_page, tmp_path):
    path = tmp_path / "trace.jsonl"
    one = site(trace=path)
    with load(one.url, 2):
        pass
    assert eventually(lambda: path.stat().st_size > 0)
    step = json.loads(path.read_text().splitlines()[3])
    page = open_page(one.url, expected_errors=[REFUSED])
    told = f"Step {step['step']}, from the trace: {step['ms']:.1f} ms, 4 drafts"
    for number, words in ((step["step"], told), (999_999, "is not in the trace")):
        page.goto(f"{one.url}/#live/step={number}")
        page.reload()
        expect(page.locator("#rounds")).to_contain_text(words)
        if number == step["step"]:
            expect(page.locator(".slots li")).to_have_count(len(step["slots"]))
            assert " ".join(map(str, step["slots"][0]["tokens"])) in page.inner_text(".slots")


@pytest.mark.slow
def test_what_speculation_is_worth_comes_from_steps_without_drafts(site, open_page):
    page = open_page(site().url)
    worth = page.evaluate("""async () => {
        const { Figures } = await import("/page/live/figures.js");
        const figures = new Figures();
        const whole = { steps: 1, rounds: 2, running: 2, waiting: 0, drafted: [], accepted: [] };
        const message = (t, k, ms, tokens) => ({ ...whole, t, k, ms, tokens, step: t });
        for (let t = 0; t < 6; t++) figures.count(message(t, 0, 10, 2));
        figures.count(message(7, 3, 15, 6));
        return document.getElementById("worth").textContent;
    }""")
    assert worth == (
        "With 3 drafts for each of 2 sequences: 400 tokens/s of steps. "
        "Without: 200 tokens/s, by the 10.0 ms that such a step took. Speculation makes it 2.00 times as fast."
    )
    worth = page.evaluate("""async () => {
        const { Figures } = await import("/page/live/figures.js");
        const message = { t: 1, step: 1, steps: 1, running: 1, waiting: 0, drafted: [], accepted: [] };
        new Figures().count({ ...message, k: 3, ms: 20, rounds: 1, tokens: 3, undrafted_ms: 12.5 });
        return document.getElementById("worth").textContent;
    }""")
    assert worth == (
        "With 3 drafts for each of 1 sequence: 150 tokens/s of steps. Without: 80 tokens/s, by the 12.5 ms that such a "
        "step takes by the engine’s own costs. Speculation makes it 1.88 times as fast."
    )


@pytest.mark.slow
def test_tiles_clear_when_the_server_goes_away(codec, browser):
    with ExitStack() as stack:
        engine = stack.enter_context(closing(load_null(EngineConfig(model="null:100"))))
        app = create_app(engine, codec, GatewayOptions())
        url = stack.enter_context(running(app, engine))
        page = browser.new_page()
        page.goto(f"{url}/#live")
        expect(page.locator("#running")).to_have_text("0")
    expect(page.locator("#live-note")).to_be_visible()
    expect(page.locator("#running")).to_have_text("–")
    page.close()
