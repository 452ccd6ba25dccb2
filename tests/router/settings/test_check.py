"""What is wrong with a file as a whole: names, twins, the router as its own backend, servers and plans twice."""

import msgspec
import pytest
import yaml
from tests.fleet.support.lab import make_plan, write_plan

from eyas.recipes.plan import Launch, Node
from eyas.router.settings.places import is_place_of, place_of
from eyas.router.settings.reader import examine

URL = "http://127.0.0.1:9001"
OTHER = "http://127.0.0.1:9002"


def problems(tmp_path, backends, models=None, **more):
    content = {"backends": backends, "models": models or {"m": list(backends)}, **more}
    path = tmp_path / "router.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return list(examine(path, {}).problems)


def plan(tmp_path, port=9005, name="lab", **choice):
    """The file of a plan."""
    nodes = choice.pop("nodes", (Node(name="here"),))
    made = make_plan(tmp_path / name, port, [Launch(name="server", argv=("true",))], name=name, nodes=nodes)
    made = msgspec.structs.replace(made, choice=msgspec.structs.replace(made.choice, **choice))
    return str(write_plan(tmp_path / f"{name}.yaml", made))


def test_nothing_is_wrong_with_a_good_file(tmp_path):
    backends = {
        "fast": {"url": URL, "model": "gpt-oss-120b"},
        "plain": {"url": OTHER, "model": "openai/gpt-oss-120b", "twin_of": "fast"},
        "lab": {"plan": plan(tmp_path)},
        "vectors": {"url": "http://127.0.0.1:9003", "role": "embeddings"},
    }
    models = {"m": ["fast"], "n": ["lab", "fast"], "e": ["vectors"]}
    routes = {"MATH": {"model": "n"}}
    assert problems(tmp_path, backends, models, routes=routes) == []


def test_names_that_mean_nothing(tmp_path):
    backends = {"alpha": {"url": URL, "model": "x"}, "beta": {"url": OTHER, "twin_of": "alhpa"}}
    found = problems(tmp_path, backends, {"large": ["alpha", "betta"]}, routes={"MATH": {"model": "larg"}})
    assert found == [
        "models.large: no backend 'betta' (did you mean 'beta'?)",
        "backends.beta belongs to no model; list it at one under models",
        "routes.MATH.model: no model 'larg' (did you mean 'large'?)",
        "backends.beta.twin_of: no backend 'alhpa' (did you mean 'alpha'?)",
    ]


@pytest.mark.parametrize(
    ("backends", "models", "said"),
    [
        ({"a": {"url": URL}}, {"m": ["a", "a"]}, "models.m names a twice"),
        ({"a": {"url": URL}, "b": {"url": OTHER}}, {"m": ["a"]}, "backends.b belongs to no model"),
        (
            {"a": {"url": URL, "role": "embeddings"}, "b": {"url": OTHER}},
            {"n": ["b"], "m": ["a", "b"]},
            "models.m has backends of several roles: a is for embeddings, b is for text",
        ),
        (
            {"a": {"url": URL, "model": "x"}, "b": {"url": OTHER, "model": "x", "role": "vision"}},
            {"m": ["a", "b"]},
            "models.m has backends of several roles: a is for text, b is for vision",
        ),
        ({"a": {"url": URL, "role": "embeddings"}}, {"m": ["a"]}, "models.m stands first and so is the resident model"),
        ({"a": {"url": URL, "role": "vision"}}, {"m": ["a"]}, "models.m stands first and so is the resident model"),
        ({}, {"m": []}, "backends is empty"),
    ],
)
def test_models(tmp_path, backends, models, said):
    assert any(text.startswith(said) for text in problems(tmp_path, backends, models))


def test_a_route_to_embeddings(tmp_path):
    backends = {"a": {"url": URL}, "v": {"url": OTHER, "role": "embeddings"}}
    found = problems(tmp_path, backends, {"m": ["a"], "e": ["v"]}, routes={"MATH": {"model": "e"}})
    assert found == ["routes.MATH.model is e, which makes embeddings and answers nothing"]


@pytest.mark.parametrize(
    ("twin", "other", "said"),
    [
        ({"model": "gpt-oss-20b"}, {"model": "gpt-oss-120b"}, "is a, which has another model: gpt-oss-120b, this one"),
        ({"model": "mine"}, {"model": "theirs"}, "is a, which has another model: theirs, this one mine"),
        ({"role": "vision"}, {}, "is a, whose role is text, not vision"),
        ({"twin_of": "b"}, {}, "is the backend itself"),
        ({}, {"twin_of": "b"}, "is a, which is a twin itself"),
    ],
)
def test_twins(tmp_path, twin, other, said):
    backends = {"a": {"url": URL, **other}, "b": {"url": OTHER, "twin_of": "a", **twin}}
    found = problems(tmp_path, backends)
    assert any(text.startswith(f"backends.b.twin_of {said}") for text in found), found


def test_a_twin_that_serves_another_model(tmp_path):
    backends = {"a": {"url": URL, "model": "x"}, "b": {"url": OTHER, "twin_of": "a", "model": "x"}}
    found = problems(tmp_path, backends, {"m": ["a"], "n": ["b"]})
    assert found == ["backends.b.twin_of is a, which does not serve n as this one does"]
    assert problems(tmp_path, backends, {"m": ["a"]}) == []  # asked after a's loops alone


