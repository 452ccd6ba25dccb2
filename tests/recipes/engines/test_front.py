"""The router in front of an engine: its file is one that the router reads, and it leaves the engine's plan alone."""

import pytest

from eyas.recipes.advice.messages import messages
from eyas.recipes.engines.front import (
    CONFIG,
    LAUNCH,
    has_router,
    lacks_keys,
    model,
    ports,
    router_port,
    url,
    with_router,
    without_router,
)
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.planning.plain import without_speculation
from eyas.recipes.planning.planner import Ask, make_plan
from eyas.router.settings.reader import examine


def plan(engine="sglang", **fields):
    return make_plan(Ask(model="gpt-oss-120b", engine=engine, **{"on": "h200", "purpose": "claude-code"} | fields))


def test_each_engine_has_an_entry():
    assert set(messages()) == set(knowledge().engines)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"api_key_env": "SERVER_KEY", "listen": "0.0.0.0"},
        {"engine": "tensorrt-llm", "on": "8xb200"},
        {"engine": "tensorrt-llm", "on": "8xb200", "api_key_env": "SERVER_KEY", "listen": "0.0.0.0"},
        {"engine": "ollama", "purpose": "chat", "api_key_env": "SERVER_KEY", "listen": "0.0.0.0"},
        {"engine": "sglang", "on": "2xspark"},
        {"engine": "ollama", "port": 8100},
        {"engine": "llama.cpp", "on": "spark"},
    ],
)
def test_the_router_reads_its_file(fields, tmp_path):
    made = plan(**fields)
    (file,) = [file for file in made.emission.files if file.path == CONFIG]
    (tmp_path / CONFIG).write_text(file.content)
    examined = examine(tmp_path / CONFIG, {"SERVER_KEY": "k" * 32})
    assert examined.problems == ()
    (backend,) = examined.settings.backends
    assert backend.url == f"http://127.0.0.1:{made.choice.port}"
    assert backend.engine == made.choice.engine and backend.model == made.emission.readiness.model
    assert examined.settings.server.port == router_port(made.choice) != made.choice.port
    asks = made.choice.api_key_env is not None
    assert (examined.settings.server.api_key is not None) == asks
    assert (backend.key is not None) == (asks and not lacks_keys(made.choice))
    assert file.nodes == (0,)


def test_the_engines_server_stays_last_and_nothing_else_changes():
    made = plan(on="2xspark")
    running = [launch for launch in made.emission.launches if not launch.is_once]
    assert running[0].name == LAUNCH and running[0].node == 0 and running[-1].name.startswith("server")
    bare = without_router(made.emission)
    assert all(launch.name != LAUNCH for launch in bare.launches)
    assert with_router(made.choice, bare) == made.emission
    assert without_router(bare) == bare


def test_a_plan_for_others_has_none():
    for made in (plan(purpose="chat"), plan(engine="eyas")):
        assert without_router(made.emission) == made.emission


def test_clients_talk_to_the_router_by_its_address_and_its_name_of_the_model():
    """The router knows the model by the name in its file, not by the engine's."""
    made = plan(engine="ollama", purpose="chat", api_key_env="KEY", listen="::", on="spark")
    assert (url(made), model(made), ports(made)) == ("http://[::1]:8100", "gpt-oss-120b", (11434, 8100))
    assert made.emission.launches[0].wait.port == 8100
    bare = plan(engine="ollama", purpose="chat", on="spark")
    assert (url(bare), model(bare), ports(bare)) == ("http://127.0.0.1:11434", "gpt-oss:120b", (11434,))
    assert not has_router(bare.emission)


def test_a_twin_without_speculation_keeps_it():
    made = plan(head="nvidia-v3")
    assert made.choice.head == "nvidia-v3"
    assert [launch.name for launch in without_speculation(made).emission.launches] == [
        launch.name for launch in made.emission.launches
    ]
