"""What a router's file means: every key, the defaults, what comes from a plan; and what is no value of a key."""

from contextlib import suppress

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fleet.support.lab import make_plan, write_plan
from tests.router.support.files import read

from eyas.base.errors import UserError
from eyas.base.serving.budgets import Budgets
from eyas.recipes.plan import Launch, Node
from eyas.router.settings.reader import examine
from eyas.router.settings.schema import ROUTES, BackendSettings, ModelSettings, RouteSettings, ServerSettings

SMALL = "backends: {a: {url: 'http://127.0.0.1:9001'}}\nmodels: {m: [a]}\n"
WHOLE = """
server: {host: 0.0.0.0, port: 9000, api_key: [env:CLIENTS, 'sha256:%s'], cors: https://chat.example, drain: 5,
  allowed_hosts: box.example, max_body: 1m, log_format: json}
budgets: {queue: 10, total: 600}
max_queue: 7
decide: model
guard: off
backends:
  fast: {url: 'https://box.example/engine/v1/', key: env:FAST, role: text, engine: vllm, model: openai/gpt-oss-120b,
    concurrency: 3, guard: act, budgets: {stall: null, prefill: 1.5}}
  plain: {url: 'http://box.example:9002', twin_of: fast, model: gpt-oss-120b}
  vectors: {url: 'http://box.example:9003', role: embeddings}
models:
  gpt-oss-120b: [fast, plain]
  small: vectors
routes:
  MATH: {effort: low, max_tokens: 4k, budgets: {prefill: none}}
  RESEARCH: {model: gpt-oss-120b}
""" % ("ab" * 32)
KEYS = {"FAST": "f-key", "CLIENTS": "c-key", "UNUSED": "x"}


def write(tmp_path, text):
    path = tmp_path / "router.yaml"
    path.write_text(text)
    return path


def problems(tmp_path, text, environ=None):
    return examine(write(tmp_path, text), environ or {}).problems


def test_a_small_file_and_its_defaults(tmp_path):
    found = read(write(tmp_path, SMALL), {})
    assert found.backends == (BackendSettings(name="a", url="http://127.0.0.1:9001", concurrency=8),)
    assert found.models == (ModelSettings(name="m", backends=("a",)),)
    assert found.server == ServerSettings() and found.budgets == Budgets()
    assert (found.decide, found.guard, found.max_queue) == ("classifier", "observe", 256)
    assert tuple(route.name for route in found.routes) == ROUTES
    assert {route.model for route in found.routes} == {None}
    assert {route.max_tokens for route in found.routes} == {2048}
    assert {route.effort for route in found.routes} == {"low", "medium", "high"}


def test_every_key(tmp_path):
    found = read(write(tmp_path, WHOLE), KEYS)
    fast, plain, vectors = found.backends
    assert fast == BackendSettings(
        name="fast",
        url="https://box.example/engine",
        key="f-key",
        role="text",
        engine="vllm",
        model="openai/gpt-oss-120b",
        concurrency=3,
        guard="act",
        budgets=Budgets(queue_s=10.0, prefill_s=1.5, stall_s=None, total_s=600.0),
    )
    assert plain.twin_of == "fast" and plain.budgets == found.budgets == Budgets(queue_s=10.0, total_s=600.0)
    assert vectors.role == "embeddings"
    assert found.models[1] == ModelSettings(name="small", backends=("vectors",))
    math, *_, research, _ = found.routes
    assert math == RouteSettings(name="MATH", effort="low", max_tokens=4096, budgets={"prefill_s": None})
    assert research.model == "gpt-oss-120b" and research.budgets == {}
    assert found.server == ServerSettings(
        host="0.0.0.0",
        port=9000,
        api_key=f"c-key,sha256:{'ab' * 32}",
        cors="https://chat.example",
        allowed_hosts="box.example",
        max_body=1 << 20,
        drain_s=5.0,
        log_format="json",
    )
    assert (found.decide, found.guard, found.max_queue) == ("model", "off", 7)
    assert "f-key" not in repr(found) and "c-key" not in repr(found)


def test_the_command_line_wins(tmp_path):
    found = read(write(tmp_path, WHOLE), KEYS, {"port": 0, "host": "::1", "api_key": None})
    assert (found.server.port, found.server.host, found.server.api_key) == (0, "::1", None)


