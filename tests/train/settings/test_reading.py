"""Settings of a run: strict reading, overrides, the template, differences."""

import pytest
import yaml

from eyas.base.errors import UserError
from eyas.train.settings.reading import as_plain, differences, parse_settings, read_settings, template
from eyas.train.settings.schema import RunSettings


def parsed(text, *overrides):
    return parse_settings(yaml.safe_load(text), overrides, source="run.yaml")


def test_the_template_reads_back_as_what_it_shows(tmp_path):
    settings = parsed("target: demo\nhead: {taps: [1, 4, -1], draft_vocab: 2048}\ntrain: {lr: 3e-4}\nout: here")
    path = tmp_path / "run.yaml"
    path.write_text(template(settings))
    assert read_settings(path) == settings
    path.write_text(template(RunSettings()))
    assert read_settings(path) == RunSettings()


def test_every_key_has_a_help_text():
    keys = [line for line in template(RunSettings()).splitlines() if line.startswith("  ") and "#" not in line]
    assert len(keys) > 50
    lines = template(RunSettings()).splitlines()
    assert all("#" in lines[lines.index(key) - 1] for key in keys)


def test_values_have_the_types_of_their_keys():
    settings = parsed(
        "states: {cache: 1.5GiB}\ndata: {context: 32k, chats: one.jsonl}\ntrain: {lr: 2e-4, betas: [0.9, 0.99]}\n"
        "head: {norm_output: true, draft_vocab: full}"
    )
    assert settings.states.cache == 3 << 29 and settings.data.context == 32768
    assert settings.data.chats == ("one.jsonl",) and settings.train.lr == 2e-4 and settings.train.betas == (0.9, 0.99)
    assert settings.head.norm_output is True and settings.head.draft_vocab == "full"


def test_overrides_win():
    settings = parsed(
        "train: {lr: 1}", "train.lr=2e-4", "out=there", "target=x", "head.taps=[1,-1]", "train.steps=null"
    )
    assert settings.train.lr == 2e-4 and settings.out == "there" and settings.target.model == "x"
    assert settings.head.taps == (1, -1) and settings.train.steps is None


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        ("tran: {}", (), "run.yaml: unknown key 'tran' (did you mean 'train'?)"),
        ("train: {learning_rate: 1}", (), "run.yaml: train.learning_rate: unknown key"),
        ("train: {warm_up: 1}", (), "run.yaml: train.warm_up: unknown key (did you mean 'warmup'?)"),
        ("train: {lr: fast}", (), "run.yaml: train.lr wants a number, got 'fast'"),
        ("train: {lr: -1}", (), "run.yaml: train.lr wants at least 0, got -1"),
        ("train: {loss: soft}", (), "run.yaml: train.loss wants kl or lk or tv or hard, got 'soft'"),
        ("train: {depths: [1, 2]}", (), "run.yaml: train.depths wants a single value, got [1, 2]"),
        ("train: {depths: null}", (), "run.yaml: train.depths wants a single value, got None"),
        ("states: {cache: 2 lots}", (), "run.yaml: states.cache wants a size such as 2GiB or 500MiB, got '2 lots'"),
        ("head: {norm_output: 1}", (), "run.yaml: head.norm_output wants true or false, got '1'"),
        ("train: fast", (), "run.yaml: train wants keys and values, got 'fast'"),
        ("{}", ("train.lr",), "'train.lr' is no override; write it as SECTION.KEY=VALUE, e.g. train.lr=2e-4"),
        ("{}", ("train.stps=1",), "train.stps: unknown key (did you mean 'steps'?)"),
        ("{}", ("trai.lr=1",), "unknown key 'trai.lr' (did you mean 'train'?)"),
        ("{}", ("train=1",), "train: unknown key"),
    ],
)
def test_a_wrong_key_or_value_is_named(text, overrides, message):
    with pytest.raises(UserError) as caught:
        parsed(text, *overrides)
    assert str(caught.value) == message


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xfe", b"- 1", b"x"])
def test_what_is_no_settings_file_is_refused(tmp_path, content):
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"run\.yaml (is not YAML|must hold)"):
        read_settings(path)
    with pytest.raises(UserError, match="eyas train init"):
        read_settings(tmp_path / "none.yaml")


def test_nothing_in_a_file_is_executed(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("out: !!python/object/apply:os.system ['true']")
    with pytest.raises(UserError, match="not YAML"):
        read_settings(path)


def test_differences_name_the_keys():
    a, b = as_plain(RunSettings()), as_plain(parsed("train: {lr: 1}\nhead: {taps: [1]}\nout: x"))
    assert list(differences(a, b)) == ["head.taps", "train.lr", "out"]
    assert not list(differences(a, a))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {lr: 1, lr: 2}", "the key 'lr' stands twice"),
        ("train: {}\ndata: {}\ntrain: {}", "the key 'train' stands twice"),
        ("train: {betas: [0.9]}", "train.betas wants 2 values, got 1"),
        ("train: {betas: [0.9, 1]}", "train.betas wants 0 to 0.999999, got 1"),
        ("train: {lr: .inf}", "train.lr wants at least 0, got inf"),
        ("train: {lr: .nan}", "train.lr wants at least 0, got nan"),
        ("train: {lr: [" * 2000, "is not YAML"),
    ],
)
def test_values_that_would_fail_later_are_refused_on_reading(tmp_path, text, message):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_settings(path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_date_needs_no_quotes(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("data: {date: 2026-06-01}")
    assert read_settings(path).data.date == "2026-06-01"


def test_aliases_that_grow_without_end_are_refused_in_one_line(tmp_path):
    path = tmp_path / "run.yaml"
    layers = "".join(f"  b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]\n" for n in range(1, 12))
    path.write_text(f"train:\n  b0: &b0 [x]\n{layers}")
    with pytest.raises(UserError, match="b0: unknown key"):
        read_settings(path)
    path.write_text(f"data: {{chats: [[[[[[[{'[' * 40}1{']' * 40}]]]]]]]}}")
    with pytest.raises(UserError, match="wants a list of single values"):
        read_settings(path)
