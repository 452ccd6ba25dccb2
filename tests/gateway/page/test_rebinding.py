"""Pages of other names and origins in a real browser: neither the chat nor the live view gives them anything."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import expect
from tests.gateway.page.test_live_view import load
from tests.gateway.support.browser import EVIL, QUESTION

PATHS = ["/", "/page/app.js", "/v1/models", "/health", "/ready", "/metrics", "/openapi.json"]
ASK = """async ([base, mode, type]) => {
    const body = JSON.stringify({ messages: [{ role: "user", content: "Hi" }] });
    const options = { method: "POST", mode, headers: type ? { "Content-Type": type } : {}, body: new Blob([body]) };
    return fetch(base + "/v1/chat/completions", options).then((it) => it.text()).catch(() => "");
}"""
READ = """async (paths) => {
    const found = [];
    for (const path of paths) found.push((await fetch(path)).status);
    return found;
}"""
LOOK = """async (base) => {
    const response = await fetch(base + "/live").catch(() => null);
    if (!response) return "";
    const reader = response.body.getReader(), decoder = new TextDecoder();
    let text = "";
    for (let i = 0; i < 20; i++) {
        const { done, value } = await reader.read();
        if (done) break;
        text += decoder.decode(value);
    }
    return text;
}"""
LISTEN = """(base) => {  // and what a page shows without being able to read it
    const ended = (it, ...names) => new Promise((end) => names.forEach((name) => it.addEventListener(name, end)));
    const source = new EventSource(base + "/live"), image = new Image();
    const socket = new WebSocket(base.replace("http", "ws") + "/live");
    const all = [ended(source, "open", "error"), ended(image, "load", "error"), ended(socket, "open", "error")];
    image.src = base + "/live";
    const abort = AbortSignal.timeout(500);
    all.push(fetch(base + "/live", { mode: "no-cors", signal: abort }).catch(() => {}));
    return Promise.race([Promise.all(all), new Promise((end) => setTimeout(end, 2000))]).then(() => source.readyState);
}"""


@contextmanager
def evil_server():
    """The port of a server with an empty page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>evil</title>")

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def evil_page(browser):
    context = browser.new_context()
    yield context.new_page()
    context.close()


@pytest.mark.slow
def test_a_name_that_comes_to_mean_this_machine(site, evil_page):
    with evil_server() as port:
        evil_page.goto(f"http://{EVIL}:{port}/")
    one = site(port=port)  # the page's origin is now this server's, for the browser
    assert evil_page.title() == "evil"
    assert evil_page.evaluate(READ, PATHS) == [403] * len(PATHS)
    answer = evil_page.evaluate(ASK, ["", "same-origin", "application/json"])
    assert "host_not_allowed" in answer and "draft head" not in answer
    assert one.engine.stats().num_generated_tokens == 0
    with load(one.url, 1):
        seen = evil_page.evaluate(LOOK, "")
    assert "host_not_allowed" in seen and "data:" not in seen
    evil_page.goto(f"http://{EVIL}:{port}/")  # nor is there a page of ours
    assert "host_not_allowed" in evil_page.content()


@pytest.mark.slow
@pytest.mark.parametrize("name", [EVIL, "127.0.0.1", "localhost"])
def test_another_origin(site, evil_page, name):
    one, observed = site(), []
    observe = one.engine.observe
    one.engine.observe = lambda listener: [observed.append(listener), observe(listener)]
    base = f"http://{name}:{one.url.rpartition(':')[2]}"
    with evil_server() as port:
        evil_page.goto(f"http://{EVIL}:{port}/")
        for mode in ("cors", "no-cors"):
            for kind in ("application/json", "text/plain", ""):
                assert evil_page.evaluate(ASK, [base, mode, kind]) == "", (mode, kind)
        assert evil_page.evaluate(LOOK, base) == ""
        assert evil_page.evaluate(LISTEN, base) == 2  # closed for good
        assert one.engine.stats().num_generated_tokens == 0 and observed == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["localhost", "eyas.localhost"])
def test_own_names_serve_the_page(site, open_page, name):
    one = site()
    page = open_page(one.url.replace("127.0.0.1", name))
    page.click("[data-show=both]")
    page.fill("#input", QUESTION)
    page.press("#input", "Enter")
    expect(page.locator(".assistant .stats")).to_have_count(1)
    expect(page.locator(".card.ended")).to_have_count(1)
