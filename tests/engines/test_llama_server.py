"""A real llama-server with the demo model and its head as GGUF: the same text as ours, the same drafts accepted."""

import json
import shutil
from collections import Counter
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import openai
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engines.support.llama import CONTEXT, EXACT, SERVER, command, running
from tests.model.support.random_gguf import TINY, make_random

from eyas.base.bundled import DEMO, OWN_HEAD
from eyas.base.harmony.parser import StreamParser
from eyas.base.harmony.rendering import Message, developer_message, render_conversation, system_message
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.base.types import SamplingParams
from eyas.llm import LLM
from eyas.model.config import RopeConfig
from eyas.model.gguf.export import export_head, export_target
from eyas.recipes.engines import flags
from tools import llama_server as tool

ASSETS = Path(__file__).parents[1] / "assets"
NUM_PROMPTS, MAX_TOKENS, DRAFT_TOKENS = 20, 200, 3
NEAR_TIE = 0.02  # of log-probability between our two best tokens: less than what other roundings move
HELD_OUT = 100
NUM_DRAFT_IDS = 8


@dataclass
class Answer:
    """`rows` are the server's passes over a continuation: tokens, drafts and accepted drafts."""

    tokens: list[int]
    num_drafted: int
    num_accepted: int


def prompts():
    rows = [json.loads(line) for line in (ASSETS / "stdlib_questions.jsonl").read_text().splitlines()]
    questions = [row["question"] for row in rows[:NUM_PROMPTS]]
    codec = Tokenizer.load(DEMO)
    return [
        render_conversation(codec, [system_message(date="2026-01-31"), Message(role="user", content=question)])
        for question in questions
    ]


def export(folder, out, *, weights="f32"):
    out.mkdir(exist_ok=True)
    export_target(folder, out / "model.gguf", weights=weights, name="test")
    if (folder / OWN_HEAD).is_dir():
        export_head(folder / OWN_HEAD, out / "head.gguf", target_folder=folder, weights=weights, name="test")
    return out


def complete(client, token_ids, max_tokens=MAX_TOKENS, **more):
    answer = client.post("/completion", json={"prompt": token_ids, "n_predict": max_tokens} | SERVER | more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def answer_of(client, token_ids, max_tokens=MAX_TOKENS):
    body = complete(client, token_ids, max_tokens)
    timings = body["timings"]
    return Answer(body["tokens"], timings.get("draft_n", 0), timings.get("draft_n_accepted", 0))


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    return export(DEMO, tmp_path_factory.mktemp("demo") / "gguf")


@pytest.fixture(scope="module")
def with_head(llama_server, gguf, tmp_path_factory):
    argv = command(llama_server, gguf / "model.gguf", gguf / "head.gguf", draft_tokens=DRAFT_TOKENS)
    with running([*argv, *EXACT], tmp_path_factory.mktemp("log") / "log") as client:
        yield client


@pytest.fixture(scope="module")
def plain(llama_server, gguf, tmp_path_factory):
    with running([*command(llama_server, gguf / "model.gguf"), *EXACT], tmp_path_factory.mktemp("log") / "log") as one:
        yield one


@pytest.fixture(scope="module")
def drafted(with_head):
    return [answer_of(with_head, token_ids) for token_ids in prompts()]


@pytest.fixture(scope="module")
def our_outputs():
    return ours(draft="none")[1]


def ours(model=DEMO, token_ids=None, max_tokens=MAX_TOKENS, **settings):
    llm = LLM(str(model), device="cpu", context=CONTEXT, **settings)
    params = SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=2)
    return llm, [output.outputs[0] for output in llm.generate(token_ids or prompts(), params)]


def differences(outputs, answers):
    """(prompt, position, gap between our two best tokens there) for each answer of theirs that is not ours."""
    found = []
    for number, (output, answer) in enumerate(zip(outputs, answers, strict=True)):
        if output.token_ids == answer.tokens:
            continue
        pairs = zip(output.token_ids, answer.tokens, strict=False)
        position = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        assert position is not None, f"prompt {number}: one ends before the other"
        (_, best), (_, second) = output.logprobs[position].top[:2]
        found.append((number, position, best - second))
    return found


def test_the_table_of_options_is_its_help(llama_server):
    assert flags.options("llama.cpp", tool.LLAMA_VERSION) == set(tool.flags(llama_server))


def test_greedy_tokens_are_ours(drafted, our_outputs):
    """Raw completions of rendered Harmony prompts, the head drafting."""
    different = differences(our_outputs, drafted)
    num_tokens = sum(len(answer.tokens) for answer in drafted)
    print(f"{NUM_PROMPTS - len(different)} of {NUM_PROMPTS} prompts give our tokens, {num_tokens} in all")
    for number, position, gap in different:
        print(f"prompt {number} differs at token {position}, where our two best are {gap:.5f} apart")
    assert all(gap < NEAR_TIE for _, _, gap in different), different


def test_drafting_changes_no_token(plain, drafted):
    assert [answer_of(plain, token_ids).tokens for token_ids in prompts()] == [answer.tokens for answer in drafted]


