"""What one small request to `/v1/responses` may cost: references, items, pages and ids are bounded and counted."""

import json
import tracemalloc

import httpx
import pytest
from tests.gateway.support.gateway import reply_ids
from tests.gateway.support.responses import Script, post

from eyas.gateway.http.workers import LARGE, Workers
from eyas.gateway.openai.responses import prompt
from eyas.gateway.openai.responses.body import MAX_ITEMS
from eyas.gateway.openai.responses.store import Kept, ResponseStore


def user(text, **fields):
    return {"type": "message", "role": "user", "content": text, **fields}


def refer(*ids):
    return [{"type": "item_reference", "id": item_id} for item_id in ids]


@pytest.fixture
def sizes(monkeypatch):
    """Of what the routes do in a thread if it is large."""
    seen, run = [], Workers.run
    monkeypatch.setattr(Workers, "run", lambda self, http, size, work: seen.append(size) or run(self, http, size, work))
    return seen


def test_a_response_is_read_once_for_all_its_items(play, monkeypatch, sizes):
    server, _ = play()
    first = post(server, input=[user("x" * 40, id=f"msg_{i}") for i in range(20)]).json()
    other = post(server, input=[user("H", id="msg_b"), user("i", id="msg_7")]).json()  # has the later one of this id
    read, stored_items = [], prompt.stored_items
    monkeypatch.setattr(prompt, "stored_items", lambda kept: read.append(kept.response_id) or stored_items(kept))
    sizes.clear()
    answer = post(server, input=refer("msg_1", "msg_7", "msg_3", "msg_b", first["output"][0]["id"]))
    assert answer.status_code == 200 and sorted(read) == sorted([first["id"], other["id"]])
    listed = httpx.get(f"{server.url}/v1/responses/{answer.json()['id']}/input_items?order=asc").json()["data"]
    assert [item["id"] for item in listed[:4]] == ["msg_1", "msg_7", "msg_3", "msg_b"]
    assert [item["content"][0]["text"] for item in listed[:4]] == ["x" * 40, "i", "x" * 40, "H"]
    assert listed[4] == first["output"][0]
    assert sizes[1] - sizes[0] > 20 * 40 + len(json.dumps(first["output"])) - 100  # what is read counts as work


def test_an_item_is_referred_to_once(play):
    server, _ = play()
    post(server, input=[user("Hi", id="msg_1")])
    error = post(server, input=refer("msg_1", "msg_1")).json()["error"]
    assert error["param"] == "input[1].id" and "twice" in error["message"]


def test_what_is_referred_to_may_be_as_much_as_a_body(serve, codec):
    server = serve(Script(reply_ids(codec)), gateway={"max_body": 4096}, context=2000)
    for number in range(3):
        assert post(server, input=[user("x" * 500, id=f"msg_{number}")], max_output_tokens=1).status_code == 200
    error = post(server, input=refer("msg_0", "msg_1", "msg_2")).json()["error"]
    assert error["param"] == "input" and "the limit is 4096" in error["message"]
    assert post(server, input=refer("msg_0"), max_output_tokens=1).status_code == 200


def test_number_of_items_is_limited(play):
    server, _ = play()
    error = post(server, input=[user("")] * (MAX_ITEMS + 1)).json()["error"]
    assert error["param"] == "input" and str(MAX_ITEMS) in error["message"]
    assert "context" in post(server, input=[user("")] * MAX_ITEMS).json()["error"]["message"]


def test_a_page_of_many_items_is_made_in_a_thread(play, sizes):
    server, _ = play()
    response = post(server, input=[user("x") for _ in range(100)]).json()
    del sizes[:]
    page = httpx.get(f"{server.url}/v1/responses/{response['id']}/input_items?limit=2").json()
    assert len(page["data"]) == 2 and page["has_more"]
    assert len(sizes) == 1 and sizes[0] > LARGE


@pytest.mark.parametrize(("num_ids", "num_chars"), [(1, 40), (1000, 40), (6000, 128), (10_000, 128), (40_000, 100)])
def test_ids_count_with_what_they_take(num_ids, num_chars):
    store = ResponseStore()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        ids = tuple(f"{number:0{num_chars}}" for number in range(num_ids))
        kept = Kept(response_id="r", owner=b"o", status="completed", input_items=b"", response=b"", item_ids=ids)
        store.put(kept)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken - 2000 < store.num_bytes < 4 * taken  # 2000: what is there once for the store
