"""`/v1/responses` as the official SDK sees it: whole, streamed, parsed, continued, looked up, cancelled."""

import datetime
import threading

import openai
import pydantic
import pytest
from openai.types.responses import Response
from tests.gateway.support.gateway import CONTENT, REASONING, eventually, reply_ids
from tests.gateway.support.responses import (
    Script,
    analysis,
    check_events,
    final,
    fold,
    post,
    preamble,
    raw_events,
    spoken,
)

from eyas.base.harmony.rendering import Message, developer_message, render_conversation, system_message

LOGPROBS = ["message.output_text.logprobs"]


def create(server, input="Hi", **fields):
    return server.client.responses.create(model="stub", input=input, **fields)


def system(**fields):
    return system_message(date="2026-11-20", **fields)


def rendered(codec, *messages, **fields):
    return tuple(render_conversation(codec, [system(**fields), *messages]))


USER = Message(role="user", content="Hi")


def test_whole(serve, play, codec):
    response = create(serve(num_cached=7))
    reasoning, message = response.output
    ids = reply_ids(codec)
    assert (response.object, response.status, response.error) == ("response", "completed", None)
    assert response.output_text == CONTENT and message.phase == "final_answer" and message.status == "completed"
    assert (reasoning.type, reasoning.content[0].text, reasoning.summary) == ("reasoning", REASONING, [])
    usage = response.usage
    assert (usage.output_tokens, usage.total_tokens) == (len(ids), usage.input_tokens + len(ids))
    assert usage.input_tokens_details.cached_tokens == 7
    assert usage.output_tokens_details.reasoning_tokens == len(codec.encode(REASONING))
    assert response.timings["predicted_n"] == len(ids) and response.timings["draft_n"] == len(ids) - 1
    assert response.metrics["speculative_decoding"]["num_draft_tokens"] == len(ids) - 1
    Response.model_validate(post(play()[0], input="Hi").json())


@pytest.mark.parametrize("per_round", [0, 1, 2, 5, 1000])
def test_streamed_equals_whole_for_any_round_size(serve, per_round):
    server = serve(drafts_per_round=per_round)
    events = raw_events(server, input="Hi")
    names = [event["type"] for event in events]
    assert names[:2] == ["response.created", "response.in_progress"] and names[-1] == "response.completed"
    assert names.count("response.output_item.added") == names.count("response.output_item.done") == 2
    whole, last = post(server, input="Hi").json(), events[-1]["response"]
    assert fold(events) == last["output"] and strip_ids(last) == strip_ids(whole)


def strip_ids(response):
    """What does not depend on the moment."""
    items = [{name: value for name, value in item.items() if name != "id"} for item in response["output"]]
    drop = ("id", "created_at", "completed_at", "timings", "metrics", "output")
    return items, {name: value for name, value in response.items() if name not in drop}


def test_no_more_events_than_rounds_and_marks(serve):
    server = serve(drafts_per_round=4)
    deltas = [event for event in create(server, stream=True) if event.type.endswith(".delta")]
    assert 4 < len(deltas) <= server.engine.stats().num_rounds
    assert all("\ufffd" not in event.delta for event in deltas)


def test_the_sdk_accumulates_the_stream_to_the_same_response(play):
    server, _ = play()
    with server.client.responses.stream(model="stub", input="Hi") as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        response = stream.get_final_response()
    assert snapshots[-1] == CONTENT == response.output_text
    kept = server.client.responses.retrieve(response.id)
    assert kept.model_dump(exclude={"output"}) == response.model_dump(exclude={"output"})
    assert kept.output_text == CONTENT


def test_async_client(play):
    async def run():
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        async with client:
            stream = await client.responses.create(model="stub", input="Hi", stream=True)
            return [event async for event in stream]

    server, _ = play()
    import asyncio

    assert asyncio.run(run())[-1].response.output_text == CONTENT


def test_prompt_is_harmony(play, codec):
    server, script = play()
    create(server)
    create(server, instructions="Be brief.", reasoning={"effort": "high"})
    create(server, [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}])
    create(server, [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Hi"}], instructions="A")
    assert [request.prompt_ids for request in script.requests] == [
        rendered(codec, USER),
        rendered(codec, developer_message("Be brief."), USER, effort="high"),
        rendered(codec, developer_message("Be kind."), USER),
        rendered(codec, developer_message("A"), developer_message("Be kind."), USER),
    ]


def test_every_kind_of_message_item(play, codec):
    server, script = play()
    create(
        server,
        [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "H"}, text_part("i")]},
            {"role": "assistant", "content": "Let me look.", "phase": "commentary"},
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": "No", "annotations": []},
                    {"type": "refusal", "refusal": "."},
                ],
            },
            {"role": "user", "content": "Hi"},
        ],
    )
    expected = rendered(codec, USER, preamble("Let me look."), final("No."), USER)
    assert script.requests[0].prompt_ids == expected


