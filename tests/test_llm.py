"""`eyas.LLM` on a made model beside the demo's tokenizer, and on the demo itself."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import eyas
from eyas.base.errors import InvalidRequest, UserError
from eyas.base.harmony.rendering import Message, render_conversation, system_message
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.base.types import SamplingParams
from eyas.model.making.make import make_head, make_target
from eyas.model.making.presets import PRESETS, default_head

DEMO = Path(eyas.__file__).parent / "demo"
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    size = Tokenizer.load(DEMO).vocab_size
    config = replace(PRESETS["tiny"], vocab_size=size, eos_ids=(size - 1, size - 2), pad_id=0)
    out = make_target(config, tmp_path_factory.mktemp("llm") / "model", seed=1)
    shutil.copy(DEMO / "tokenizer.json", out)
    make_head(default_head(config), out / "eagle3", target=config, seed=2)
    return out


@pytest.fixture(scope="module")
def llm(folder):
    return eyas.LLM(str(folder), context=256, device="cpu", concurrency=4)


def test_one_prompt_as_text_or_as_ids(llm):
    (of_text,) = llm.generate("def add(a, b):", GREEDY)
    ids = llm.tokenizer.encode("def add(a, b):")
    (of_ids,) = llm.generate(ids, GREEDY)
    assert of_text.prompt == "def add(a, b):" and of_ids.prompt is None
    assert of_text.prompt_token_ids == of_ids.prompt_token_ids == ids
    (choice,) = of_text.outputs
    assert choice.token_ids == of_ids.outputs[0].token_ids and len(choice.token_ids) == 12
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert choice.text == llm.tokenizer.decode(choice.token_ids)


def test_many_prompts_come_back_in_order_each_with_its_settings(llm):
    prompts = ["one", "two words", "three", "four", "five", "six"]
    settings = [replace(GREEDY, max_tokens=index + 1, n=1 + index % 2) for index in range(6)]
    outputs = llm.generate(prompts, settings)
    assert [output.prompt for output in outputs] == prompts
    assert len({output.request_id for output in outputs}) == 6
    for index, output in enumerate(outputs):
        assert [choice.index for choice in output.outputs] == list(range(1 + index % 2))
        assert all(len(choice.token_ids) == index + 1 for choice in output.outputs)
    assert [o.outputs[0].token_ids for o in llm.generate([[5, 6], [7]], GREEDY)] == [
        llm.generate([5, 6], GREEDY)[0].outputs[0].token_ids,
        llm.generate([7], GREEDY)[0].outputs[0].token_ids,
    ]


def test_logprobs_and_default_settings(llm):
    (output,) = llm.generate([9, 8, 7], replace(GREEDY, logprobs=2))
    logprobs = output.outputs[0].logprobs
    assert len(logprobs) == 12 and all(item.logprob == item.top[0][1] for item in logprobs)
    (output,) = llm.generate([9] * 250)
    assert output.outputs[0].finish_reason in ("stop", "length") and len(output.outputs[0].token_ids) <= 6


def test_chat_renders_harmony_with_a_system_message_in_front(llm):
    user = Message(role="user", content="What does len do?")
    (output,) = llm.chat([user], GREEDY)
    assert output.prompt_token_ids == render_conversation(llm.tokenizer, [system_message(), user])
    own = system_message(knowledge_cutoff="2020-01")
    first, second = llm.chat([[own, user], [user]], GREEDY)
    assert first.prompt_token_ids == render_conversation(llm.tokenizer, [own, user])
    assert second.prompt_token_ids == output.prompt_token_ids
    assert second.outputs[0].token_ids == output.outputs[0].token_ids


def test_one_wrong_prompt_refuses_all_before_any_runs(llm):
    before = llm.stats()
    with pytest.raises(InvalidRequest, match="the context holds 256"):
        llm.generate([[1, 2], [3] * 256], GREEDY)
    with pytest.raises(InvalidRequest, match="2 prompts, but 1 sampling_params"):
        llm.generate([[1], [2]], [GREEDY])
    after = llm.stats()
    assert (after.num_waiting, after.num_prompt_tokens) == (0, before.num_prompt_tokens)
    assert len(llm.generate([4, 4], GREEDY)[0].outputs[0].token_ids) == 12


def test_an_interrupt_leaves_the_engine_usable(llm, monkeypatch):
    core, step, calls = llm._core, llm._core.step, []

    def interrupted():
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        step()

    monkeypatch.setattr(core, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[1], [2]], GREEDY)
    monkeypatch.undo()
    assert llm.stats().num_running == llm.stats().num_waiting == 0
    assert llm.stats().pages_used == {"full": 0, "sliding": 0}
    assert len(llm.generate([4, 4], GREEDY)[0].outputs[0].token_ids) == 12


def test_drafting_changes_the_rounds_and_not_the_tokens(folder, llm):
    (plain,) = llm.generate([3, 1, 2] * 12, GREEDY)
    for draft in ("ngram", str(folder / "eagle3")):
        drafting = eyas.LLM(str(folder), context=256, device="cpu", draft=draft, draft_tokens=3)
        (output,) = drafting.generate([3, 1, 2] * 12, GREEDY)
        assert output.outputs[0].token_ids == plain.outputs[0].token_ids
        assert drafting.stats().num_draft_tokens > 0


@pytest.mark.slow
def test_the_demo_drafts_and_is_told_apart_by_its_name():
    demo = eyas.LLM("demo", context=512, device="cpu", draft_tokens=3)
    assert (demo.info.name, demo.info.drafter) == ("eyas-demo", "eagle3")
    question = [Message(role="user", content="What does os.path.join do?")]
    params = replace(GREEDY, max_tokens=24)
    (output,) = demo.chat(question, params)
    stats = demo.stats()
    assert len(output.outputs[0].token_ids) == 24
    assert stats.num_accepted_tokens > 0 and stats.num_rounds < 23

    smaller = eyas.LLM("demo", context=512, device="cpu", draft_tokens=3, draft_vocab=512, draft_weights="fp8")
    assert smaller.chat(question, params)[0].outputs == output.outputs
    assert smaller.stats().num_accepted_tokens > 0
    assert 0 < smaller.stats().memory_bytes["head"] < stats.memory_bytes["head"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"context": 4096}, "longer than the model's 512"),
        ({"context": 256, "device": "tpu9"}, "is not a device"),
        ({"context": 256, "draft": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"context": 256, "draft": "ngram", "draft_weights": "fp8"}, "are for a draft head"),
        ({"context": 256, "draft_counts": "counts.json"}, "give both"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(folder, settings, message):
    with pytest.raises(UserError, match=message) as refused:
        eyas.LLM(str(folder), **{"device": "cpu", **settings})
    assert "\n" not in str(refused.value)


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    out = make_target(PRESETS["tiny"], tmp_path / "model")
    shutil.copy(DEMO / "tokenizer.json", out)
    with pytest.raises(UserError, match="belong to different checkpoints"):
        eyas.LLM(str(out), context=256, device="cpu")


def test_log_probabilities_of_the_prompt(llm):
    (scored, plain) = llm.generate([[5, 6, 7, 8], [5, 6, 7, 8]], [replace(GREEDY, prompt_logprobs=2), GREEDY])
    assert [len(item.top) for item in scored.prompt_logprobs] == [2, 2, 2]
    assert plain.prompt_logprobs is None and plain.outputs == scored.outputs


def test_a_grammar_is_obeyed_or_refused(llm):
    (answer,) = llm.generate("def", SamplingParams(grammar='start: "yes" | "no"', seed=1))
    assert answer.outputs[0].text in ("yes", "no") and answer.outputs[0].finish_reason == "stop"
    with pytest.raises(InvalidRequest, match="unknown name"):
        llm.generate("def", SamplingParams(grammar="start: nothing"))


def test_an_answer_that_cannot_go_on_says_why(llm):
    rules = SamplingParams(allowed_token_ids=(7,), bad_words=((7, 7),), ignore_eos=True)
    (choice,) = llm.generate([5, 6], rules)[0].outputs
    assert (choice.token_ids, choice.finish_reason) == ([7], "error") and "no token" in choice.error
