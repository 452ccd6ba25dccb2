"""The chat in a real browser: streaming, stop, regenerate, edit, reasoning, tools, errors, keyboard, hostile text."""

import json
import re

import pytest
from playwright.sync_api import expect
from tests.gateway.support.browser import CONTENT, HOSTILE, QUESTION, REASONING, call, harmony
from tests.gateway.support.gateway import eventually

from eyas.gateway.operation.auth import digests

REFUSED = "Failed to load resource"  # Chromium's own line for any status of 400 and above


def send(page, text=QUESTION):
    page.fill("#input", text)
    page.press("#input", "Enter")


def answered(page, text=QUESTION):
    """Ask and wait for the whole answer; returns the texts of all messages."""
    before = page.locator(".assistant").count()
    send(page, text)
    expect(page.locator(".assistant .stats")).to_have_count(before + 1)


@pytest.mark.slow
def test_an_answer_streams_in_with_its_numbers(site, open_page, shot):
    one = site(round_s=0.01)
    page = open_page(one.url)
    assert "Conversations stay in this browser" in page.inner_text("#empty")
    send(page)
    page.wait_for_selector(".growing")
    assert page.get_attribute("#send", "aria-label") == "Stop" and page.get_attribute("#log", "aria-busy") == "true"
    partial = page.inner_text(".text")
    page.wait_for_selector(".stats")
    assert 0 < len(partial) < len(page.inner_text(".text"))
    assert page.inner_text(".user .bubble") == QUESTION
    assert page.locator(".text ol > li").count() == 3 and page.inner_text(".text strong") == "draft head"
    assert page.locator(".text table tr").count() == 3 and "def accepted" in page.inner_text(".text pre")
    assert page.get_attribute(".text a", "rel") == "noopener noreferrer nofollow"
    stats, engine = page.inner_text(".stats"), one.engine.stats()
    assert f"{engine.num_generated_tokens} tokens · " in stats and "tokens/s" in stats
    assert f"{engine.num_accepted_tokens} of {engine.num_draft_tokens} drafts accepted" in stats
    length = (engine.num_generated_tokens - 1) / (engine.num_rounds - 1)
    assert f"acceptance length {length:.2f}" in stats
    assert "Answer complete" in page.inner_text("#status")
    assert not page.locator(".reasoning").get_attribute("open") and page.inner_text(".reasoning-text") == ""
    page.click(".reasoning summary")
    assert page.inner_text(".reasoning-text") == REASONING
    shot(page, "chat-light")
    page.emulate_media(color_scheme="dark")
    shot(page, "chat-dark")


@pytest.mark.slow
def test_reasoning_shows_on_one_line_while_it_streams(site, open_page):
    page = open_page(site(round_s=0.03).url)
    send(page)
    expect(page.locator(".gist bdi")).to_have_text(re.compile(".{20}"))
    assert page.inner_text(".reasoning summary").startswith("Thinking")
    assert page.inner_text(".gist bdi") in REASONING and not page.locator(".reasoning[open]").count()
    height = page.locator(".reasoning").bounding_box()["height"]
    page.wait_for_selector(".growing")
    assert page.locator(".reasoning").bounding_box()["height"] == height  # nothing below it jumps
    page.press("#input", "Escape")


@pytest.mark.slow
def test_stop_keeps_what_came_and_cancels_in_the_engine(site, open_page):
    one = site(round_s=0.03)
    page = open_page(one.url)
    send(page)
    page.wait_for_selector(".growing")
    page.press("#input", "Escape")
    page.wait_for_selector("text=Stopped.")
    kept = page.inner_text(".text")
    assert kept
    assert eventually(lambda: one.engine.stats().num_running == 0)
    assert one.engine.stats().num_generated_tokens < 300
    assert page.get_attribute("#send", "aria-label") == "Send"
    page.reload()
    expect(page.locator(".user .bubble")).to_have_text(QUESTION)
    assert page.inner_text(".text") == kept and page.is_visible("text=Stopped.")


