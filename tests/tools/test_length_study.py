"""`tools/length_study`: chats whose answers stand far back and nowhere else, and what is counted of them."""

import json
from functools import partial
from random import Random

import numpy as np
import pytest
import torch
from data import GENERATED, IGNORED, TEXT, CachedCodec, RowPacker, render_chat
from export import export_target
from reload import load_trainable
from shapes import SMOKE_TARGET
from target import TargetModel, hidden_states, rms_norm
from tools.length_study import accuracy, heads_flow, report, same_flow
from tools.length_study.__main__ import FLOWS, main, parse
from tools.length_study.measuring import Prompt, counts_of, prompts_of
from tools.length_study.quoting import (
    BUCKETS,
    LEAST,
    LONG,
    SHORT,
    Quote,
    QuoteWriter,
    bucket_lengths,
    bucket_of,
    quotes_of,
)
from tools.length_study.records import read_results, result_path, write
from tools.length_study.sizes import FULL, SMALL
from tools.length_study.target_flow import begun, quote_draw

from eyas.base.bundled import DEMO
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.base.types import RoundTrace, TokenEvent
from eyas.train.data.documents import DocumentOptions, Tally, documents_of
from eyas.train.data.records import chat_of

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def codec():
    return Tokenizer.load(DEMO)


def chats(codec, count, least=LEAST, most=LONG, seed=0):
    writer = QuoteWriter(codec, Random(seed))
    return [writer.chat(least, most) for _ in range(count)]


def test_an_answer_repeats_tokens_of_the_prompt(codec):
    distances = []
    for chat in chats(codec, 40):
        ids, codes = render_chat(codec, chat)
        assert LEAST / 2 < len(ids) <= LONG
        for source, answer, length in quotes_of(codec, chat):
            assert ids[source : source + length] == ids[answer : answer + length]
            assert set(codes[answer : answer + length]) == {GENERATED} and GENERATED not in codes[:source]
            distances.append(answer - source)
    assert {bucket_of(distance) for distance in distances} == set(range(len(BUCKETS) - 1))


def test_a_text_stands_nowhere_else_and_no_key_in_a_text(codec):
    writer = QuoteWriter(codec, Random(0))
    assert len(writer.keys) > 200 and not set(writer.keys) & set(writer.words)
    for chat in chats(codec, 10, seed=1):
        for source, _, length in chat.spans:
            text = chat.question[source : source + length]
            assert chat.question.count(text) == 1 and chat.answer.count(text) == 1
            assert chat.answer.index(text) >= 0 and len(text) > 4


def test_short_and_long_chats_teach_the_same_share_of_their_tokens(codec):
    shares = []
    for most in (SHORT, LONG):
        rendered = [render_chat(codec, chat) for chat in chats(codec, 400 if most == SHORT else 120, most=most)]
        assert max(len(ids) for ids, _ in rendered) <= most
        shares.append(sum(codes.count(GENERATED) for _, codes in rendered) / sum(len(ids) for ids, _ in rendered))
    assert shares[0] == pytest.approx(shares[1], rel=0.06) and shares[0] == pytest.approx(0.2, abs=0.02)


def test_training_and_engine_read_the_same_tokens(codec):
    """A line of the file of chats becomes the document that the target was trained on."""
    for chat in chats(codec, 5, seed=2):
        (document,) = documents_of(codec, chat_of(chat.row(), source="x"), DocumentOptions(), Tally())
        ids, codes = render_chat(codec, chat)
        assert document.ids_T.tolist() == ids
        assert (document.runs_T >= 0).tolist() == [code == GENERATED for code in codes]
    for prompt in prompts_of(codec, count=2, longest=1024):
        assert BUCKETS[prompt.bucket] <= len(prompt.ids) < len(prompt.ids + prompt.answer) <= BUCKETS[prompt.bucket + 1]


def test_every_length_has_prompts_of_its_own(codec):
    assert len(list(bucket_lengths(LONG))) == len(BUCKETS) - 1
    assert [bucket_of(tokens) for tokens in (0, 511, 512, 2047, 2048, 9999)] == [0, 0, 1, 2, 3, 3]
    found = prompts_of(codec, count=3, longest=2048)
    assert [one.bucket for one in found] == [0] * 3 + [1] * 3 + [2] * 3
    assert len({one.ids for one in found}) == 9


