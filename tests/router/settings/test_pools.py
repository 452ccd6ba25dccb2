"""What a file says of memory: read, and refused where it cannot be."""

import msgspec
import pytest
from tests.fleet.support.lab import make_plan, write_plan
from tests.router.support.files import read

from eyas.recipes.plan import Launch, Node
from eyas.router.settings.reader import examine
from eyas.router.settings.rest import at_rest
from eyas.router.settings.schema import MemorySettings, PoolSettings

GIB = 1 << 30


def plan(folder, name, port, **choice):
    made = make_plan(folder / name, port, [Launch(name="server", argv=("true",))], name=name)
    made = msgspec.structs.replace(made, choice=msgspec.structs.replace(made.choice, **choice))
    return str(write_plan(folder / f"{name}.yaml", made))


def write(folder, backends, pools=None, **rest):
    """A file of backends a, b, ... with plans and these keys; each has a model of its own."""
    entries = {
        name: {"plan": plan(folder, name, 9100 + at), "memory": "10GiB"} | more
        for at, (name, more) in enumerate(backends.items())
    }
    pools = {"box": {"kind": "size", "size": "100GiB"}} if pools is None else pools
    content = {"pools": pools, "backends": entries, "models": {name: [name] for name in entries}, **rest}
    path = folder / "router.yaml"
    path.write_bytes(msgspec.json.encode(content))
    return path


def problems(folder, backends, pools=None, **rest):
    return list(examine(write(folder, backends, pools, **rest), {}).problems)


def test_what_is_read(tmp_path):
    large = {"memory": "60GiB", "peak": "70GiB", "pinned": True, "exclusive": True, "priority": "critical"}
    path = write(tmp_path, {"a": large, "b": {}}, pressure={"warning": 60, "critical": 85, "drain": 5, "wait": 60})
    found = read(path, {})
    assert found.pools == (PoolSettings(name="box", kind="size", size=100 * GIB),)
    assert found.memory == MemorySettings(warning=0.6, critical=0.85, emergency=0.9, drain_s=5.0, wait_s=60.0)
    a, b = found.backends
    assert (a.pool, a.priority, a.is_exclusive, a.is_pinned) == ("box", "critical", True, True)
    assert (a.steady_bytes, a.peak_bytes) == (60 * GIB, 70 * GIB)
    assert (b.pool, b.priority, b.is_exclusive, b.is_pinned) == ("box", "normal", False, False)
    assert (b.steady_bytes, b.peak_bytes) == (10 * GIB, 10 * GIB)
    (rest,) = at_rest(found, {})
    assert (rest.rows, rest.used, rest.limit) == ((("a", 60 * GIB),), 60 * GIB, 85 * GIB)


@pytest.mark.parametrize(
    ("backends", "said"),
    [
        ({"a": {"pool": "bix"}}, "backends.a.pool: no pool 'bix' (did you mean 'box'?)"),
        ({"a": {"priority": "high"}}, "backends.a.priority"),
        ({"a": {"pinned": "yes"}}, "backends.a.pinned wants true or false, got 'yes'"),
        ({"a": {"memory": "10"}}, "backends.a.memory wants a size above 0 such as 90GiB or 512MiB, got '10'"),
        ({"a": {"memory": "80%"}}, "backends.a.memory wants a size above 0"),
        ({"a": {"memory": "0GiB"}}, "backends.a.memory wants a size above 0"),
        ({"a": {"peak": "5GiB"}}, "backends.a.peak is less than memory"),
        ({"others": {}}, "backends.others is what figures of memory call all that no backend holds"),
        (
            {"a": {"pinned": True, "exclusive": True}, "b": {"pinned": True, "exclusive": True}},
            "pools.box has two backends that are pinned and exclusive: a and b",
        ),
        (
            {"a": {"pinned": True, "memory": "50GiB"}, "b": {"memory": "40GiB"}},
            "backends.b can never be loaded: it takes 40.00 GiB, and at most 30.00 GiB is left for it",
        ),
        (
            {"a": {"memory": "50GiB", "peak": "95GiB"}},
            "backends.a can never be loaded: it takes up to 95.00 GiB while it loads, and at most 90.00 GiB is left",
        ),
        (
            {"a": {"pinned": True, "memory": "50GiB"}, "b": {"pinned": True, "memory": "40GiB"}},
            "pools.box is above critical at rest (80% of 100.00 GiB = 80.00 GiB): a 50.00 GiB + b 40.00 GiB",
        ),
    ],
)
def test_backends_that_cannot_be(tmp_path, backends, said):
    found = problems(tmp_path, backends)
    assert any(text.startswith(said) for text in found), found


@pytest.mark.parametrize(
    ("pools", "pressure", "said"),
    [
        ({"box": {"kind": "disk"}}, {}, "pools.box.kind"),
        ({"box": {"kind": "size"}}, {}, "pools.box is of the kind size and wants one, such as size: 90GiB"),
        ({"box": {"kind": "size", "size": "1GiB", "gpu": 1}}, {}, "pools.box.gpu does not go with the kind size"),
        ({"box": {"size": "4 GiB", "sise": 3}}, {}, "pools.box.sise: unknown key (did you mean 'size'?)"),
        ({"two": {}, "box": {}}, {}, "pools.two has no backend; a backend with a plan names its pool"),
        (None, {"critical": 95}, "pressure wants warning, critical and emergency in this order"),
        (None, {"warning": 0.7}, "pressure.warning wants percent from 1 to 100, got 0.7"),
        (None, {"drain": -1}, "pressure.drain wants seconds from 0 to 86400, got -1"),
    ],
)
def test_pools_that_cannot_be(tmp_path, pools, pressure, said):
    found = problems(tmp_path, {"a": {}}, pools, pressure=pressure)
    assert any(text.startswith(said) for text in found), found


def test_a_backend_in_no_pool_and_one_elsewhere(tmp_path):
    found = problems(tmp_path, {"a": {"pinned": True}}, {})
    assert "backends.a.pinned is said of a backend in no pool; name one: pool: NAME" in found
    path = write(tmp_path, {"a": {}})
    far = make_plan(tmp_path / "far", 9100, [Launch(name="server", argv=("true",))], name="a",
                    nodes=(Node(name="far", ssh="me@far"),), listen="0.0.0.0", api_key_env="K")  # fmt: skip
    write_plan(tmp_path / "a.yaml", far)
    found = examine(path, {"K": "k"}).problems
    assert "backends.a runs on another machine, whose memory is not that of the pool box" in found


def test_a_plan_that_cannot_be_read_is_all_that_is_wrong(tmp_path):
    said = problems(tmp_path, {"a": {"plan": "absent.yaml", "pinned": True, "exclusive": True}})
    assert len(said) == 1 and "cannot read" in said[0] and "absent.yaml" in said[0]