def test_backends_that_stand_in_for_each_other_name_their_model(tmp_path):
    """Without a name a backend's model is the one that it has at first sight, which may be another than the others'."""
    said = "wants model: the name of the model there, since it is not the only backend of m"
    named, unnamed = {"url": URL, "model": "x"}, {"url": OTHER}
    assert problems(tmp_path, {"a": named, "b": unnamed}) == [f"backends.b {said}"]
    assert problems(tmp_path, {"a": unnamed | {"url": URL}, "b": named | {"url": OTHER}}) == [f"backends.a {said}"]
    twin = {"a": named, "b": unnamed | {"twin_of": "a"}}
    assert problems(tmp_path, twin, {"m": ["a"]}) == [f"backends.b {said}"]
    twin = {"a": {"url": URL}, "b": named | {"url": OTHER, "twin_of": "a"}}
    assert problems(tmp_path, twin, {"m": ["a"]}) == [f"backends.a {said}"]
    assert problems(tmp_path, {"a": {"url": URL}, "b": unnamed}, {"m": ["a"], "n": ["b"]}) == []


def test_a_twin_whose_plan_drafts(tmp_path):
    backends = {"a": {"url": URL}, "b": {"plan": plan(tmp_path, method="eagle3"), "twin_of": "a"}}
    said = problems(tmp_path, backends)[-1]
    assert said.startswith("backends.b.twin_of wants a plan without speculation; this one drafts (eagle3)")


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost", "LOCALHOST.", "a.localhost", "127.1", "0x7f000001", "2130706433", "0177.0.0.1"),
        *("[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "[::]"),
    ],
)
@pytest.mark.parametrize("listens", ["127.0.0.1", "0.0.0.0", "localhost", "::1", "::"])
def test_the_router_as_its_own_backend(tmp_path, host, listens):
    server = {"host": listens, "port": 9001}
    (said,) = problems(tmp_path, {"a": {"url": f"http://{host}:9001/v1"}}, server=server)
    assert said == "backends.a is the router itself: its url is where the router listens, port 9001"
    assert problems(tmp_path, {"a": {"url": f"http://{host}:9002"}}, server=server) == []


def test_other_addresses_with_the_port_of_the_router():
    assert not is_place_of("http://192.0.2.7:9001", "127.0.0.1", 9001)
    assert not is_place_of("http://192.0.2.7:9001", "0.0.0.0", 9001)
    assert not is_place_of("http://127.0.0.1:9001", "192.0.2.7", 9001)
    assert not is_place_of("http://no-such-host.invalid:9001", "0.0.0.0", 9001)
    assert is_place_of("http://192.0.2.7:9001", "192.0.2.7", 9001)
    assert is_place_of("http://localhost", "127.0.0.1", 80) and is_place_of("https://localhost", "127.0.0.1", 443)
    assert not is_place_of("http://127.0.0.1:9001", "127.0.0.1", 0)


def test_places():
    assert place_of("http://[::1]:9001") == place_of("http://localhost:9001") == ("127.0.0.1", 9001)
    assert place_of("http://192.0.2.7") == ("192.0.2.7", 80) and place_of("https://Box.example/x") == (
        "box.example",
        443,
    )


def test_a_plan_on_the_port_of_the_router(tmp_path):
    (said,) = problems(tmp_path, {"a": {"plan": plan(tmp_path, 9001)}}, server={"port": 9001})
    assert said == "backends.a is the router itself: the port of its plan is where the router listens, port 9001"


def test_one_server_twice(tmp_path):
    twice = ["backends.b is at 127.0.0.1:9001, as a is; a server is one backend"]
    assert problems(tmp_path, {"a": {"url": URL}, "b": {"url": "http://localhost:9001/v1/"}})[2:] == twice
    assert problems(tmp_path, {"a": {"url": URL, "model": "x"}, "b": {"url": URL, "model": "x"}}) == twice
    assert problems(tmp_path, {"a": {"url": URL, "model": "x"}, "b": {"url": URL, "model": "y"}}) == []  # as Ollama has
    two = {"a": {"url": f"{URL}/x", "model": "x"}, "b": {"url": f"{URL}/y", "model": "x"}}
    assert problems(tmp_path, two) == []  # a proxy before two
    found = problems(tmp_path, {"a": {"plan": plan(tmp_path)}, "b": {"url": "http://localhost:9005", "model": "x"}})
    assert found == ["backends.b is at 127.0.0.1:9005, as a is; a server is one backend"]


def test_one_deployment_twice(tmp_path):
    file = plan(tmp_path)
    found = problems(tmp_path, {"a": {"plan": file}, "b": {"plan": file}})
    assert "backends.b.plan is of the deployment lab, as that of a is" in found


def test_two_plans_with_one_port_of_another_machine(tmp_path):
    nodes = (Node(name="box", ssh="me@box"),)
    one, two = (plan(tmp_path, name=name, nodes=nodes) for name in ("one", "two"))
    found = problems(tmp_path, {"a": {"plan": one, "url": URL}, "b": {"plan": two, "url": OTHER}})
    assert found == ["backends.b.plan wants port 9005 of me@box, as that of a does"]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"role": "embeddings"}, "backends.a.role is embeddings, its plan is for text"),
        ({"engine": "vllm"}, "backends.a.engine is vllm, its plan starts llama.cpp"),
        ({"model": "other"}, "backends.a.model is other, the server of its plan calls it demo"),
    ],
)
def test_a_plan_that_does_not_suit(tmp_path, keys, said):
    found = problems(tmp_path, {"b": {"url": URL}, "a": {"plan": plan(tmp_path), **keys}}, {"m": ["b"], "n": ["a"]})
    assert [text for text in found if text.startswith(said)], found
