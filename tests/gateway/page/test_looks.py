"""How the page looks: phone, dark and light, contrast of its colours, and what is in sight while texts grow."""

import json
import re
from importlib.resources import files

import pytest
from playwright.sync_api import expect
from tests.gateway.page.test_chat_page import answered, send
from tests.gateway.page.test_live_view import load
from tests.gateway.support.browser import CONTENT, QUESTION, REASONING, STREAM, harmony

STYLE = (files("eyas.gateway.page") / "static" / "style.css").read_text()
PHONE = {"viewport": {"width": 360, "height": 740}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}


@pytest.mark.slow
def test_on_a_phone(site, open_page, shot):
    one = site()
    page = open_page(one.url, **PHONE)
    shot(page, "phone-empty")
    page.tap("#input")
    page.fill("#input", QUESTION)
    page.tap("#send")
    page.wait_for_selector(".stats")
    shot(page, "phone-chat")
    for view in ("chat", "live"):
        page.tap(f"[data-show={view}]")
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        sizes = page.evaluate("""() => [...document.querySelectorAll("header button, #send")]
            .filter((it) => it.offsetParent).map((it) => Math.min(it.offsetWidth, it.offsetHeight))""")
        assert min(sizes) >= 32  # a finger finds them
    with load(one.url, 8):
        expect(page.locator(".card")).to_have_count(8)
        page.wait_for_timeout(600)
        shot(page, "phone-live")
    wide = page.evaluate("""() => [...document.querySelectorAll("#live *")]
        .filter((it) => it.getBoundingClientRect().right > 361 && !it.closest(".tokens"))
        .map((it) => it.outerHTML.slice(0, 80))""")
    assert wide == []
    page.tap("#open-settings")
    shot(page, "phone-settings")


