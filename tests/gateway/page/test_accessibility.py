"""axe-core over the page: dark and light, wide and narrow, with lists, menus, dialogs, errors and a running engine."""

from importlib.resources import files

import pytest
from playwright.sync_api import expect
from tests.gateway.page.test_chat_page import answered
from tests.gateway.page.test_live_view import load
from tests.gateway.support.browser import CONTENT, REASONING, harmony

axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
RUN = """async () => {
    const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa"];
    const { violations, passes } = await axe.run(document, { runOnly: { type: "tag", values: tags } });
    const told = violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target).join(", ")}`);
    return [told, passes.length];
}"""
RICH = CONTENT + (
    "\n\n- [x] done\n- [ ] to do\n\n$$\\sum_{n=0}^N x^n$$\n\n> quoted\n\n```diff\n+ a\n- b\n@@ c\n```\n\n"
    '```js\n// note\nconst a = "b" + f(12);\n```\n'
)


@pytest.fixture
def look(site, open_page, codec):
    """A page with an answer that has everything, and `check(state)` for it."""
    one = site(lambda request, choice: harmony(codec, RICH, REASONING), round_s=0.004)
    page = open_page(one.url)
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))

    def check(state: str) -> None:
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            told, num_passed = page.evaluate(RUN)
            assert (told, num_passed > 10) == ([], True), f"{state}, {scheme}"

    return one, page, check


@pytest.mark.slow
def test_axe_finds_nothing(look):
    one, page, check = look
    check("empty")
    answered(page)
    page.click(".reasoning summary")
    page.evaluate(
        "document.querySelectorAll('#messages > li').forEach((it) => (it.style.contentVisibility = 'visible'))"
    )
    check("an answer")
    page.click("text=Regenerate")
    expect(page.locator(".versions")).to_have_count(1)
    file = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"one two three"}
    page.set_input_files("#dock input[type=file]", [file, {"name": "a.bin", "mimeType": "x/y", "buffer": b"\xff\xfe"}])
    expect(page.locator("#banner")).to_contain_text("is not text")
    page.click(".talks .icon")
    check("versions, a file, a fault, a menu")
    page.click(".menu >> text=Rename")
    check("renaming")
    page.keyboard.press("Escape")
    page.click("text=Delete all")
    check("a question")
    page.click("dialog.sure >> text=Cancel")
    page.click("#open-settings")
    page.evaluate("document.querySelectorAll('#settings details').forEach((it) => (it.open = true))")
    check("settings")
    page.click("#settings .primary")
    page.click("[data-show=live]")
    with load(one.url, 3):
        expect(page.locator(".card")).not_to_have_count(0)
        page.click("[aria-label='Step before']")
        check("live")
    page.click("[data-show=chat]")
    page.set_viewport_size({"width": 360, "height": 740})
    check("narrow")
    page.click("#open-library")
    check("narrow, list")