def test_as_many_drafts_are_accepted_as_ours(drafted):
    """A head that were written wrongly (taps, rotary pairs, draft ids) would draft worse."""
    llm, _ = ours(draft="auto", draft_tokens=DRAFT_TOKENS)
    stats = llm.stats()
    num_drafted, num_accepted = (sum(getattr(a, name) for a in drafted) for name in ("num_drafted", "num_accepted"))
    length = 1 + num_accepted / (num_drafted / DRAFT_TOKENS)
    print(f"llama.cpp drafted {num_drafted}, accepted {num_accepted}: acceptance length {length:.3f}")
    print(f"eyas      drafted {stats.num_draft_tokens}, accepted {stats.num_accepted_tokens}")
    assert abs(num_drafted - stats.num_draft_tokens) <= 0.01 * num_drafted
    assert abs(num_accepted - stats.num_accepted_tokens) <= 0.03 * num_accepted  # the last round is counted otherwise
    assert length > 3


def test_packed_weights_and_its_own_cache_give_the_same_text(llama_server, our_outputs, tmp_path):
    """As people run it: MXFP4 experts, keys and values in f16, flash attention."""
    gguf = export(DEMO, tmp_path / "gguf", weights="stored")
    with running(command(llama_server, gguf / "model.gguf", gguf / "head.gguf"), tmp_path / "log") as client:
        answers = [answer_of(client, token_ids) for token_ids in prompts()]
    different = differences(our_outputs, answers)
    print(f"{NUM_PROMPTS - len(different)} of {NUM_PROMPTS} prompts give our tokens; differing: {different}")
    assert all(gap < 5 * NEAR_TIE for _, _, gap in different)


def test_what_is_left_of_the_difference_is_yarn_rounding(llama_server, tmp_path):
    """The demo model, told to round the correction range as llama.cpp does, agrees a lot better."""
    rounded = tmp_path / "rounded"
    shutil.copytree(DEMO, rounded)
    config = json.loads((rounded / "config.json").read_text())
    config["rope_scaling"]["truncate"] = True
    (rounded / "config.json").write_text(json.dumps(config))
    worst, asked = {}, prompts()[:8]
    for folder in (DEMO, rounded):
        gguf = export(folder, tmp_path / f"{folder.name}-gguf")
        _, outputs = ours(folder, asked, 40, draft="none")
        with running([*command(llama_server, gguf / "model.gguf"), *EXACT], tmp_path / "log") as client:
            theirs = [complete(client, ids, 40, n_probs=1)["completion_probabilities"] for ids in asked]
        worst[folder] = max(
            abs(mine.logprob - their["logprob"])
            for output, their_list in zip(outputs, theirs, strict=True)
            for mine, their in zip(output.logprobs, their_list, strict=True)
        )
    print(f"largest difference of a log-probability: {worst[DEMO]:.2e} as it is, {worst[rounded]:.2e} with rounding")
    assert 5 * worst[rounded] < worst[DEMO] < 1e-2


def test_its_tokenizer_is_ours(plain):
    codec = Tokenizer.load(DEMO)
    rows = [json.loads(line) for line in (ASSETS / "demo_heldout.jsonl").read_text().splitlines()[:HELD_OUT]]
    texts = [message["content"] for row in rows for message in row["messages"]]
    texts += ["x = 12345 + 678.9e-10", "It's WE'LL camelCase HTTPServer", "a\n\n  b\t\r\n c   ", ""]
    for text in texts:
        ids = plain.post("/tokenize", json={"content": text, "parse_special": False}).json()["tokens"]
        assert ids == codec.encode(text), text
    text = (
        "na\u00efve caf\u00e9, \u65e5\u672c\u8a9e, e\u0301, \U0001f985"  # may be split otherwise, into the same bytes
    )
    ids = plain.post("/tokenize", json={"content": text, "parse_special": False}).json()["tokens"]
    assert codec.decode(ids) == text
    # Unlike ours: spelled in a text, these control tokens are taken for themselves, whatever is asked for.
    ids = plain.post("/tokenize", json={"content": "<|start|>user", "parse_special": False}).json()["tokens"]
    assert ids[0] == codec.special["<|start|>"] and codec.encode("<|start|>user")[0] != ids[0]


def test_its_template_renders_our_harmony(plain):
    import datetime

    codec = Tokenizer.load(DEMO)
    messages = [{"role": "system", "content": "Answer politely."}, {"role": "user", "content": "Hello!"}]
    body = {"messages": messages, "reasoning_effort": "low"}
    text = plain.post("/apply-template", json=body).json()["prompt"]
    ids = plain.post("/tokenize", json={"content": text, "parse_special": True}).json()["tokens"]
    today = datetime.date.today().isoformat()
    conversation = [system_message(date=today, effort="low"), developer_message("Answer politely.")]
    assert ids == render_conversation(codec, [*conversation, Message(role="user", content="Hello!")])


