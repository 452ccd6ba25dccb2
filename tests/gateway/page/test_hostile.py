"""Hostile texts as questions, answers, thoughts, calls, names of files and in files: nothing runs, nothing is asked."""

import json

import pytest
from playwright.sync_api import expect
from tests.gateway.support.hostile import CORPUS, HOST

SHOW = """async ([texts, names]) => {
    const { Markdown } = await import("/page/read/markdown.js");
    const { fromJson, toJson, toMarkdown, fromMarkdown } = await import("/page/keep/exchange.js");
    await (await import("/page/read/maths.js")).load();
    const box = document.createElement("div");
    document.body.append(box);
    for (const text of texts) {
        const element = document.createElement("div");
        box.append(element);
        const view = new Markdown(element);
        for (const end of [Math.ceil(text.length / 3), text.length]) view.set(text.slice(0, end));
    }
    await new Promise((done) => setTimeout(done, 200));
    const allowed = new Set(names.split(" "));
    const found = [];
    for (const one of box.querySelectorAll("*")) {
        if (!allowed.has(one.localName)) found.push(one.localName);
        for (const { name, value } of one.attributes) {
            const isStyle = name === "style" && !one.closest("math, table");
            if (name.startsWith("on") || isStyle || name === "src") found.push(`${one.localName} ${name}`);
            if (name === "href" && !/^(https?:|mailto:)/.test(one.href)) found.push(value);
        }
    }
    box.remove();
    return found;
}"""
ALLOWED = (
    "div span p a code pre button h3 h4 h5 h6 ul ol li blockquote table thead tbody tr th td hr br em strong s input "
    "math semantics annotation mrow mi mo mn mtext msup msub msubsup mfrac mtable mtr mtd mspace mover munder "
    "munderover msqrt mroot"
)


def test_hostile_answers_become_text(site, open_page):
    assert len(CORPUS) >= 200 and len(set(CORPUS)) == len(CORPUS)
    page = open_page(site().url)
    assert page.evaluate(SHOW, [CORPUS, ALLOWED]) == []
    assert page.evaluate("window.hacked") is None


def hostile_file() -> str:
    """A conversation with each text as title, question, answer, thoughts, call, result and name of a file."""
    messages, parent = {}, None
    for number, text in enumerate(CORPUS):
        for role in ("user", "assistant", "tool"):
            one = f"{role}{number}"
            messages[one] = {"parent": parent, "at": len(messages), "role": role, "content": text}
            parent = one
        messages[f"user{number}"]["files"] = [{"name": text, "text": text, "tokens": 1}]
        messages[f"assistant{number}"] |= {
            "reasoning": text,
            "finish": "stop",
            "note": text,
            "by": [text],
            "__proto__": {"hacked": 1},
            "calls": [{"id": text, "name": text, "arguments": text}],
        }
    settings = {"system": CORPUS[0], "onclick": CORPUS[1], "temperature": CORPUS[2]}
    talk = {"title": CORPUS[3], "settings": settings, "messages": messages, "leaf": parent}
    return json.dumps({"format": "eyas.conversations", "version": 1, "conversations": [talk]})


@pytest.mark.slow
def test_a_hostile_file_is_imported_as_text(site, open_page):
    page = open_page(site().url)
    file = {"name": "<img src=x onerror=window.hacked=1>.json", "mimeType": "application/json"}
    page.set_input_files("#library input[type=file]", [file | {"buffer": hostile_file().encode()}])
    expect(page.locator(".assistant")).to_have_count(len(CORPUS))
    for summary in page.locator(".file summary").all()[:3]:
        summary.click()
    page.evaluate(
        "document.querySelectorAll('#messages > li').forEach((it) => (it.style.contentVisibility = 'visible'))"
    )
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked ?? {}.hacked") is None
    names = page.evaluate("[...new Set([...document.querySelectorAll('#messages *')].map((it) => it.localName))]")
    assert not {"script", "img", "iframe", "svg", "style", "link", "form", "object", "video"} & set(names)
    assert page.locator(".talk").inner_text() == CORPUS[3]
    page.click("#open-settings")
    assert page.input_value("[name=system]") == CORPUS[0]
    assert HOST not in page.evaluate("performance.getEntriesByType('resource').map((it) => it.name).join()")
    page.click("text=Done")


@pytest.mark.slow
def test_files_of_strangers_are_checked(site, open_page):
    page = open_page(site().url)
    script = """async (text) => {
        const { read } = await import("/page/keep/exchange.js");
        const told = (error) => `${error.constructor.name}: ${error.message}`;
        return read(new File([text], "a.json")).then((talks) => `${talks.length}`, told);
    }"""

    def whole(messages, **more) -> str:
        talk = {"messages": messages} | more
        return json.dumps({"format": "eyas.conversations", "version": 1, "conversations": [talk]})

    good = {"a": {"role": "user", "content": "x"}, "b": {"role": "assistant", "content": "y", "parent": "a"}}
    assert page.evaluate(script, whole(good)) == "1"
    wrong = {
        "{": "is not JSON",
        "[]": "'format' must be",
        json.dumps({"format": "eyas.conversations", "version": 2}): "version 2 is not known",
        json.dumps({"format": "eyas.conversations", "version": 1, "conversations": {}}): "must be a list",
        whole({}): "1 to 20000 messages",
        whole([]): "an object 'messages'",
        whole(good, title=3): "conversations[0].title must be a text",
        whole(good, settings={"system": {}}): "settings.system must be a text",
        whole({"a": {"role": "system", "content": "x"}}): "role must be user, assistant or tool",
        whole({"a": {"role": "user"}}): "content is missing",
        whole({"a": {"role": "user", "content": ["x"]}}): "content must be a text",
        whole({"a": {"role": "user", "content": "x", "parent": "z"}}): "parent is no message",
        whole({"a": {"role": "user", "content": "x", "parent": "a"}}): "follows itself",
        whole({"a": {"role": "user", "content": "x", "files": [{"name": 1}]}}): "files[0].name must be a text",
        "no heading": "no line '## You'",
    }
    for text, reason in wrong.items():
        answer = page.evaluate(script, text)
        assert answer.startswith("BadFile: 'a.json' was not imported: ") and reason in answer, answer
    large = "read(new File([new Uint8Array(20 * 2 ** 20 + 1)], 'b.json')).catch((error) => error.message)"
    answer = page.evaluate(f'import("/page/keep/exchange.js").then(({{ read }}) => {large})')
    assert answer == "'b.json' is larger than 20 MiB."