@pytest.mark.slow
def test_colours_follow_the_system_or_the_button(site, open_page):
    page = open_page(site().url, color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(background)
    assert dark != light
    page.click("#theme")
    page.click("#theme")
    assert page.evaluate(background) == dark and page.get_attribute("#theme", "aria-label") == "Colours: dark"
    page.reload()
    assert page.evaluate(background) == dark


@pytest.mark.slow
def test_nothing_moves_for_who_wants_it_still(site, open_page):
    one = site(round_s=0.5)
    for motion, expected in (("reduce", "none"), ("no-preference", "blink")):
        page = open_page(one.url, reduced_motion=motion)
        page.fill("#input", QUESTION)
        page.press("#input", "Enter")
        waiting = page.wait_for_selector(".wait")
        assert waiting.evaluate("(it) => getComputedStyle(it, '::after').animationName") == expected
        page.press("#input", "Escape")


@pytest.mark.slow
def test_the_picture_stands_still_while_an_answer_grows(site, open_page):
    """What is above the growing end keeps its place, and the layout shifts by nothing that Chromium counts."""
    page = open_page(site(round_s=0.01).url)
    page.evaluate("""() => {
        window.shifts = 0;
        new PerformanceObserver((list) => list.getEntries().forEach((one) => (window.shifts += one.value)))
            .observe({ type: "layout-shift", buffered: false });
    }""")
    page.fill("#input", QUESTION)
    page.press("#input", "Enter")
    page.wait_for_selector(".reasoning")
    top = page.locator(".reasoning").bounding_box()["y"] + page.evaluate("document.querySelector('#log').scrollTop")
    page.wait_for_selector(".stats")
    end = page.locator(".reasoning").bounding_box()["y"] + page.evaluate("document.querySelector('#log').scrollTop")
    assert top == end
    assert page.evaluate("window.shifts") < 0.02


BELOW = """() => {
    const { scrollHeight, scrollTop, clientHeight } = document.querySelector("#log");
    return scrollHeight - scrollTop - clientHeight;
}"""  # pixels of the conversation below what is in sight
TOP = "document.querySelector('#log').scrollTop"
SENTENCES = "".join(f"Sentence {n} of {'many ' * (n % 7)}words. " for n in range(1200))


@pytest.mark.slow
def test_a_conversation_is_opened_at_its_end(site, open_page):
    messages, parent = {}, None
    for n in range(30):
        for role in ("user", "assistant"):
            content = CONTENT * (1 + n % 4)
            messages[f"{role}{n}"] = {"role": role, "content": content, "parent": parent, "at": len(messages)}
            parent = f"{role}{n}"
    whole = {"format": "eyas.conversations", "version": 1, "conversations": [{"messages": messages, "leaf": parent}]}
    page = open_page(site().url)
    file = {"name": "a.json", "mimeType": "application/json", "buffer": json.dumps(whole).encode()}
    page.set_input_files("#library input[type=file]", [file])
    for _ in range(2):
        expect(page.locator(".assistant")).to_have_count(30)
        page.wait_for_timeout(500)
        assert page.evaluate(BELOW) < 2 and not page.is_visible("#latest")
        page.reload()


@pytest.mark.slow
@pytest.mark.parametrize("text", [SENTENCES, CONTENT * 50], ids=["one paragraph", "prose"])
def test_a_growing_answer_is_followed_until_a_person_scrolls(site, open_page, text):
    page = open_page(site().url)
    answered(page)
    page.evaluate(STREAM, [text, 12_000])
    send(page)
    page.wait_for_selector(".growing")
    assert page.is_visible(".assistant .actions >> text=Copy") and not page.is_visible(".user .actions >> text=Edit")
    for _ in range(6):
        page.wait_for_timeout(200)
        assert page.evaluate(BELOW) < 2
    page.hover("#log")
    page.mouse.wheel(0, -20)
    expect(page.locator("#latest")).to_be_visible()
    top = page.evaluate(TOP)
    page.wait_for_timeout(500)
    assert page.evaluate(TOP) == top
    page.click("#latest")
    expect(page.locator("#status")).to_contain_text("Answer complete")
    page.wait_for_timeout(200)
    assert page.evaluate(BELOW) < 2


@pytest.mark.slow
def test_a_place_is_kept(site, open_page, codec):
    """Thoughts that are opened at the end, the message box of several lines, another view and back."""
    page = open_page(site(lambda request, choice: harmony(codec, "Yes. " * 200, REASONING * 9)).url)
    for _ in range(2):
        answered(page)
    summary = page.locator(".reasoning summary").last
    place = summary.bounding_box()
    summary.click()
    page.wait_for_timeout(300)
    assert summary.bounding_box() == place
    page.click("#latest")
    page.fill("#input", "line\n" * 8)
    page.wait_for_timeout(300)
    assert page.evaluate(BELOW) < 2
    page.hover("#log")
    page.mouse.wheel(0, -300)
    expect(page.locator("#latest")).to_be_visible()
    top = page.evaluate(TOP)
    page.click("[data-show=live]")
    page.click("[data-show=chat]")
    page.wait_for_timeout(300)
    assert page.evaluate(TOP) == top


@pytest.mark.slow
def test_escape_closes_the_list_and_stops_no_answer(site, open_page):
    page = open_page(site(round_s=0.2).url, viewport={"width": 700, "height": 700})
    send(page)
    page.wait_for_selector("[aria-busy=true]")
    page.click("#open-library")
    page.keyboard.press("Escape")
    expect(page.locator("#library")).to_be_hidden()
    page.wait_for_timeout(300)
    assert page.get_attribute("#log", "aria-busy") == "true"
    page.keyboard.press("Escape")
    expect(page.locator("#log")).to_have_attribute("aria-busy", "false")


READ = """async (text) => {
    const { Markdown } = await import("/page/read/markdown.js");
    const element = document.createElement("div");
    element.className = "text";
    document.querySelector("#messages").appendChild(document.createElement("li")).append(element);
    new Markdown(element).set(text);
}"""


@pytest.mark.slow
def test_a_long_paragraph_has_no_seams(site, open_page):
    """It is read in pieces, and takes as many lines as the same text in one."""
    page = open_page(site().url)
    page.evaluate(READ, SENTENCES[:12_000])
    pieces, height = page.evaluate("""() => {
        const paragraph = document.querySelector(".text p");
        return [paragraph.childElementCount, paragraph.offsetHeight];
    }""")
    whole = page.evaluate("""() => {
        const paragraph = document.querySelector(".text p");
        paragraph.textContent = paragraph.textContent;
        return paragraph.offsetHeight;
    }""")
    assert pieces > 3 and height == whole


@pytest.mark.slow
def test_lists_and_headings(site, open_page):
    page = open_page(site().url)
    page.evaluate(READ, "# a\n\n## b\n\n### c\n\n998. x\n999. y\n1000. z\n\ntext\n\n- a\n  - b\n\ntext\n\n- [ ] c")
    style = "(all, name) => all.map((it) => getComputedStyle(it)[name])"
    sizes = [
        float(one.removesuffix("px")) for one in page.eval_on_selector_all(".text :is(h3, h4, h5)", style, "fontSize")
    ]
    assert sizes == sorted(set(sizes), reverse=True) and len(sizes) == 3
    assert page.eval_on_selector_all(".text ul", style, "listStyleType") == ["disc", "circle", "none"]
    room, needed = page.evaluate("""() => {
        const list = document.querySelector(".text ol");
        const number = list.appendChild(document.createElement("span"));
        number.textContent = "1000.";
        return [parseFloat(getComputedStyle(list).paddingLeft), number.offsetWidth];
    }""")
    assert room >= needed


@pytest.mark.slow
def test_a_text_runs_as_its_script_does(site, open_page):
    page = open_page(site().url)
    page.evaluate(READ, "left to right\n\n\u05e9\u05dc\u05d5\u05dd")
    gaps = page.eval_on_selector_all(
        ".text p",
        """(all) => all.map((it) => {
        const range = document.createRange();
        range.selectNodeContents(it);
        const [text, box] = [range.getBoundingClientRect(), it.getBoundingClientRect()];
        return [text.left - box.left, box.right - text.right];
    })""",
    )
    assert gaps[0][0] == 0 < gaps[0][1] and gaps[1][1] == 0 < gaps[1][0]


@pytest.mark.slow
def test_nothing_in_the_settings_touches_its_neighbour(site, open_page):
    page = open_page(site().url)
    page.click("#open-settings")
    page.evaluate("document.querySelectorAll('#settings details').forEach((it) => (it.open = true))")
    gaps = page.evaluate("""() => [...document.querySelectorAll("#settings details")].flatMap((one) => {
        const boxes = [...one.children].map((it) => it.getBoundingClientRect()).filter(({ height }) => height);
        return boxes.slice(1).map(({ top }, n) => top - boxes[n].bottom);
    })""")
    assert len(gaps) >= 6 and min(gaps) > 8


def luminance(colour: str) -> float:
    digits = colour.removeprefix("#")
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """WCAG 2's ratio."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


COLOURS = {name: pair.split(", ") for name, pair in re.findall(r"--([\w-]+): light-dark\(([^)]+)\);", STYLE)}
TEXTS = [
    *[("ink", ground) for ground in ("bg", "surface", "raised")],
    *[("muted", ground) for ground in ("bg", "surface", "raised")],
    *[("accepted", "accepted-bg"), ("rejected", "surface"), ("rejected", "bad"), ("ink", "bad"), ("good", "surface")],
    *[(kind, "surface") for kind in ("word", "string", "value", "name")],
    *[("accent", "bg"), ("on-accent", "accent"), *(("on-seat", f"seat-{number}") for number in range(8))],
]


@pytest.mark.parametrize(("text", "ground"), TEXTS)
def test_texts_have_the_contrast_that_wcag_asks_for(text, ground):
    for mode in (0, 1):
        assert contrast(COLOURS[text][mode], COLOURS[ground][mode]) >= 4.5