def test_chat_through_the_openai_sdk(with_head):
    """Streamed: reasoning and content arrive apart, as our parser takes them apart."""
    import datetime

    llm = LLM("demo", device="cpu", context=CONTEXT, draft="none")
    client = openai.OpenAI(base_url=f"{with_head.base_url}/v1", api_key="none")
    for question in ("What does os.path.join do?", "What does json.dumps do?", "Who are you?"):
        stream = client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": question}], temperature=0, max_tokens=MAX_TOKENS,
            stream=True, reasoning_effort="medium",
        )  # fmt: skip
        deltas = [chunk.choices[0].delta for chunk in stream if chunk.choices]
        content = "".join(delta.content or "" for delta in deltas)
        reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
        assert sum(bool(delta.content) for delta in deltas) > 1, "in pieces"
        system = system_message(date=datetime.date.today().isoformat())
        params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
        output = llm.chat([[system, Message(role="user", content=question)]], params)[0].outputs[0]
        parser = StreamParser(llm.tokenizer)
        parser.feed(output.token_ids)
        parser.finish()
        wanted = {message.channel: message.content for message in parser.messages}
        assert (reasoning, content) == (wanted.get("analysis", ""), wanted["final"])


def test_the_context_is_divided_among_the_slots(llama_server, gguf, tmp_path):
    with running(command(llama_server, gguf / "model.gguf", slots=3), tmp_path / "log") as client:
        slots = client.get("/slots").json()
    assert [slot["n_ctx"] for slot in slots] == [CONTEXT] * 3


@pytest.mark.parametrize("kind", ["specforge", "full-vocab", "norm-before-fc", "speculators"])
def test_published_kinds_of_head_draft_the_same(llama_server, tmp_path, kind):
    """Random heads whose few draft ids are those that the random model says most: right by chance, as often as there.

    With other taps, norms, rotary pairs or ids they would be right at other places, after other numbers of rounds.
    """
    config = replace(TINY, rope=RopeConfig(theta=10000.0))
    prompts = [[(7 * i + j) % 256 for j in range(20)] for i in range(8)]
    few = {"draft_vocab_size": NUM_DRAFT_IDS}
    folder = make_random(
        config, tmp_path / "model", head=kind, head_changes=few, seed=3, own_embedding=kind != "specforge"
    )
    common = Counter(token for output in ours(folder, prompts, 120, draft="none")[1] for token in output.token_ids)
    draft_only(folder / OWN_HEAD, sorted(token for token, _ in common.most_common(NUM_DRAFT_IDS)))

    llm = LLM(str(folder), device="cpu", context=CONTEXT, draft="auto", draft_tokens=DRAFT_TOKENS)
    outputs, counts = [], [0]
    for token_ids in prompts:
        outputs += llm.generate([token_ids], SamplingParams(temperature=0, max_tokens=120, logprobs=2))[0].outputs
        counts.append(llm.stats().num_draft_tokens)
    gguf = export(folder, tmp_path / "gguf")
    argv = [*command(llama_server, gguf / "model.gguf", gguf / "head.gguf"), *EXACT]
    with running(argv, tmp_path / "log") as client:
        answers = [answer_of(client, token_ids, 120) for token_ids in prompts]
    different = {number: gap for number, _, gap in differences(outputs, answers)}
    rounds = [(after - before) // DRAFT_TOKENS for before, after in pairwise(counts)]
    theirs = [answer.num_drafted // DRAFT_TOKENS for answer in answers]
    accepted = sum(answer.num_accepted for answer in answers)
    print(f"{kind}: rounds {rounds}, of llama.cpp {theirs}, which accepted {accepted}; differing answers {different}")
    assert all(gap < NEAR_TIE for gap in different.values()) and len(different) < 4 and accepted >= 10
    same = [i for i in range(len(prompts)) if i not in different]
    assert all(abs(rounds[i] - theirs[i]) <= 1 for i in same)


def test_a_head_without_an_output_matrix_uses_the_targets(llama_server, tmp_path):
    config = replace(TINY, rope=RopeConfig(theta=10000.0))
    folder = make_random(config, tmp_path / "model", head="full-vocab", own_lm_head=False)
    gguf = export(folder, tmp_path / "gguf")
    prompt = list(range(40))
    _, (output,) = ours(folder, [prompt], 60, draft="none")
    argv = [*command(llama_server, gguf / "model.gguf", gguf / "head.gguf"), *EXACT]
    with running(argv, tmp_path / "log") as client:
        answer = answer_of(client, prompt, 60)
    assert answer.num_drafted > 0 and not [gap for *_, gap in differences([output], [answer]) if gap >= NEAR_TIE]


def draft_only(folder, ids):
    """Make `ids` the draft vocabulary of the head in `folder`."""
    tensors = load_file(folder / "model.safetensors")
    tensors["d2t"] = torch.tensor(ids) - torch.arange(len(ids))
    if "t2d" in tensors:
        tensors["t2d"] = torch.zeros_like(tensors["t2d"]).index_fill(0, torch.tensor(ids), True)
    save_file(tensors, folder / "model.safetensors")