def text_part(text):
    return {"type": "input_text", "text": text}


def test_sampling_fields_reach_the_engine(play):
    server, script = play()
    extra = {"seed": 5, "top_k": 9, "min_p": 0.1, "cache_salt": "s", "logit_bias": {"3": -1}}
    response = create(server, temperature=0.5, top_p=0.9, max_output_tokens=50, extra_body=extra)
    request = script.requests[0]
    params = request.params
    assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.9, 50)
    assert (params.seed, params.top_k, params.min_p, params.logit_bias) == (5, 9, 0.1, {3: -1})
    assert request.cache_salt == "s" and params.grammar is None
    assert (response.temperature, response.top_p, response.max_output_tokens) == (0.5, 0.9, 50)


def test_defaults_of_the_model(serve, codec):
    script = Script(reply_ids(codec))
    server = serve(script, gateway={"defaults": {"temperature": 0.25}})
    assert create(server).temperature == 0.25 and create(server, temperature=1).temperature == 1.0


def test_the_response_repeats_what_was_asked(play):
    labels = {"metadata": {"a": "b"}, "user": "u", "prompt_cache_key": "k", "safety_identifier": "i"}
    asked = {"instructions": "Be brief.", "truncation": "auto", "parallel_tool_calls": False, "store": False}
    response = create(play()[0], **labels, **asked, reasoning={"effort": "low", "summary": "auto"}, service_tier="auto")
    told = response.model_dump()
    assert {name: told[name] for name in (labels | asked)} == labels | asked
    assert response.reasoning.effort == "low" and response.reasoning.summary is None
    assert response.text.format.type == "text" and response.service_tier == "default"


def test_what_changes_no_answer_is_taken(play, codec):
    """The values in force are told: one tier, and low for less effort than the model has."""
    server, script = play()
    neutral = {"text": {"verbosity": "medium"}, "prompt_cache_retention": "24h", "service_tier": "flex"}
    for effort in ("none", "minimal"):
        told = post(server, input="Hi", reasoning={"effort": effort}, **neutral).json()
        assert (told["reasoning"]["effort"], told["service_tier"], told["status"]) == ("low", "default", "completed")
        assert "Reasoning: low" in codec.decode(script.requests[-1].prompt_ids)


def test_preambles_are_messages_of_their_own(play, codec):
    ids = spoken(codec, analysis("Hm."), preamble("Looking."), analysis("So."), final("Done."))
    response = create(play(ids)[0])
    assert [item.type for item in response.output] == ["reasoning", "message", "reasoning", "message"]
    assert [item.phase for item in response.output if item.type == "message"] == ["commentary", "final_answer"]


def test_token_limit_leaves_the_response_incomplete(play):
    server, _ = play()
    response = create(server, max_output_tokens=30)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[-1].status == "incomplete" and CONTENT.startswith(response.output_text)
    assert response.usage.output_tokens == 30 and response.completed_at is None
    events = list(create(server, max_output_tokens=30, stream=True))
    assert events[-1].type == "response.incomplete" and events[-1].response.output_text == response.output_text


def test_stop_strings(play):
    response = create(play()[0], extra_body={"stop": ["there"]})
    assert (response.output_text, response.status) == ("Hello ", "completed")


def test_logprobs(play, codec):
    server, _ = play()
    response = create(server, include=LOGPROBS, top_logprobs=2)
    tokens = response.output[1].content[0].logprobs
    assert [bytes(token.bytes) for token in tokens] == [codec.token_bytes(i) for i in codec.encode(CONTENT)]
    assert all(token.logprob == -0.25 and len(token.top_logprobs) == 2 for token in tokens)
    events = raw_events(server, input="Hi", include=LOGPROBS, top_logprobs=2)
    assert fold(events) == events[-1]["response"]["output"]
    assert create(server).output[1].content[0].logprobs is None


def test_structured_output_is_parsed(play, codec):
    class Bird(pydantic.BaseModel):
        name: str
        wings: int

    server, script = play(spoken(codec, analysis("An eagle."), final('{"name": "eyas", "wings": 2}')))
    response = server.client.responses.parse(model="stub", input="Hi", text_format=Bird)
    assert response.output_parsed == Bird(name="eyas", wings=2)
    assert response.text.format.name == "Bird"
    request = script.requests[0]
    assert "%json" in request.params.grammar and b"# Response Formats" in b"".join(
        map(codec.token_bytes, request.prompt_ids)
    )
    with server.client.responses.stream(model="stub", input="Hi", text_format=Bird) as stream:
        assert stream.get_final_response().output_parsed == Bird(name="eyas", wings=2)
    # The SDK sends back what it was given, its own `parsed` included.
    follow_up = server.client.responses.create(
        model="stub", input=[{"role": "user", "content": "Hi"}, *response.output, {"role": "user", "content": "Hi"}]
    )
    assert follow_up.status == "completed"