def test_a_plan_says_the_rest(tmp_path):
    launch = Launch(name="server", argv=("true",))
    plan = make_plan(tmp_path, 9005, [launch], api_key_env="PLAN_KEY")
    choice = msgspec.structs.replace(plan.choice, concurrency=3)
    (tmp_path / "plans").mkdir()
    write_plan(tmp_path / "plans" / "lab.yaml", msgspec.structs.replace(plan, choice=choice))
    path = write(tmp_path, "backends: {a: {plan: plans/lab.yaml}}\nmodels: {m: [a]}\n")
    (found,) = read(path, {"PLAN_KEY": "p-key"}).backends
    assert found == BackendSettings(
        name="a",
        url="http://127.0.0.1:9005",
        key="p-key",
        plan=tmp_path / "plans" / "lab.yaml",
        engine="llama.cpp",
        model="demo",
        concurrency=3,
    )
    assert examine(path, {}).problems == (
        "backends.a.plan: the plan needs PLAN_KEY; set it first: export PLAN_KEY=...",
    )
    (said,) = examine(path, {"PLAN_KEY": "two words"}).problems
    assert said.startswith("backends.a.plan names the environment variable PLAN_KEY, whose value has a blank")
    mine = write(tmp_path, "backends: {a: {plan: plans/lab.yaml, concurrency: 9, engine: vllm}}\nmodels: {m: [a]}\n")
    said = examine(mine, {"PLAN_KEY": "p-key"})
    assert said.settings.backends[0].concurrency == 9
    assert said.problems == ("backends.a.engine is vllm, its plan starts llama.cpp",)


@pytest.mark.parametrize(
    ("node", "listen", "url"),
    [
        (Node(name="n", ssh="me@box", address="10.0.0.9"), "0.0.0.0", "http://10.0.0.9:9005"),
        (Node(name="n", ssh="me@box"), "::", "http://box:9005"),
        (Node(name="n", ssh="me@box"), "fd00::1", "http://[fd00::1]:9005"),
        (Node(name="n", ssh="me@box"), "127.0.0.1", None),
    ],
)
def test_a_plan_on_another_machine(tmp_path, node, listen, url):
    launch = Launch(name="server", argv=("true",))
    plan = make_plan(tmp_path, 9005, [launch], nodes=(node,), api_key_env="K", listen=listen)
    write_plan(tmp_path / "lab.yaml", plan)
    found = examine(write(tmp_path, "backends: {a: {plan: lab.yaml}}\nmodels: {m: [a]}\n"), {"K": "k"})
    assert found.settings.backends[0].url == url
    if url is None:
        assert "ssh -N -L 9005:127.0.0.1:9005 me@box" in found.problems[0]
        text = "backends: {a: {plan: lab.yaml, url: 'http://127.0.0.1:9006'}}\nmodels: {m: [a]}\n"
        assert read(write(tmp_path, text), {"K": "k"}).backends[0].url == "http://127.0.0.1:9006"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty; it wants backends and models"),
        ("[1]", "the file wants keys and values, got [1]"),
        (SMALL + "guards: act", "guards: unknown key (did you mean 'guard'?)"),
        (SMALL + "guard: on", "guard wants off or observe or act, got 'on'"),
        (SMALL + "decide: clasifier", "decide wants classifier or model, got 'clasifier'"),
        (SMALL + "max_queue: -1", "max_queue wants a number such as 4096 or 32k, got '-1'"),
        (SMALL + "routes: {math: {}}", "routes.math: no route 'math' (did you mean 'MATH'?)"),
        (SMALL + "routes: {REASON: {}}", "routes.REASON: no route 'REASON' (did you mean 'REASONING'?)"),
        (SMALL + "routes: {MATH: {efort: low}}", "routes.MATH.efort: unknown key (did you mean 'effort'?)"),
        (SMALL + "routes: {MATH: {effort: hi}}", "routes.MATH.effort wants low or medium or high, got 'hi'"),
        (SMALL + "routes: {MATH: {max_tokens: 0}}", "routes.MATH.max_tokens wants at least 1, got 0"),
        (SMALL + "budgets: {queue: -1}", "budgets.queue wants seconds above 0, at most 604800"),
        (SMALL + "budgets: {stall: true}", "budgets.stall wants seconds above 0, at most 604800"),
        (SMALL + "budgets: {stal: 3}", "budgets.stal: unknown key (did you mean 'stall'?)"),
        (SMALL + "budgets: 3", "budgets wants keys and values, got 3"),
        (SMALL + "server: {port: 99999}", "server.port wants 0 to 65535, got 99999"),
        (SMALL + "server: {hosts: a}", "server.hosts: unknown key (did you mean 'host'?)"),
        (SMALL + "server: {cors: nonsense}", "server.cors: cors takes origins such as https://chat.example"),
        (SMALL + "server: {allowed_hosts: 'a:1'}", "server.allowed_hosts: allowed_hosts takes names without a port"),
        (
            SMALL + "server: {api_key: 'sha256:12'}",
            "server.api_key: entry 1 of api_key (--api-key) needs 64 hex",
        ),
        (SMALL + "server: {api_key: my-secret}", "server.api_key wants sha256:HEX (see 'eyas key'), or env:NAME"),
        (SMALL + "server: {api_key: env:NONE}", "server.api_key names the environment variable NONE, which is not set"),
        ("backends: {a: 3}\nmodels: {m: [a]}", "backends.a wants keys and values, got 3"),
        ("backends: {a: {}}\nmodels: {m: [a]}", "backends.a wants a url (a server that runs) or a plan"),
        ("backends: {1: {}}\nmodels: {m: [a]}", "backends has a name that is none: 1; put it in quotes"),
        ("backends: {'a b': {}}\nmodels: {m: ['a b']}", "backends.a b is no name of a backend"),
        ("backends: [a]\nmodels: {m: [a]}", "backends wants names and what they mean, got ['a']"),
        (SMALL.replace("url", "rul"), "backends.a.rul: unknown key (did you mean 'url'?)"),
        (SMALL.replace("[a]", "3"), "models.m wants a list of backends, best first, got 3"),
        (SMALL.replace("[a]", "[]"), "models.m wants at least one backend"),
        (SMALL.replace("m:", "route/MATH:"), "models.route/MATH begins with route/"),
        (SMALL.replace("m:", "'m m':"), "models.m m wants a name of printable ASCII without spaces"),
    ],
)
def test_what_is_no_value(tmp_path, text, said):
    assert any(problem.startswith(said) for problem in problems(tmp_path, text)), problems(tmp_path, text)


