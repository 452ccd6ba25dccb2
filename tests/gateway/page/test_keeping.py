"""Conversations that the browser keeps: the list, branches, files, two tabs, a store that is full or forbidden."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import expect
from tests.gateway.page.test_chat_page import answered, send
from tests.gateway.support.browser import harmony

FORBIDDEN = "Object.defineProperty(window, 'indexedDB', { get() { throw new DOMException('no', 'SecurityError') } });"
NO_STORE = FORBIDDEN + (
    "for (const name of ['localStorage', 'sessionStorage'])"
    " Object.defineProperty(window, name, { get() { throw new DOMException('no', 'SecurityError') } });"
)


@pytest.fixture
def counting(site, codec):
    """A server that counts its answers."""
    asked = []

    def reply(request, choice):
        asked.append(request)
        return harmony(codec, f"Answer {len(asked)}.")

    return site(reply)


def titles(page) -> list[str]:
    return page.locator(".talk").all_inner_texts()


def exported(page, button) -> str:
    with page.expect_download() as download:
        button.click()
    return Path(download.value.path()).read_text(encoding="utf-8")


def more(page, title):
    page.click(f"[aria-label='More about {title}']")
    return page.locator(".menu")


@pytest.mark.slow
def test_the_list_keeps_finds_renames_and_deletes(counting, open_page):
    page = open_page(counting.url)
    for text in ("Red apples", "Green pears", "Blue plums"):
        page.click("#new")
        answered(page, text)
    expect(page.locator(".talk")).to_have_text(["Blue plums", "Green pears", "Red apples"])
    page.reload()
    expect(page.locator(".talk")).to_have_count(3)
    expect(page.locator(".bubble")).to_have_text("Blue plums")
    page.click(".talk >> text=Red apples")
    expect(page.locator(".bubble")).to_have_text("Red apples")
    assert page.locator(".talk[aria-current]").inner_text() == "Red apples"
    page.fill("#library input[type=search]", "ANSWER 2")
    expect(page.locator(".talk")).to_have_text(["Green pears"])
    page.fill("#library input[type=search]", "nowhere")
    expect(page.locator("#library > .note")).to_have_text("No conversation has these words.")
    page.fill("#library input[type=search]", "")
    expect(page.locator(".talk")).to_have_count(3)
    more(page, "Green pears").get_by_text("Rename").click()
    page.fill("[aria-label=Title]", "Fruit")
    page.press("[aria-label=Title]", "Enter")
    expect(page.locator(".talk >> text=Fruit")).to_be_visible()
    more(page, "Fruit").get_by_text("Delete").click()
    page.click("dialog.sure .primary")
    expect(page.locator(".talk")).to_have_count(2)
    assert page.inner_text(".bubble") == "Red apples"
    page.click("text=Delete all")
    page.click("dialog.sure >> text=Cancel")
    page.click("text=Delete all")
    page.click("dialog.sure .primary")
    expect(page.locator(".talk")).to_have_count(0)
    page.reload()
    expect(page.locator("#library > .note")).to_have_text("Your conversations will be listed here.")
    assert page.locator("#messages li").count() == 0


def test_two_tabs_that_change_one_conversation_lose_nothing(counting, open_page):
    """Title, settings and branch: the newer of each wins, whichever tab writes last."""
    page = open_page(counting.url)
    found = page.evaluate("""async () => {
        const { Store } = await import("/page/keep/store.js");
        const { add, newTalk, path } = await import("/page/keep/tree.js");
        const store = new Store();
        const talk = newTalk();
        add(talk, { role: "user", content: "one" });
        const found = [];
        for (const order of [[0, 1, 2], [2, 1, 0], [1, 2, 0]]) {
            const tabs = [0, 1, 2].map(() => structuredClone({ ...talk, id: order.join("") }));
            Object.assign(tabs[0], { title: "named", titled: 5 });
            Object.assign(tabs[1], { settings: { system: "s" }, configured: 6, title: "named before", titled: 4 });
            add(tabs[2], { role: "assistant", content: "two", finish: "stop" });
            for (const n of order) await store.write(tabs[n]);
            const { title, settings, ...whole } = await store.read(order.join(""));
            found.push([title, settings.system, path(whole).map(({ content }) => content).join()]);
        }
        return found;
    }""")
    assert found == [["named", "s", "one,two"]] * 3


@pytest.mark.slow
def test_what_is_exported_comes_back(counting, open_page):
    page = open_page(counting.url)
    files = [{"name": "a.txt", "mimeType": "text/plain", "buffer": b"one ``` two\n"}]
    page.set_input_files("#dock input[type=file]", files)
    expect(page.locator(".chip")).to_contain_text("tokens")
    answered(page, "First\n## You\nindeed")
    page.click(".user >> text=Edit")
    page.fill("[aria-label='Edit your message']", "Second")
    page.press("[aria-label='Edit your message']", "Enter")
    expect(page.locator(".assistant .text")).to_have_text("Answer 2.")
    expect(page.locator(".assistant .stats")).to_have_count(1)
    title = titles(page)[0]
    menu = more(page, title)
    as_json, as_markdown = (exported(page, menu.get_by_text(name)) for name in ("JSON", "Markdown"))
    everything = exported(page, page.get_by_text("Export all"))
    assert json.loads(everything) == json.loads(as_json)
    assert (
        as_markdown == "# First ## You indeed\n\n## You\n\nFile: a.txt\n````\none ``` two\n````\n\nSecond\n\n"
        "## Model\n\nAnswer 2.\n"
    )
    page.click("text=Delete all")
    page.click("dialog.sure .primary")
    expect(page.locator(".talk")).to_have_count(0)
    as_file = {"name": "x.json", "mimeType": "application/json", "buffer": as_json.encode()}
    page.set_input_files("#library input[type=file]", [as_file])
    expect(page.locator(".bubble")).to_have_text("Second")
    page.click(".user [aria-label='Version before']")
    expect(page.locator(".bubble")).to_have_text("First\n## You\nindeed")
    expect(page.locator(".assistant .text")).to_have_text("Answer 1.")
    assert titles(page) == [title]
    more(page, title).get_by_text("Markdown").wait_for()
    first = exported(page, page.locator(".menu").get_by_text("Markdown"))
    assert "\\## You" in first
    page.set_input_files(
        "#library input[type=file]", [{"name": "x.md", "mimeType": "text/markdown", "buffer": first.encode()}]
    )
    expect(page.locator(".bubble")).to_contain_text("First\n## You\nindeed")
    bad = {"name": "bad.json", "mimeType": "application/json", "buffer": b'{"format": "other"}'}
    page.set_input_files("#library input[type=file]", [bad])
    expect(page.locator("#library .error")).to_contain_text("'bad.json' was not imported: 'format' must be")


@pytest.mark.slow
def test_two_tabs_agree(site, open_page, codec):
    one = site(lambda request, choice: harmony(codec, "word " * 120), round_s=0.1)
    page = open_page(one.url)
    other = page.context.new_page()
    other.goto(one.url)
    send(page, "From the first")
    other.click(".talk >> text=From the first")
    expect(other.locator(".assistant .note")).to_have_text("Being answered in another tab.")
    more(other, "From the first").get_by_text("Rename").click()
    other.fill("[aria-label=Title]", "Renamed")
    other.press("[aria-label=Title]", "Enter")
    expect(page.locator(".assistant .stats")).to_have_count(1)
    expect(other.locator(".assistant .text")).to_have_text(page.inner_text(".text"))
    expect(other.locator(".assistant .note")).to_have_count(0)
    for tab in (page, other):
        expect(tab.locator(".talk")).to_have_text("Renamed")
    other.fill("#input", "From the second")
    other.press("#input", "Enter")
    expect(other.locator(".assistant .stats")).to_have_count(2)
    expect(page.locator(".bubble")).to_have_text(["From the first", "From the second"])
    expect(page.locator(".assistant .stats")).to_have_count(2)
    other.click("text=Delete all")
    other.click("dialog.sure .primary")
    expect(page.locator("#banner")).to_contain_text("deleted in another tab")
    expect(page.locator(".talk")).to_have_count(0)
    assert page.locator("#messages li").count() == 0


@pytest.mark.slow
def test_an_answer_is_cut_by_loading_the_page_again(site, open_page):
    page = open_page(site(round_s=0.05).url)
    send(page)
    page.wait_for_selector(".growing")
    page.wait_for_timeout(1500)
    page.reload()
    expect(page.locator(".assistant .note")).to_have_text("The answer was cut; ask again.")
    assert page.inner_text(".text")
    page.click("button:text('Ask again')")
    page.wait_for_selector(".growing")
    assert page.locator(".assistant").count() == 1  # the one that was cut is another version
    page.press("#input", "Escape")


@pytest.mark.slow
@pytest.mark.parametrize("script", [FORBIDDEN, NO_STORE], ids=["no IndexedDB", "no store at all"])
def test_a_forbidden_store_is_said_and_the_chat_goes_on(counting, browser, script):
    context = browser.new_context()
    context.add_init_script(script)
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(counting.url)
    expect(page.locator("#store-fault")).to_contain_text("This browser keeps no conversations (SecurityError)")
    for text in ("One", "Two"):
        page.click("#new")
        answered(page, text)
    expect(page.locator(".talk")).to_have_text(["Two", "One"])
    page.click(".talk >> text=One")
    expect(page.locator(".bubble")).to_have_text("One")
    assert errors == []
    context.close()


@pytest.mark.slow
def test_a_full_store_is_said_and_the_chat_goes_on(counting, open_page):
    page = open_page(counting.url)
    answered(page, "Kept")
    expect(page.locator(".talk")).to_have_count(1)
    page.evaluate("""() => {
        const { put } = IDBObjectStore.prototype;
        IDBObjectStore.prototype.put = function (...values) {
            if (!window.isFull) return put.apply(this, values);
            throw new DOMException("no room", "QuotaExceededError");
        };
        window.isFull = true;
    }""")
    page.click("#new")
    answered(page, "Goes on")
    expect(page.locator("#store-fault")).to_contain_text("This browser's store is full")
    expect(page.locator(".talk")).to_have_text(["Goes on", "Kept"])
    page.click(".talk >> text=Kept")
    expect(page.locator(".bubble")).to_have_text("Kept")
    page.click(".talk >> text=Goes on")
    expect(page.locator(".bubble")).to_have_text("Goes on")
    page.evaluate("window.isFull = false")
    answered(page, "Room again")
    expect(page.locator("#store-fault")).to_be_hidden()
    page.reload()
    expect(page.locator(".bubble")).to_have_text(["Goes on", "Room again"])
