"""The real client through LiteLLM, which translates for our chat endpoint, as guides do with OpenAI-only servers."""

import pytest
from tests.clients.support import litellm
from tests.clients.support.box import KEY, NAME
from tests.clients.support.scripted import analysis, final
from tests.clients.support.steps import log_lines, logged


@pytest.mark.timeout(900)
def test_an_answer_by_way_of_litellm(box, new_client, tmp_path):
    client = new_client()
    answer = [analysis("Done."), final("It came by way of a proxy.")]
    box.port.script = lambda body: answer if body["messages"][-1]["role"] == "tool" else [logged(1)]
    with litellm.running(litellm.installed(), tmp_path, box.url, NAME, KEY) as (address, key):
        settings = box.settings(ANTHROPIC_BASE_URL=address, ANTHROPIC_AUTH_TOKEN=key)
        run = client.run(settings, "Go")
    assert run.result["result"] == "It came by way of a proxy.", run.out
    assert log_lines(client.project) == ["step 1"]
    asked = box.recorder.on("/v1/chat/completions")
    assert [exchange.status for exchange in asked] == [200, 200]