@pytest.mark.slow
def test_regenerate_edit_and_new_chat(site, open_page, codec):
    asked = []

    def reply(request, choice):
        asked.append(request.prompt_ids)
        return harmony(codec, f"Answer {len(asked)}.")

    page = open_page(site(reply).url)
    answered(page, "First")
    assert page.inner_text(".text") == "Answer 1."
    page.click("text=Regenerate")
    page.wait_for_selector("text=Answer 2.")
    assert asked[0] == asked[1] and page.locator(".assistant").count() == 1
    assert "2 of 2" in page.inner_text(".versions")
    page.click("[aria-label='Version before']")
    expect(page.locator(".text")).to_have_text("Answer 1.")
    assert page.evaluate("document.activeElement.ariaLabel") == "Version after"  # the other is of no use there
    page.click("[aria-label='Version after']")
    answered(page, "Second")
    assert len(asked[2]) > len(asked[1]) and page.locator("text=Regenerate").count() == 1
    page.click(".user:nth-child(3) >> text=Edit")
    page.keyboard.press("Control+A")
    page.keyboard.type("Third")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Answer 4.")
    assert [text.strip() for text in page.locator(".bubble").all_inner_texts()] == ["First", "Third"]
    assert page.evaluate("document.activeElement.id") == "input"
    page.click("#new")
    assert page.locator("#messages li").count() == 0 and page.is_visible("#empty")


@pytest.mark.slow
def test_settings_reach_the_server_and_stay(site, open_page, codec):
    seen = []

    def reply(request, choice):
        seen.append(request)
        return harmony(codec, "Yes.")

    page = open_page(site(reply).url)
    page.click("#open-settings")
    page.fill("[name=system]", "Answer in one word.")
    page.select_option("[name=effort]", "high")
    page.click("summary:text('Sampling')")
    page.click("summary:text('Form of the answer')")
    wanted = {
        "temperature": 0.5,
        "max_tokens": 77,
        "seed": 9,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.125,
    }
    for name, value in wanted.items():
        page.fill(f"[name={name}]", str(value))
    page.fill("[name=stop]", "END\nstop here")
    page.check("[name=always]")
    page.click("text=Done")
    answered(page)
    params = seen[0].params
    assert {name: getattr(params, name) for name in wanted} == wanted
    prompt = b"".join(map(codec.token_bytes, seen[0].prompt_ids)).decode()
    assert "Reasoning: high" in prompt and "Answer in one word." in prompt
    page.reload()
    page.click("#new")
    page.click("#open-settings")
    assert page.input_value("[name=seed]") == "9"
    page.fill("[name=seed]", "10")  # of this conversation alone
    page.click("text=Done")
    page.click(".talk")
    page.click("#open-settings")
    assert page.input_value("[name=seed]") == "9"


@pytest.mark.slow
def test_a_tool_call_is_shown_and_its_result_goes_back(site, open_page, codec, shot):
    prompts = []

    def reply(request, choice):
        prompts.append(b"".join(map(codec.token_bytes, request.prompt_ids)).decode())
        if len(prompts) == 1:
            return call(codec, "weather", '{"city":"Lund"}')
        return harmony(codec, "It rains.")

    page = open_page(site(reply).url)
    page.click("#open-settings")
    page.click("summary:text('Tools')")
    page.fill("[name=tools]", "{oops")
    page.click("text=Done")
    assert "not JSON" in page.inner_text("#tools-error") and page.is_visible("dialog")
    tool = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    page.fill("[name=tools]", json.dumps([{"type": "function", "function": tool}]))
    page.click("text=Done")
    answered(page, "Weather in Lund?")
    assert page.inner_text(".calls b") == "weather" and page.inner_text(".calls pre") == '{\n  "city": "Lund"\n}'
    page.fill("[aria-label='Result of weather']", '{"sky": "rain"}')
    shot(page, "tool-call")
    page.click("text=Send results")
    page.wait_for_selector("text=It rains.")
    assert "namespace functions" in prompts[0]
    assert '{"city":"Lund"}' in prompts[1] and '{"sky": "rain"}' in prompts[1] and "I need the weather." in prompts[1]


