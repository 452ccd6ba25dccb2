"""What goes with a question: files, a schema, tools; Copy over plain http; a server that is killed inside an answer."""

import json
import socket

import pytest
from playwright.sync_api import expect
from tests.gateway.page.test_chat_page import answered, send
from tests.gateway.support.browser import harmony
from tests.support.serving import served

pytestmark = pytest.mark.slow
REFUSED, LOST = "Failed to load resource", "ERR_"


def test_files_go_with_the_question_and_are_counted(site, open_page, codec):
    prompts = []

    def reply(request, choice):
        prompts.append(b"".join(map(codec.token_bytes, request.prompt_ids)).decode())
        return harmony(codec, "Seen.")

    page = open_page(site(reply).url)
    text = "alpha ```beta``` gamma\n"
    files = [
        {"name": "notes.txt", "mimeType": "text/plain", "buffer": text.encode()},
        {"name": "photo.png", "mimeType": "image/png", "buffer": b"\x89PNG\xff\xfe"},
    ]
    page.set_input_files("#dock input[type=file]", files)
    expect(page.locator("#banner")).to_contain_text("'photo.png' is not text in UTF-8")
    count = len(codec.encode(text))
    expect(page.locator(".chip")).to_have_text(f"notes.txt{count} tokens")
    expect(page.locator("#room")).to_contain_text("of 4,096 tokens of context")
    answered(page, "What is in it?")
    assert "File: notes.txt\n````\nalpha ```beta``` gamma\n````\n\nWhat is in it?" in prompts[0]
    assert page.locator(".chip").count() == 0
    page.click(".file summary")
    assert page.inner_text(".file pre") == text.rstrip("\n") or page.inner_text(".file pre") == text
    large = [{"name": "large.txt", "mimeType": "text/plain", "buffer": b"x" * (2 * 2**20 + 1)}]
    page.set_input_files("#dock input[type=file]", large)
    expect(page.locator("#banner")).to_contain_text("'large.txt' is larger than 2.0 MiB")


GIVE = """([kind, name, type, text]) => {
    const data = new DataTransfer();
    data.items.add(new File(["abc"], name, { type }));
    if (text) data.setData("text/plain", text);
    const options = { bubbles: true, cancelable: true };
    const event = kind === "drop"
        ? new DragEvent(kind, { ...options, dataTransfer: data })
        : new ClipboardEvent(kind, { ...options, clipboardData: data });
    return document.querySelector(kind === "drop" ? "header" : "#input").dispatchEvent(event);
}"""  # returns whether the browser does what it likes with it: opens the file, pastes the text


def test_files_are_dropped_anywhere_and_pasted_but_a_text_with_its_picture_is_a_text(site, open_page):
    page = open_page(site().url)
    assert not page.evaluate(GIVE, ["drop", "a.txt", "text/plain", ""])
    assert not page.evaluate(GIVE, ["paste", "b.txt", "text/plain", "b.txt"])
    expect(page.locator(".chip")).to_have_count(2)
    assert page.evaluate(GIVE, ["paste", "cells.png", "image/png", "1\t2"])
    assert page.locator(".chip").count() == 2 and not page.is_visible("#banner")


def test_schema_and_tools_are_in_the_body(site, open_page):
    page = open_page(site().url)
    bodies = []
    page.on("request", lambda one: bodies.append(one.post_data_json) if one.url.endswith("completions") else None)
    page.click("#open-settings")
    page.click("summary:text('Tools')")
    page.click("summary:text('Form of the answer')")
    page.fill("[name=schema]", "[1]")
    page.click("#settings .primary")
    assert page.inner_text("#schema-error") == "This must be an object: { … }."
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    page.fill("[name=schema]", json.dumps(schema))
    page.fill("[name=tools]", json.dumps(tools))
    page.select_option("[name=tool_choice]", "none")
    page.click("#settings .primary")
    answered(page)
    assert bodies[0]["response_format"] == {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    assert (bodies[0]["tools"], bodies[0]["tool_choice"]) == (tools, "none")


def test_copy_works_where_the_browser_has_no_clipboard(site, open_page):
    page = open_page(site().url)
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")  # as over plain http
    page.evaluate("document.addEventListener('copy', () => (window.copied = document.activeElement.value))")
    answered(page)
    page.click(".code-head button")
    expect(page.locator(".code-head button")).to_have_text("Copied")
    assert page.evaluate("window.copied").startswith("def accepted(drafts, drawn):\n    return next(")
    page.click(".assistant .actions >> text=Copy")
    assert page.evaluate("window.copied").startswith("A small **draft head** guesses")


def test_a_server_that_is_killed_inside_an_answer_and_comes_back(open_page):
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    arguments = ("--port", str(port))
    with served("null:100", *arguments) as server:
        page = open_page(server.url, expected_errors=[REFUSED, LOST])
        send(page, "Say much")
        expect(page.locator(".growing")).to_contain_text("fox")
        server.process.kill()
        expect(page.locator(".assistant .note")).to_have_text("The answer was cut; ask again.")
        expect(page.locator("#banner")).to_contain_text("Waiting for the server")
    with served("null:5", *arguments):
        expect(page.locator("#banner")).to_contain_text(
            "The server is back. The answer was cut; ask again.", timeout=30_000
        )
        page.click("#banner button")
        expect(page.locator(".assistant .stats")).to_have_count(1, timeout=30_000)
        expect(page.locator(".versions")).to_contain_text("2 of 2")
        page.close()
