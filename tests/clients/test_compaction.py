"""A growing conversation: the client compacts it before the server refuses, in windows of 48K, 64K and 128K."""

import json

import pytest
from tests.clients.support.box import serving
from tests.clients.support.scripted import final
from tests.clients.support.steps import assert_asked_once, bash, log_lines, logged

from eyas.claude.settings import BUFFER, BUFFERED_OUTPUT, max_output_tokens

OUTPUT = "yes 'Another egg was found in the nest under the tree' | head -c 12000"  # some 3,000 of the demo's tokens
MOST_STEPS = 60


@pytest.mark.parametrize("context", [49_152, 65_536, 131_072])
def test_it_compacts_before_the_server_refuses(model, new_client, context):
    client, summaries = new_client(), []

    def summarize(body):
        summaries.append(body)
        return [final("<analysis>Eggs.</analysis><summary>AFTER-COMPACTION: go on, nests were searched.</summary>")]

    with serving(model, context=context) as box:
        steps = [[bash(f"echo step {number} >> log.txt; {OUTPUT}")] for number in range(MOST_STEPS)]
        # The last call before the summary stays in the history, and counts.
        box.script.on("AFTER-COMPACTION", [], [logged(100)], [logged(101)], [final("All nests are searched.")])
        box.script.on("TASK-LONG", *steps)
        box.script.other = summarize
        settings = box.settings()
        run = client.run(settings, "TASK-LONG: search the nests", limit_s=280)
        exchanges = box.recorder.messages
    assert run.result["result"] == "All nests are searched." and len(summaries) == 1, run.out
    assert run.model_usage["contextWindow"] == context
    assert_asked_once(exchanges)
    before = next(i for i, exchange in enumerate(exchanges) if exchange.body == summaries[0])
    num_steps = before
    assert log_lines(client.project) == [f"step {number}" for number in (*range(num_steps), 100, 101)]
    last = exchanges[before - 1].usage
    used = last["input_tokens"] + last["cache_read_input_tokens"] + last["output_tokens"]
    free = BUFFER + min(BUFFERED_OUTPUT, max_output_tokens(context))
    print(f"\n{context:,}: compacted after an answer that ended at {used:,} tokens, {num_steps} steps; free {free:,}")
    assert context // 3 < used < context - max_output_tokens(context)
    assert json.dumps(exchanges[before + 1].body).count("AFTER-COMPACTION") == 1
    assert len(exchanges[before + 1].prompt_ids) < used
