"""`eyas bench` as a person runs it: figures for people, one JSON line last, and both say the same."""

import json
import re

import pytest

from eyas import cli


def bench(capsys, *argv):
    assert cli.main(["bench", *map(str, argv)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    return lines[:-1], json.loads(lines[-1])


@pytest.fixture
def head(model_folder):
    return model_folder / "eagle3"


@pytest.mark.parametrize("batches", [(2,), pytest.param((1, 2), marks=pytest.mark.slow)], ids=str)
def test_engine(capsys, model_folder, head, batches):
    lines, report = bench(
        capsys, "engine", model_folder, "--draft", head, "--batch", ",".join(map(str, batches)),
        "--drafts", "0,1,auto", "--plain", "--repeats", 2, "--max-tokens", 6, "--prompt-tokens", 40,
    )  # fmt: skip
    assert lines[1].startswith("SIMULATED") and report["simulated"] is True
    assert report["hardware"]["threads"] == 1 and report["versions"]["torch"] and report["ignore_eos"] is True
    figures = report["figures"]
    assert [(f["batch"], f["matmul"], f["draft_tokens"]) for f in figures] == [
        (batch, *arm) for batch in batches for arm in (("plain", 0), ("tiled", 0), ("tiled", 1), ("tiled", "auto"))
    ]
    for figure in figures:
        speed = figure["decode_tok_s"]
        assert speed["n"] == 2 and 0 < speed["min"] <= speed["median"] <= speed["max"]
        assert sum(figure["histogram"].values()) == figure["rounds"]
        assert 1 <= figure["acceptance_length"] <= 6
        assert figure["answers"] == 4 and 4 <= figure["experts_per_layer_and_round"] <= 8
        if figure["matmul"] == "tiled":
            assert figure["same_answers"] == 4 and "vs_plain" in figure
    # Prefill once for each engine; ratios where there is something to compare with.
    assert [figure["prefill_tok_s"] is not None for figure in figures] == [True, True, True, False] * len(batches)
    assert ["auto_vs_best" in figure for figure in figures] == [False, False, False, True] * len(batches)
    assert ["vs_no_draft" in figure for figure in figures] == [True, False, True, True] * len(batches)
    shown = [line for line in lines if line.startswith("0, plain F.linear") and ".." in line]
    assert [f"{f['decode_tok_s']['median']:,.1f}" in line for f, line in zip(figures[::4], shown, strict=True)] == [
        True
    ] * len(batches)


def test_engine_with_and_without_copies_of_weights(capsys, monkeypatch, model_folder):
    """As where a GPU has copies; here the arms are alike."""
    argv = ["engine", model_folder, "--draft", "none", "--bf16", "--batch", 1, "--repeats", 1, "--max-tokens", 4]
    assert cli.main(["bench", *map(str, argv)]) == 1
    assert "--bf16 compares with copies of weights, and there are none" in capsys.readouterr().err
    monkeypatch.setattr("eyas.bench.engine.parts.num_copies", lambda weights: 1)
    monkeypatch.setattr("eyas.bench.engine.parts.remove_copies", lambda weights: weights)
    lines, report = bench(capsys, *argv)
    published, copied = report["figures"]
    assert (published["matmul"], copied["matmul"], copied["same_answers"]) == ("bf16", "tiled", copied["answers"])
    assert copied["vs_bf16"]["n"] == published["vs_no_draft"]["n"] == 1
    assert any("against bf16" in line for line in lines) and any(line.startswith("0, bf16") for line in lines)


@pytest.mark.slow
def test_engine_with_simulated_acceptance(capsys, model_folder, head):
    lines, report = bench(
        capsys, "engine", model_folder, "--draft", head, "--batch", 2, "--drafts", "3,auto", "--repeats", 2,
        "--simulate-acceptance", "1,0", "--max-tokens", 21, "--prompt-tokens", "20,40", "--answers", 2, "--budget",
    )  # fmt: skip
    assert lines[1].startswith("SIMULATED: synthetic acceptance, draft tokens are random")
    assert report["simulated"] is True and sum("(SIMULATED)" in line for line in lines) == 4
    figures = report["figures"]
    all_right, longer, all_wrong, _ = (figure for figure in figures if figure["draft_tokens"] == 3)
    assert (all_right["prompt_tokens"], longer["prompt_tokens"]) == (20, 40)
    assert all_right["histogram"] == {"1": 0, "2": 0, "3": 0, "4": all_right["rounds"]}
    assert set(all_wrong["histogram"]) == {"1"}
    for figure in figures:
        parts = figure["round_parts_ms"]
        assert figure["same_answers"] is None and parts["verify"] > 0 and parts["sample"] > 0
        assert (parts["draft"] > 0) == (figure["draft_tokens"] != 0) or figure["draft_tokens"] == "auto"
        if figure["draft_tokens"] == "auto":
            ratio = figure["auto_vs_best"]
            assert 0 < ratio["low"] <= ratio["value"] <= ratio["high"] and figure["best_fixed"] in (0, 3)
    assert sum(line.startswith("0: draft 0.000, verify ") for line in lines) == 4
    assert any("auto against none [95 %]" in line for line in lines)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--drafts", "0"], "--simulate-acceptance needs drafts"),
        (["--drafts", "2"], "with 2 drafts a round commits fewer than 3 tokens, not 3"),
        (["--drafts", "auto", "--simulate-acceptance", "8"], "with 7 drafts a round commits fewer than 8 tokens"),
    ],
)
def test_acceptance_that_cannot_be_simulated(capsys, model_folder, head, extra, words):
    argv = ["bench", "engine", str(model_folder), "--draft", str(head), "--simulate-acceptance", "3", *extra]
    assert cli.main(argv) == 1 and words in capsys.readouterr().err