def test_json_object(play, codec):
    server, script = play(spoken(codec, final("{}")))
    assert create(server, text={"format": {"type": "json_object"}}).output_text == "{}"
    assert "%json" in script.requests[0].params.grammar


def test_conversation_by_previous_response_id(play, codec):
    server, script = play()
    first = create(server, instructions="Be brief.")
    second = create(server, "More", previous_response_id=first.id)
    third = create(server, "Even more", previous_response_id=second.id, instructions="Be kind.")
    more = Message(role="user", content="More")
    assert third.previous_response_id == second.id
    # Instructions are for one response; the reasoning of finished turns is not shown again.
    assert [request.prompt_ids for request in script.requests[1:]] == [
        rendered(codec, USER, final(CONTENT), more),
        rendered(
            codec,
            developer_message("Be kind."),
            *(USER, final(CONTENT), more, final(CONTENT), Message(role="user", content="Even more")),
        ),
    ]
    # One conversation may go on in two ways.
    fork = create(server, "Else", previous_response_id=first.id)
    assert fork.usage.input_tokens < third.usage.input_tokens


def test_a_conversation_goes_on_after_a_cut_answer(play, codec):
    server, script = play()
    first = create(server, max_output_tokens=30)
    create(server, previous_response_id=first.id)
    assert script.requests[1].prompt_ids == rendered(codec, USER, final(first.output_text), USER)


def test_sending_the_output_back_equals_the_previous_response_id(play, codec):
    server, script = play(spoken(codec, analysis("Hm."), preamble("Let me see."), analysis("I see."), final("Seen.")))
    first = create(server, store=False)
    kept = create(server)
    user = {"role": "user", "content": "And?"}
    create(server, [{"role": "user", "content": "Hi"}, *first.output, user])
    create(server, [user], previous_response_id=kept.id)
    assert script.requests[2].prompt_ids == script.requests[3].prompt_ids


def test_whoever_asks_for_reasoning_to_send_back_has_it_in_the_clear(play, codec):
    """Clients that keep the conversation themselves ask for it so, Codex for one."""
    server, script = play(spoken(codec, analysis("I think."), final("Yes.")))
    ask = {"store": False, "include": ["reasoning.encrypted_content"]}
    first = create(server, **ask)
    assert first.output[0].content[0].text == "I think."
    items = [item.model_dump() for item in first.output]
    create(server, [{"role": "user", "content": "Hi"}, *items, {"role": "user", "content": "Hi"}], **ask)
    assert script.requests[1].prompt_ids == rendered(codec, USER, final("Yes."), USER)


def test_a_conversation_may_be_as_long_as_a_body(serve):
    server = serve(gateway={"max_body": 4096}, context=2000)
    last = create(server)
    with pytest.raises(openai.BadRequestError, match="the limit is 4096") as caught:
        for _ in range(4):
            last = create(server, previous_response_id=last.id)
    assert caught.value.param == "previous_response_id"


def test_items_are_referred_to_by_id(play, codec):
    server, script = play()
    first = create(server)
    create(
        server,
        [
            {"role": "user", "content": "Hi"},
            {"type": "item_reference", "id": first.output[1].id},
            {"id": first.output[0].id},
        ],
    )
    assert script.requests[1].prompt_ids == rendered(codec, USER, final(CONTENT), analysis(REASONING))
    with pytest.raises(openai.BadRequestError, match="no longer kept") as caught:
        create(server, [{"type": "item_reference", "id": "msg_unknown"}])
    assert caught.value.param == "input[0].id"


def test_retrieve_and_delete(play):
    server, _ = play()
    response = create(server)
    assert server.client.responses.retrieve(response.id) == response
    deleted = server.client.delete(f"/responses/{response.id}", cast_to=object)
    assert deleted == {"id": response.id, "object": "response", "deleted": True}
    for again in (server.client.responses.retrieve, server.client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="no longer kept"):
            again(response.id)


def test_input_items(play):
    server, _ = play()
    first = create(server, [{"role": "user", "content": text} for text in "abc"])
    items = server.client.responses.input_items
    assert [item.content[0].text for item in items.list(first.id)] == ["c", "b", "a"]
    page = items.list(first.id, limit=2, order="asc")
    assert page.has_more and [item.content[0].text for item in page.data] == ["a", "b"]
    assert [item.content[0].text for item in page] == ["a", "b", "c"]
    second = create(server, "d", previous_response_id=first.id)
    assert [item.content[0].text for item in items.list(second.id)] == ["d"]