def test_rows_of_the_target_give_notes_no_weight(codec):
    text = [np.array(codec.encode("import os\n" * 2000), np.uint16)]
    shard = RowPacker(CachedCodec(codec), text, 1024, "0:0", partial(quote_draw, longest=1024)).shard(3)
    shares = np.bincount(shard.codes.flatten(), minlength=4) / shard.codes.size
    assert shares[GENERATED] > 0.1 and shares[IGNORED] > 0.4 and shares.sum() == pytest.approx(1)
    assert set(shard.codes.flatten().tolist()) <= {GENERATED, IGNORED, TEXT}


def test_a_target_that_is_there_is_trained_on(tmp_path):
    fresh, runs = begun(tmp_path, SMALL)
    assert runs == 0
    with torch.no_grad():
        fresh.norm.add_(1.0)
    export_target(fresh, tmp_path / "target", DEMO / "tokenizer.json")
    (tmp_path / "target.json").write_text('{"runs": 2}')
    again, runs = begun(tmp_path, SMALL)
    assert runs == 2 and again.norm.tolist() == [2.0] * SMALL.target.hidden_size
    bundled, runs = begun(tmp_path / "new", FULL)
    assert runs == 0 and torch.equal(bundled.norm, load_trainable(DEMO, FULL.target).norm)


def test_accuracy_is_that_of_each_chat_alone(codec):
    model = TargetModel(SMOKE_TARGET, torch.Generator().manual_seed(0))
    some = chats(codec, 3, most=300)
    with torch.no_grad():
        weights = model.weights(dtype=torch.float32, quantized=False)
        found = accuracy._right(model, weights, codec, some)
        for chat, (right, is_answer) in zip(some, found, strict=True):
            ids, codes = render_chat(codec, chat)
            ids = torch.tensor([ids])
            states, _ = hidden_states(weights, model.config, ids, ids * 0, model.rope(ids.shape[1], ids.device))
            logits = rms_norm(states[-1], weights.norm_H, model.config.rms_norm_eps) @ weights.lm_head_VH.T
            assert right[1:].tolist() == (logits.argmax(-1)[0, :-1] == ids[0, 1:]).tolist()
            assert is_answer.tolist() == [code == GENERATED for code in codes]


def events(*rounds):
    """Events of an answer: the first token by the prompt, then rounds of these tokens."""
    first, *others = rounds
    made = [TokenEvent(request_id="", choice=0, token_ids=tuple(first))]
    for ids in others:
        trace = RoundTrace(draft_ids=(0,) * 4, num_accepted=len(ids) - 1)
        made.append(TokenEvent(request_id="", choice=0, token_ids=tuple(ids), round=trace))
    return made


def test_rounds_are_counted_by_context_and_by_distance(codec):
    message, end = codec.special["<|message|>"], codec.special["<|return|>"]
    # Behind a prompt of 600 tokens: header, two plain tokens, a quote of four, one token, a quote of three.
    answer = (1, message, 2, 3, 10, 11, 12, 13, 4, 20, 21, 22, end)
    prompt = Prompt(1, tuple(range(600)), answer, (Quote(590, 604, 4), Quote(5, 609, 3)))
    right = events(answer[:1], answer[1:3], answer[3:5], answer[5:7], answer[7:8], answer[8:9], answer[9:13])
    wrong = events(answer[:1], answer[1:4], answer[4:6], [12, 99], [4], [20, 21], [end])
    counts = counts_of([prompt, prompt], [right, wrong], codec)
    # Of the first: rounds at 3, 5, 7, 8 and 9 are content; the header's is not, and <|return|> is not counted.
    assert counts["context"][1] == [(9, 5), (7, 4)] and counts["context"][0] == [(0, 0)] * 2
    assert counts["distance"][0] == [(3, 2), (4, 2)]  # the second leaves the right answer in its fourth round
    assert counts["distance"][1] == [(3, 1), (0, 0)]