def test_engine_without_head_or_tokenizer(capsys, model_folder, tmp_path):
    for path in model_folder.iterdir():
        if path.is_file() and path.name != "tokenizer.json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    lines, report = bench(capsys, "engine", tmp_path, "--batch", 1, "--repeats", 1, "--max-tokens", 4)
    assert [figure["draft_tokens"] for figure in report["figures"]] == [0]
    assert any("no drafter; name a head with --draft" in line for line in lines)
    assert any("random ids of 64 to 64 tokens" in line for line in lines)


def test_lm_heads_are_compared_where_there_is_a_screen(capsys, model_folder):
    assert cli.main(["bench", "engine", str(model_folder), "--both-lm-heads", "--batch", "1"]) == 1
    assert "compares with a screened lm_head, and this is none" in capsys.readouterr().err


def test_engine_says_when_nothing_can_be_timed(capsys, model_folder):
    argv = ["bench", "engine", str(model_folder), "--batch", "1", "--max-tokens", "1", "--prompt-tokens", "8"]
    assert cli.main(argv) == 1
    assert "no round ran with 1 answers at once" in capsys.readouterr().err


def test_mixed(capsys, model_folder):
    lines, report = bench(
        capsys, "mixed", model_folder, "--draft", "none", "--clients", "1,2", "--prompt-tokens", 20, "--max-tokens", 4,
        "--rounds", 1, "--chunks", "64,128", "--repeats", 1, "--long-prompt", 200, "--kv-dtype", "fp8",
    )  # fmt: skip
    assert lines[1].startswith("SIMULATED") and report["simulated"] is True and report["kv_dtype"] == "fp8"
    loops = report["closed_loop"]
    assert [(f["clients"], f["chunk"], f["answers"]) for f in loops] == [
        (1, 64, 1),
        (1, 128, 1),
        (2, 64, 2),
        (2, 128, 2),
    ]
    for figure in loops:
        assert 0 < figure["gap_ms_p50"]["median"] <= figure["gap_ms_p100"]["median"] and figure["tok_s"]["n"] == 1
        shown = next(line for line in lines if line.split()[:2] == [str(figure["clients"]), str(figure["chunk"])])
        assert f"{figure['tok_s']['median']:,.0f} (" in shown
    by_chunk = report["long_prompt"]["by_chunk"]
    assert [figure["chunk"] for figure in by_chunk] == [64, 128]
    assert all(figure["first_mixed_ms_p50"]["median"] > figure["quiet_ms_p50"]["median"] for figure in by_chunk)


@pytest.mark.slow
def test_mixed_compares_draft_lengths(capsys, model_folder, head):
    lines, report = bench(
        capsys, "mixed", model_folder, "--draft", head, "--clients", 2, "--prompt-tokens", 20, "--max-tokens", 8,
        "--rounds", 1, "--repeats", 2, "--drafts", "3,auto", "--simulate-acceptance", "0,1",
    )  # fmt: skip
    loops = report["closed_loop"]
    assert [(f["simulated_acceptance"], f["drafts"]) for f in loops] == [
        (rate, drafts) for rate in ("0", "1") for drafts in (0, 3, "auto")
    ]
    assert loops[4]["gap_ms_p50"]["n"] == 2 and lines[1].startswith("SIMULATED")
    verdicts = [line for line in lines if line.startswith("auto, 2 clients: ")]
    assert len(verdicts) == 2 and all(re.search(r"of the best fixed number \([03]\)", line) for line in verdicts)