def test_not_stored_is_not_found(play):
    server, _ = play()
    response = create(server, store=False)
    assert response.store is False
    with pytest.raises(openai.NotFoundError):
        server.client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError, match="send the whole input") as caught:
        create(server, previous_response_id=response.id)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


def test_responses_belong_to_the_key_that_made_them(serve):
    from eyas.gateway.operation.auth import digests

    server = serve(gateway={"key_digests": digests("one,two")})
    mine, theirs = (server.client.with_options(api_key=key) for key in ("one", "two"))
    response = mine.responses.create(model="stub", input="Hi")
    assert mine.responses.retrieve(response.id).id == response.id
    for refused in (
        lambda: theirs.responses.retrieve(response.id),
        lambda: theirs.responses.delete(response.id),
        lambda: theirs.responses.cancel(response.id),
        lambda: theirs.responses.input_items.list(response.id),
        lambda: theirs.responses.create(model="stub", input="Hi", previous_response_id=response.id),
    ):
        with pytest.raises(openai.NotFoundError):
            refused()
    with pytest.raises(openai.BadRequestError):
        theirs.responses.create(model="stub", input=[{"type": "item_reference", "id": response.output[0].id}])


def test_cancelling_a_stream(serve, codec):
    server = serve(lambda request, choice: reply_ids(codec, content="go " * 150), round_s=0.01)
    stream = create(server, stream=True)
    events = [next(stream)]
    response_id = events[0].response.id
    assert server.client.responses.retrieve(response_id).status == "in_progress"
    with pytest.raises(openai.BadRequestError, match="still running"):
        create(server, previous_response_id=response_id)
    with pytest.raises(openai.BadRequestError, match="cancel it first"):
        server.client.responses.delete(response_id)
    cancelled = server.client.responses.cancel(response_id)
    events += stream
    assert cancelled.status == events[-1].response.status == "cancelled"
    check_events([event.to_dict() for event in events])
    assert eventually(lambda: server.engine.stats().num_running == 0)
    assert server.engine.stats().num_generated_tokens < 150
    for refused in (
        lambda: server.client.responses.cancel(response_id),
        lambda: create(server, previous_response_id=response_id),
    ):
        with pytest.raises(openai.BadRequestError, match="is cancelled"):
            refused()


def test_a_conversation_goes_on_as_soon_as_the_stream_says_completed(play):
    server, _ = play()
    for event in create(server, stream=True):
        if event.type == "response.completed":
            assert create(server, previous_response_id=event.response.id).status == "completed"


def test_a_client_that_leaves_leaves_nothing_behind(serve, codec):
    server = serve(lambda request, choice: reply_ids(codec, content="go " * 150), round_s=0.01)
    stream = create(server, stream=True)
    response_id = next(stream).response.id
    stream.close()
    assert eventually(lambda: server.engine.stats().num_running == 0)
    with pytest.raises(openai.NotFoundError):
        server.client.responses.retrieve(response_id)


def test_truncation_drops_whole_turns_from_the_beginning(serve, codec):
    script = Script(reply_ids(codec))
    server = serve(script, context=400)
    turns = [
        message
        for i in range(6)
        for message in ({"role": "user", "content": f"turn {i} " * 4}, {"role": "assistant", "content": "ok"})
    ]
    items = [*turns, {"role": "user", "content": "Hi"}]
    with pytest.raises(openai.BadRequestError, match="maximum context length is 400"):
        create(server, items)
    create(server, items, truncation="auto", max_output_tokens=20)
    users = [Message(role="user", content=f"turn {i} " * 4) for i in range(6)]
    prompts = [
        rendered(codec, *[message for user in users[first:] for message in (user, final("ok"))], USER)
        for first in range(7)
    ]
    assert script.requests[0].prompt_ids == next(prompt for prompt in prompts if len(prompt) <= 380)


def test_many_streams_at_once_keep_their_own(serve, codec):
    server = serve(
        lambda request, choice: list(request.prompt_ids) and reply_ids(codec, content=f"seed {request.params.seed}")
    )
    texts = {}

    def run(seed):
        stream = create(server, stream=True, extra_body={"seed": seed})
        texts[seed] = "".join(event.delta for event in stream if event.type == "response.output_text.delta")

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert texts == {seed: f"seed {seed}" for seed in range(8)}


def test_the_date_is_the_servers(serve, codec):
    script = Script(reply_ids(codec))
    create(serve(script, gateway={"today": lambda: datetime.date(2027, 1, 2)}))
    expected = [system_message(date="2027-01-02"), USER]
    assert script.requests[0].prompt_ids == tuple(render_conversation(codec, expected))