@pytest.mark.slow
def test_hostile_text_stays_text(site, open_page, codec):
    page = open_page(site(lambda request, choice: harmony(codec, HOSTILE, "<img src=x onerror=hacked=1>")).url)
    answered(page, "<script>window.hacked=1</script>")
    assert page.evaluate("window.hacked") is None
    assert page.locator(".text :is(img, script, iframe, i, u, b)").count() == 0
    text = page.inner_text("#messages")
    for piece in ("<img src=x", "<script>window.hacked=1</script>", "javascript:window.hacked", "<iframe", "<u>c</u>"):
        assert piece in text
    page.reload()
    assert page.evaluate("window.hacked") is None and "<iframe" in page.inner_text("#messages")


@pytest.mark.slow
def test_an_engine_that_is_down_is_a_banner_and_then_a_second_try(site, open_page):
    one = site()
    page = open_page(one.url, expected_errors=[REFUSED])
    one.engine.failure = "the engine is restarting"
    send(page)
    page.wait_for_selector(".banner >> text=the engine is restarting")
    assert page.locator(".assistant").count() == 0 and page.inner_text(".bubble") == QUESTION
    one.engine.failure = None
    page.wait_for_selector(".banner.good")
    page.click(".banner button")
    page.wait_for_selector(".stats")
    assert not page.is_visible("#banner")


@pytest.mark.slow
def test_a_mistake_is_told_in_the_servers_words(site, open_page):
    page = open_page(site().url, expected_errors=[REFUSED])
    send(page, "word " * 6000)
    page.wait_for_selector(".banner")
    assert "4096" in page.inner_text(".banner").replace(",", "")


@pytest.mark.slow
def test_a_key_is_asked_for_only_when_it_is_wanted(site, open_page):
    page = open_page(site(key_digests=digests("sesame")).url, expected_errors=[REFUSED])
    assert page.locator("input[type=password]").count() == 0
    send(page)
    page.fill("input[type=password]", "sesame")
    page.click("text=Use it")
    page.wait_for_selector(".stats")
    assert page.evaluate("[sessionStorage['eyas.key'], Object.values(localStorage).join().includes('sesame')]") == [
        "sesame",
        False,
    ]


def test_by_keyboard_alone(site, open_page):
    page = open_page(site().url)
    assert page.evaluate("document.activeElement.id") == "input"
    page.keyboard.type("One")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    page.wait_for_selector(".stats")
    assert page.inner_text(".bubble") == "One\ntwo"
    names = [tab(page) for _ in range(32)]  # once around, from the message box
    start = names.index("Chat")
    order = [
        "Chat",
        "Both",
        "Live",
        "New chat",
        "Settings",
        "Colours: auto",
        "New conversation",
        "Search conversations",
    ]
    assert names[start : start + len(order)] == order
    while tab(page) != "Regenerate":
        pass
    page.keyboard.press("Enter")
    page.wait_for_selector("[aria-busy=true]")
    page.wait_for_selector(".stats")


def tab(page) -> str:
    """Go to the next control, which must show that it has the focus; its name."""
    page.keyboard.press("Tab")
    name, outline = page.evaluate("""() => {
        const { activeElement: it } = document;
        return [it.ariaLabel || it.id || it.textContent.trim(), getComputedStyle(it).outlineStyle, it.tagName];
    }""")[:2]
    is_box = page.evaluate("document.activeElement.matches('body, #input')")  # the box shows it on its frame
    assert outline != "none" or is_box, name
    return name