def test_mixed_simulates_acceptance_of_named_lengths_only(capsys, model_folder):
    assert cli.main(["bench", "mixed", str(model_folder), "--simulate-acceptance", "0.5"]) == 1
    assert "name the draft lengths to compare" in capsys.readouterr().err


@pytest.mark.parametrize("drafter", ["eagle3", pytest.param("ngram", marks=pytest.mark.slow)])
def test_acceptance(capsys, model_folder, head, tmp_path, codec, drafter):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Hello"}\n{"text": "x"}\n{"prompt": "Hello there"}\n')
    lines, report = bench(
        capsys, "acceptance", model_folder, "--prompts", file, "--draft", head if drafter == "eagle3" else drafter,
        "--max-tokens", 90, "--temperature", "0,1.5", "--seed", 3,
    )  # fmt: skip
    assert lines[1].startswith("SIMULATED")
    assert (report["draft_tokens"], report["prompts"], report["drafter"]) == (4, 2, drafter)
    assert any("(1 lines without messages or prompt" in line for line in lines)
    assert [result["temperature"] for result in report["results"]] == [0.0, 1.5]
    for result in report["results"]:
        everything = result["all_tokens"]
        assert everything["tokens"] == sum(int(size) * n for size, n in everything["histogram"].items())
        assert everything["tokens"] <= 2 * 89
        if result["content"]:
            assert result["content"]["rounds"] <= everything["rounds"]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--draft", "none"], "there is no drafter; name a head with --draft, or try --draft ngram"),
        (["--draft", "ngram", "--draft-tokens", "0"], "no draft tokens, nothing to accept"),
        (["--draft", "ngram", "--context", "32"], "prompt 1: the prompt has"),
    ],
)
def test_acceptance_that_cannot_be_measured(capsys, model_folder, tmp_path, extra, words):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Hello"}\n')
    assert cli.main(["bench", "acceptance", str(model_folder), "--prompts", str(file), *extra]) == 1
    out, err = capsys.readouterr()
    assert out == "" and words in err and err.count("\n") == 1


@pytest.mark.parametrize("model", ["null", "null:20"])
@pytest.mark.parametrize(
    "argv",
    [
        *(["bench", "engine"], ["bench", "mixed"], ["bench", "load"]),
        *(["bench", "acceptance", "--prompts", __file__], ["generate", "x"]),
    ],
    ids=lambda argv: argv[argv[0] == "bench"],
)
def test_null_is_not_offered_where_a_model_computes(capsys, argv, model):
    option = ["--model", model] if argv[-1] == "x" else [model]
    assert cli.main([*argv, *option]) == 1
    assert capsys.readouterr().err == (
        f"eyas: error: '{model}' is not a model: it only serves ('eyas serve null'), "
        "and 'eyas bench http' measures it; name a model, e.g. demo\n"
    )
    with pytest.raises(SystemExit):
        cli.main([*argv, "--help"])
    assert "null" not in capsys.readouterr().out


def test_null_is_offered_where_it_works(capsys):
    for command, word in ((["serve"], "'null:MS'"), (["bench", "http"], "'eyas serve null'")):
        with pytest.raises(SystemExit):
            cli.main([*command, "--help"])
        assert word in " ".join(capsys.readouterr().out.split()), command


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["acceptance", "--prompts", "/no/such/file"], "there is no file /no/such/file"),
        (["engine", "--batch", "0"], "wants at least 1"),
        (["engine", "--drafts", "4,x"], "wants numbers from 0 to 16 or 'auto', got 'x'"),
        (["engine", "--prompts", "/no/such/file"], "there is no file"),
        (["engine", "--simulate-acceptance", "nan"], "wants an acceptance length such as 2.6"),
        (["engine", "--simulate-acceptance", "0.5/2.6"], "or chances in turn"),
        (["mixed", "--clients", "0"], "wants at least 1"),
    ],
)
def test_wrong_usage(capsys, argv, words):
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", *argv])
    assert caught.value.code == 2 and words in capsys.readouterr().err