@pytest.mark.parametrize(
    "url",
    [
        *("127.0.0.1:9001", "ftp://a", "http://", "http://a:99999", "http://a:0", "http://a b", "http://a/?q=1"),
        *("http://a/#f", "http://:9001", "http://a:x", "3", "http://me:my-secret@a"),
        *("http://a/?key=my-secret", "http://me:my-secret@a b", "http://a/#my-secret"),
    ],
)
def test_what_is_no_address(tmp_path, url):
    (said,) = problems(tmp_path, f"backends: {{a: {{url: '{url}'}}}}\nmodels: {{m: [a]}}")
    assert said.startswith("backends.a.url wants an address such as http://127.0.0.1:8000") and "secret" not in said


def test_a_key_in_the_file_is_refused_and_not_quoted(tmp_path):
    text = SMALL.replace("{url", "{key: my-secret, url")
    (said,) = problems(tmp_path, text)
    assert said == "backends.a.key wants env:NAME, the name of an environment variable that holds the key, not the key"
    assert problems(tmp_path, text.replace("my-secret", "env:GONE")) == (
        "backends.a.key names the environment variable GONE, which is not set",
    )


@pytest.mark.parametrize("key", ["my-secret\r\n", "my secret", "my-secrét", "my-secret\0"])
def test_a_key_that_no_header_can_hold(tmp_path, key):
    (said,) = problems(tmp_path, SMALL.replace("{url", "{key: env:KEY, url"), {"KEY": key})
    assert "KEY, whose value has a blank" in said and "secr" not in said


def test_a_variable_may_hold_several_keys_of_clients(tmp_path):
    path = write(tmp_path, SMALL + "server: {api_key: env:CLIENTS}")
    assert read(path, {"CLIENTS": "one, two\n"}).server.api_key == "one, two\n"


@pytest.mark.parametrize("plan", ["none.yaml", "router.yaml"])
def test_a_plan_that_cannot_be_read(tmp_path, plan):
    (said,) = problems(tmp_path, f"backends: {{a: {{plan: {plan}}}}}\nmodels: {{m: [a]}}")
    assert said.startswith("backends.a.plan: ") and str(tmp_path / plan) in said


def test_all_problems_are_said_at_once(tmp_path):
    assert len(problems(tmp_path, "backends: {a: {url: x}}\nmodels: {m: [b]}\nguard: 3\n")) == 4


@settings(max_examples=60)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["backends", "url"]),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.booleans(), inner),
    ),
    st.sampled_from(["server", "backends", "models", "routes", "budgets", "guard", "decide", "max_queue"]),
)
def test_whatever_stands_in_a_file_is_read_or_named(tmp_path_factory, value, key):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    content = {"backends": {"a": {"url": "http://127.0.0.1:9001"}}, "models": {"m": ["a"]}, key: value}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    with suppress(UserError):  # a key twice: the text false and the boolean
        found = examine(path, {})
        assert found.problems or found.settings.backends