@pytest.mark.slow
def test_events_arrive_whole_however_they_are_cut(site, open_page):
    page = open_page(site().url)
    first = '{"a": "\u00fc\u2713\U0001f985"}'
    text = f": hello\r\ndata: {first}\r\n\r\nevent: x\ndata:1\ndata: 2\n\n\n\ndata: [DONE]\n\ndata: cut"
    script = """async ([text, size]) => {
        const { events } = await import("/page/stream.js");
        const bytes = new TextEncoder().encode(text), found = [];
        const body = new ReadableStream({ start(controller) {
            for (let i = 0; i < bytes.length; i += size) controller.enqueue(bytes.slice(i, i + size));
            controller.close();
        } });
        for await (const data of events({ body })) found.push(data);
        return found;
    }"""
    for size in (1, 2, 3, 5, 1000):
        assert page.evaluate(script, [text, size]) == [first, "1\n2", "[DONE]"], size


@pytest.mark.slow
def test_a_new_chat_ends_the_old_answer(site, open_page):
    one = site(round_s=0.03)
    page = open_page(one.url)
    send(page)
    page.wait_for_selector(".growing")
    page.click("#new")
    assert eventually(lambda: one.engine.stats().num_running == 0)
    assert page.locator("#messages li").count() == 0 and not page.is_visible("#banner")


SAMPLES = {
    "everything": CONTENT + HOSTILE,
    "lists": "- a\n  - b\n    1. c\n\n  more\n- d\n\n7. e\n8. f\n\ntext\n- g\n\n---\n> q\n> - r\n\n~~~\nx\n~~~\nend",
    "inline": "a*b*c 2 * 3 * 4 snake_case_name **b *i* b** `` a`b `` _u_ ~~s~~ https://a.b/c_d_e. [x](https://y.z/(w)",
    "ticks": "`" * 3000 + "a" + "`" * 2999,
    "stars": "**a " * 3000 + "*_ " * 3000,
    "brackets": "[" * 6000 + "](" * 3000,
    "quotes": ">" * 3000,
    "spaces": "-" + " " * 6000 + "\n" + " " * 6000 + "x|" * 3000 + "\n" + "|-" * 3000,
}


@pytest.mark.slow
def test_markdown_is_the_same_in_one_piece_and_growing(site, open_page):
    """Also for texts that make careless patterns take for ever."""
    page = open_page(site().url)
    script = """async ([text, steps]) => {
        const { Markdown } = await import("/page/read/markdown.js");
        const [whole, growing] = [document.createElement("div"), document.createElement("div")];
        new Markdown(whole).set(text);
        const view = new Markdown(growing);
        for (let n = 1; n <= steps; n++) view.set(text.slice(0, Math.ceil((text.length * n) / steps)));
        return [whole.innerHTML, growing.innerHTML];
    }"""
    for name, text in SAMPLES.items():
        whole, growing = page.evaluate(script, [text, min(len(text), 300 if len(text) < 2000 else 4)])
        assert whole == growing, name
        assert not re.search("<(img|script|iframe|u|b|i)[ >]", whole)
    whole, _ = page.evaluate(script, [SAMPLES["lists"], 1])
    assert (
        whole
        == (
            '<ul><li><p>a</p><ul><li><p>b</p><ol start="1"><li><p>c</p></li></ol></li></ul><p>more</p></li>'
            "<li><p>d</p></li></ul>"
            '<ol start="7"><li><p>e</p></li><li><p>f</p></li></ol><p>text</p><ul><li><p>g</p></li></ul><hr>'
        )
        + whole[whole.index("<blockquote>") :]
    )
    inline, _ = page.evaluate(script, [SAMPLES["inline"], 1])
    assert inline.startswith(
        "<p>a*b*c 2 * 3 * 4 snake_case_name <strong>b <em>i</em> b</strong> <code>a`b</code> <em>u</em> <s>s</s> "
        '<a href="https://a.b/c_d_e" '
    )


@pytest.mark.slow
def test_what_is_simulated_says_so(site, open_page):
    page, name = open_page(site(simulated=True).url), "gpt-oss-20b (SIMULATED: random weights, or none)"
    expect(page.locator("#model")).to_have_text(name)
    assert page.title() == f"{name} · eyas"
