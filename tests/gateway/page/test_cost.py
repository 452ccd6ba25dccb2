"""What the page costs: a long answer that streams (prints its long tasks), 200 answers in memory, the first paint."""

import json

import pytest
from playwright.sync_api import expect
from tests.gateway.support.browser import CONTENT

pytestmark = pytest.mark.slow
NUM_TOKENS = 30_000
STREAM = """([text, count]) => {
    window.tasks = [];
    window.frames = [];
    let last = performance.now();
    const frame = (now) => {
        window.frames.push(Math.round(now - last));
        last = now;
        requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
    const note = (list) => list.getEntries().forEach((one) => window.tasks.push(Math.round(one.duration)));
    new PerformanceObserver(note).observe({ type: "longtask" });
    const { fetch } = window;
    window.fetch = (path, options) => {
        if (!path.endsWith("/chat/completions")) return fetch(path, options);
        const size = Math.ceil(text.length / count), encoder = new TextEncoder();
        const chunk = (delta, more) => JSON.stringify({ id: "x-123456", choices: [{ index: 0, delta, ...more }] });
        const line = (delta, more) => encoder.encode(`data: ${chunk(delta, more)}\\n\\n`);
        let at = 0;
        const body = new ReadableStream({ async pull(controller) {
            await new Promise((done) => setTimeout(done, 16));
            for (let n = 0; n < 40 && at < text.length; n++, at += size)
                controller.enqueue(line({ content: text.slice(at, at + size) }));
            if (at < text.length) return;
            controller.enqueue(line({}, { finish_reason: "stop" }));
            controller.enqueue(encoder.encode("data: [DONE]\\n\\n"));
            controller.close();
        } });
        return Promise.resolve(new Response(body));
    };
}"""
LINE = "    value = compute(first, second=3)  # and a comment\n"
LONG = {
    "prose": (CONTENT + "\n\n") * 130,
    "one code block": "```python\n" + LINE * 2200 + "```\n",
    "one list": "".join(
        f"- **item {n}** of a long list, with `code` and [a link](https://a.b/{n})\n" for n in range(1600)
    ),
    "one table": "| name | value | note |\n|---|--:|---|\n"
    + "".join(f"| row {n} | {n * 7} | `code` and **bold** {n} |\n" for n in range(3000)),
    "one paragraph": "A sentence of some words, with *emphasis* and `code`, and no end. " * 1800,
    "one line of code": "```js\n" + "a(1); " * 20_000,
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_answer_streams(site, open_page, name):
    text = LONG[name]
    page = open_page(site().url, viewport={"width": 1280, "height": 800})
    page.evaluate(STREAM, [text, NUM_TOKENS])
    page.fill("#input", "Say much")
    page.press("#input", "Enter")
    expect(page.locator("#status")).to_contain_text("Answer complete", timeout=120_000)
    tasks = page.evaluate("window.tasks")
    frames = page.evaluate("window.frames")
    print(
        f"\n{name}: {len(text):,} characters, {len(tasks)} tasks above 50 ms, the longest {max(tasks, default=0)} ms; "
        f"{sum(one > 50 for one in frames)} of {len(frames)} frames above 50 ms, the longest {max(frames)} ms"
    )
    shown = page.locator(".assistant").inner_text()
    assert len(shown) > len(text) / 2


def test_two_hundred_answers_fit_in_memory(site, open_page):
    messages, parent = {}, None
    for n in range(200):
        for role in ("user", "assistant"):
            messages[f"{role}{n}"] = {"role": role, "content": CONTENT * 3, "parent": parent, "at": len(messages)}
            parent = f"{role}{n}"
    whole = {"format": "eyas.conversations", "version": 1, "conversations": [{"messages": messages, "leaf": parent}]}
    page = open_page(site().url)
    file = {"name": "a.json", "mimeType": "application/json", "buffer": json.dumps(whole).encode()}
    page.set_input_files("#library input[type=file]", [file])
    expect(page.locator(".assistant")).to_have_count(200)
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    metrics = session.send("Performance.enable") or session.send("Performance.getMetrics")["metrics"]
    found = {one["name"]: one["value"] for one in metrics}
    print(f"heap {found['JSHeapUsedSize'] / 2**20:.1f} MiB, {found['Nodes']:,.0f} nodes")
    assert found["JSHeapUsedSize"] < 150e6


def test_the_first_paint_comes_soon(site, open_page):
    page = open_page(site().url)
    paints = []
    for _ in range(5):
        page.reload()
        page.wait_for_timeout(300)
        paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
    print(f"first contentful paint: {sorted(paints)} ms")
    assert min(paints) < 1000
