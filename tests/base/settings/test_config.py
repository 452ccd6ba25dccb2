"""Settings: each source, their precedence, and errors that name what is wrong."""

import argparse
import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from eyas.base.errors import UserError
from eyas.base.settings import config
from eyas.base.settings.config import EngineConfig, ServeConfig

EXAMPLE = Path(__file__).parents[3] / "config.example.yaml"


def parse(argv=(), environ=None, cls=ServeConfig):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    config.add_arguments(parser, cls, positional="model")
    return config.load(cls, parser.parse_args(list(argv)), environ or {})


@pytest.mark.parametrize(("in_file", "in_env", "in_args"), [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)])
def test_precedence(tmp_path, in_file, in_env, in_args):
    file = tmp_path / "eyas.yaml"
    file.write_text("port: 1\n" if in_file else "")
    environ = {"EYAS_CONFIG": str(file)} | ({"EYAS_PORT": "2"} if in_env else {})
    expected = 3 if in_args else 2 if in_env else 1 if in_file else ServeConfig().port
    assert parse(["--port", "3"] if in_args else [], environ).port == expected


SAMPLES = {
    "model": ("org/name", "org/name"),
    "revision": ("main", "main"),
    "offline": ("true", True),
    "draft": ("ngram", "ngram"),
    "draft_vocab": ("32k", 32768),
    "draft_counts": ("counts.json", "counts.json"),
    "draft_weights": ("fp8", "fp8"),
    "kv_dtype": ("fp8", "fp8"),
    "draft_tokens": ("3", 3),
    "decode_weights": ("12bit", "12bit"),
    "context": ("32k", 32768),
    "concurrency": ("16", 16),
    "busy_chunk_tokens": ("1k", 1024),
    "target_itl": ("40", 40),
    "whole_lm_head": ("true", True),
    "device": ("cuda:1", "cuda:1"),
    "seed": ("7", 7),
    "host": ("0.0.0.0", "0.0.0.0"),
    "port": ("9000", 9000),
    "served_name": ("bird", "bird"),
    "api_key": ("a,b", "a,b"),
    "cors": ("https://a.example", "https://a.example"),
    "allowed_hosts": ("box.example", "box.example"),
    "simulate_acceptance": ("0.7", "0.7"),
    "max_body": ("1M", 1 << 20),
    "max_queue": ("0", 0),
    "drain": ("5", 5),
    "step_timeout": ("10", 10),
    "log_format": ("json", "json"),
    "trace": ("steps.jsonl", "steps.jsonl"),
    "live": ("blank", "blank"),
    "keep_reasoning": ("true", True),
}


@pytest.mark.parametrize("name", [item.name for item in fields(ServeConfig)])
def test_every_setting_has_a_flag_a_variable_and_a_key(tmp_path, name):
    text, value = SAMPLES[name]
    expected = ServeConfig(**{name: value})
    assert expected != ServeConfig()
    file = tmp_path / "eyas.yaml"
    file.write_text(f"{name}: {text}\n")
    flag = config.flag_name(name)
    argv = [text] if name == "model" else [flag] if value is True else [flag, text]
    assert parse(argv) == expected
    assert parse(environ={config.env_name(name): text}) == expected
    assert parse(["--config", str(file)]) == expected
    file.write_text(f"{name.replace('_', '-')}: {text}\n")
    assert parse(["--config", str(file)]) == expected


@pytest.mark.parametrize(
    ("argv", "environ", "text", "words"),
    [
        ([], {"EYAS_PROT": "1"}, "", "EYAS_PROT (did you mean 'EYAS_PORT'?)"),
        ([], {"EYAS_PORT": "many"}, "", "EYAS_PORT wants a number"),
        ([], {}, "prot: 1", "unknown key 'prot' (did you mean 'port'?)"),
        ([], {}, "port: 70000", "port wants 0 to 65535, got 70000"),
        ([], {}, "port: [1, 2]", "port wants a single value"),
        ([], {}, "port:", "port wants a single value"),
        ([], {}, "port: true", "port wants a number such as 4096 or 32k, got 'True'"),
        ([], {}, "offline: maybe", "offline wants true or false"),
        ([], {}, "context: 32q", "number such as 4096 or 32k, got '32q'"),
        ([], {}, "- port", "must hold 'key: value' lines"),
        ([], {}, "a: b: c", "is not YAML"),
        ([], {"EYAS_CONFIG": "missing.yaml"}, None, "cannot read the config file missing.yaml: No such file"),
    ],
)
def test_errors_name_what_is_wrong(tmp_path, argv, environ, text, words):
    file = tmp_path / "eyas.yaml"
    if text is not None:
        file.write_text(text)
        environ = environ | {"EYAS_CONFIG": str(file)}
    with pytest.raises(UserError, match=re.escape(words)):
        parse(argv, environ)


@pytest.mark.parametrize(
    "argv", [["--por", "1"], ["--port", "x"], ["--draft-tokens", "17"], ["--context", "0"], ["--concurrency", "0"]]
)
def test_bad_flags(argv, capsys):
    with pytest.raises(SystemExit):
        parse(argv)
    assert argv[0] in capsys.readouterr().err


def test_one_file_serves_server_and_engine(tmp_path):
    file = tmp_path / "eyas.yaml"
    file.write_text("port: 9000\ncontext: 4k\n")
    assert parse(["--config", str(file)], {"EYAS_HOST": "::1"}, EngineConfig) == EngineConfig(context=4096)


def test_other_programs_variables_are_left_alone():
    assert parse(environ={"PORT": "1", "HOME": "/", "eyas_port": "2"}) == ServeConfig()


@given(st.integers(0, 2**40), st.sampled_from([("", 1), ("k", 2**10), ("K", 2**10), ("m", 2**20), ("G", 2**30)]))
def test_human_ints(value, unit):
    assert config.human_int(f"{value}{unit[0]}") == value * unit[1]
    assert config.human_int(f" {value:_}{unit[0]} ") == value * unit[1]


@given(st.text(max_size=5).filter(lambda text: not re.fullmatch(r"\s*[\d_]+[kmgKMG]?\s*", text)))
def test_no_other_text_is_a_number(text):
    with pytest.raises(ValueError, match="wants a number"):
        config.human_int(text)


def test_the_example_file_holds_every_setting_with_its_default(tmp_path):
    lines = EXAMPLE.read_text().splitlines()
    settings = [line.removeprefix("# ") for line in lines if re.match(r"# [a-z_]+: \S+$", line)]
    assert list(yaml.safe_load("\n".join(settings))) == [item.name for item in fields(ServeConfig)]
    file = tmp_path / "eyas.yaml"
    file.write_text("\n".join(settings))
    assert parse(["--config", str(file)]) == ServeConfig() == parse(["--config", str(EXAMPLE)])


def test_keys_may_be_in_environment_variables(monkeypatch):
    monkeypatch.setenv("CLIENTS", "b,c")
    assert parse(["--api-key", "a,env:CLIENTS"]).api_key == "a,b,c"
    monkeypatch.delenv("CLIENTS")
    with pytest.raises(UserError, match="EYAS_API_KEY names the environment variable 'CLIENTS', which is not set"):
        parse([], {"EYAS_API_KEY": "env:CLIENTS"})