def results(gains):
    """Results of three seeds, where the long arm commits so much more in rounds of 2.0 tokens, by bucket."""
    found = {"short": {}, "long": {}}
    for seed in range(3):
        for arm, extra in (("short", [0.0] * len(gains)), ("long", gains)):
            buckets = []
            for bucket, gain in enumerate(extra):
                rounds = [20 + (seed + i) % 5 if i // 4 == bucket else 0 for i in range(4 * len(gains))]
                buckets.append([((2 + 0.001 * seed + gain) * n, n) for n in rounds])
            found[arm][seed] = {"context": buckets, "distance": buckets}
    return found


@pytest.mark.parametrize(
    ("gains", "ahead", "nowhere_behind"),
    [((0.0, 0.0, 0.2, 0.5), True, True), ((-0.1, 0.0, 0.2, 0.5), True, False), ((0.1, 0.2, 0.0, 0.5), False, True)],
)
def test_the_table_and_its_verdict(tmp_path, gains, ahead, nowhere_behind):
    for arm, seeds in results(gains).items():
        for seed, counts in seeds.items():
            write(result_path(tmp_path, arm, seed), {"arm": arm, "seed": seed, "counts": counts})
    found = read_results(tmp_path)
    figures = report.figures(found)
    assert (figures["ahead_beyond_1K"], figures["nowhere_behind"]) == (ahead, nowhere_behind)
    assert [one["long_over_short"]["value"] for one in figures["context"].values()] == pytest.approx(gains)
    assert all(one["seeds"] == 3 and one["prompts"] == 4 for one in figures["distance"].values())
    text = "\n".join(report.lines(found))
    assert f"ahead beyond 1K: {'holds' if ahead else 'FAILS'}" in text and "2048-4096" in text
    del found["long"][1]
    assert next(iter(report.figures(found)["context"].values()))["seeds"] == 2  # those that both have
    assert report.lines({"short": found["short"]})[-1] == "nowhere behind: FAILS"  # nothing was compared


def test_a_head_of_the_gpu_is_held_against_the_cpus_interval():
    base = [(40.0 + i, 20.0) for i in range(20)]
    near, far = [(tokens + 1, rounds) for tokens, rounds in base], [(tokens + 20, rounds) for tokens, rounds in base]
    found = {f"same-{name}": {0: {"0": pairs}} for name, pairs in (("cpu", base), ("cuda", near), ("other", far))}
    by_name = {line.split()[0]: line.split() for line in same_flow.lines(found)[1:]}
    assert by_name["cuda"][-1] == "yes" and by_name["other"][-1] == "NO" and len(by_name["cpu"]) == 5


def test_chats_of_an_arm_are_written_until_there_are_enough(tmp_path):
    found = heads_flow.write_chats(tmp_path / "x.jsonl", longest=300, tokens=2000)
    rows = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert found["chats"] == len(rows) and 2000 <= found["tokens"] < 2300


def test_flags():
    args = parse(["heads", "--out", "a/b", "train.attention=plain", "--seeds", "2"])
    assert str(args.work) == "a/b-work" and args.overrides == ["train.attention=plain"] and args.seeds == 2
    assert {parse([flow]).flow for flow in FLOWS} == set(FLOWS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_quality_at_length_in_small(tmp_path, capsys):
    """A miniature target, the heads of one seed in a first command, and those of another in two more."""
    common = ["--small", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    main(["target", *common])
    found = json.loads((tmp_path / "out" / "target.json").read_text())
    assert found["reload_difference"] == 0 and found["by_distance"]["0-512"]["count"] > 3
    main(["heads", *common, "--seeds", "1"])
    main(["heads", *common, "--only", "long-1"])
    heads = {path.name: (path / "model.safetensors").read_bytes() for path in (tmp_path / "out" / "heads").iterdir()}
    assert set(heads) == {"base-0", "short-0", "long-0", "base-1", "long-1"} and len(set(heads.values())) == 5
    main(["measure", *common])
    first = {path.name: path.read_bytes() for path in (tmp_path / "out" / "results").iterdir()}
    assert set(first) == {"short-0.json", "long-0.json", "long-1.json"}
    main(["heads", *common, "--seeds", "2"])
    lines = [json.loads(line) for line in (tmp_path / "out" / "heads.jsonl").read_text().splitlines()]
    assert [(one["arm"], one["seed"]) for one in lines] == [
        ("base", 0), ("short", 0), ("long", 0), ("base", 1), ("long", 1), ("short", 1),
    ]  # fmt: skip
    capsys.readouterr()
    main(["measure", *common])
    assert {path.name: path.read_bytes() for path in (tmp_path / "out" / "results").iterdir()}.items() >= first.items()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["context"]["512-1024"]["seeds"] == 2 and figures["ahead_beyond_1K"] is False


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_losses_and_the_same_head_in_small(tmp_path, capfd):
    common = ["--small", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]
    main(["losses", *common])
    assert {path.name for path in (tmp_path / "out" / "losses").glob("result-*")} == {
        "result-kl-0.json", "result-hard-0.json",
    }  # fmt: skip
    assert not list((tmp_path / "out").rglob("*.safetensors"))  # states are not to be kept
    few = str(tmp_path / "work" / "few.jsonl")
    main(["same", *common, f"data.chats={few}", "data.held_out_share=0"])
    main(["compare", *common])
    counts = read_results(tmp_path / "out")["same-cpu"][0]
    assert set(counts) == {"0", "1"} and len(counts["0"]) == 2
    assert "T=1" in capfd.readouterr().out
