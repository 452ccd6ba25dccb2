"""`/v1/models` for the clients of both vendors."""

import httpx
import pytest


@pytest.fixture
def client(server):
    import anthropic

    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def test_both_clients_list_and_find_the_model_and_its_alias(server, client):
    import anthropic

    theirs, ours = client.models.list(limit=1000), server.client.models.list()
    assert [model.id for model in theirs] == [model.id for model in ours] == ["stub", "claude-stub"]
    assert theirs.data[0].max_input_tokens == 600 and theirs.data[0].type == "model"
    for name in ("stub", "claude-stub"):
        assert client.models.retrieve(name).id == server.client.models.retrieve(name).id == name
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("claude-other")


def test_what_is_listed_can_be_asked(server):
    for model in server.client.models.list():
        message = {"role": "user", "content": "Hi"}
        assert server.client.chat.completions.create(model=model.id, messages=[message]).model == "stub"


def test_a_model_that_is_called_claude_needs_no_alias(serve):
    server = serve(gateway={"served_name": "my-claude"})
    assert [model.id for model in server.client.models.list()] == ["my-claude"]


def test_pages(server, client):
    page = client.models.list(limit=1)
    assert (page.has_more, page.first_id, page.last_id) == (True, "stub", "stub")
    assert [model.id for model in page] == ["stub", "claude-stub"]  # follows the pages
    assert [model.id for model in client.models.list(after_id="stub").data] == ["claude-stub"]
    assert [model.id for model in client.models.list(before_id="claude-stub").data] == ["stub"]
    assert client.models.list(after_id="claude-stub").data == []
    for limit in ("0", "1001", "x", "-1", "", "9" * 5000):
        answer = httpx.get(f"{server.url}/v1/models", params={"limit": limit})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "limit"


@pytest.mark.parametrize("simulated", [False, True])
def test_what_is_simulated_says_so(serve, simulated):
    server = serve(simulated=simulated)
    for entry in httpx.get(f"{server.url}/v1/models").json()["data"]:
        assert entry.get("simulated", "").startswith("SIMULATED: random weights") == simulated
        assert entry["display_name"] == "stub" + " (SIMULATED)" * simulated
    assert httpx.get(f"{server.url}/ready").json()["simulated"] is simulated
    assert (
        f'eyas:simulated{{engine="0",model_name="stub"}} {float(simulated)}' in httpx.get(f"{server.url}/metrics").text
    )
