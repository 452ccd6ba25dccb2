"""The order of `rooms.py` holds: between packages, between the rooms of a package, and between files."""

import ast
from pathlib import Path

import pytest
from tests.architecture.imports import House, Import, circles, imports
from tests.architecture.rooms import LATE_TOP, PACKAGES, TOP

SRC = Path(__file__).parents[2] / "src" / "eyas"
HEAVY = {
    *("torch", "triton", "safetensors", "numpy", "transformers", "scipy"),
    *("starlette", "uvicorn", "aiohttp", "msgspec", "httpx", "openai", "rich", "discord", "gguf"),
}


@pytest.fixture(scope="module")
def eyas_house():
    """The real one. Read once by the worker that asks for it, not by each that collects these tests."""
    return House(SRC)


def floor_of(module: str) -> tuple[int, str]:
    """The floor and the room of a module in its package."""
    package, *parts = module.split(".")
    floors = PACKAGES[package].floors
    room = parts[0] if parts else ""
    for number, rooms in enumerate(floors, start=1):
        if room in rooms:
            return number, room
    assert len(parts) <= 1, f"{module}: no floor of {package} in tests/architecture/rooms.py has the room '{room}'"
    return 0, ""


def wrong(house: House, module: str) -> list[str]:
    """What a module imports against the order of the house."""
    package = module.split(".")[0]
    if package not in PACKAGES:
        return [text for item in house.imports[module] if (text := wrong_at_top(house, module, item))]
    found = []
    libraries = set(PACKAGES[package].libraries)
    if module in PACKAGES[package].through:
        libraries = libraries.union(*(PACKAGES[other].libraries for other in PACKAGES[package].late))
    for item in house.imports[module]:
        ours = house.module_of(item.name)
        top = item.name.split(".")[0]
        if ours is None:
            if top in HEAVY and top not in libraries:
                found.append(f"{package} may not import {item.name}")
        elif ours == "__init__":  # the package's own names, which load nothing
            continue
        elif (other := ours.split(".")[0]) != package:
            is_late = other in PACKAGES[package].late and module in PACKAGES[package].through
            if other not in PACKAGES[package].imports and not is_late and not (item.is_late and other in TOP):
                found.append(f"{package} may not import {item.name}")
        else:
            (floor, room), (below, its) = floor_of(module), floor_of(ours)
            is_package = ours.count(".") == 0  # its __init__, which holds nothing
            through = PACKAGES[package].through
            if ours in through and module not in through and not (item.is_late or item.is_typing):
                found.append(f"{ours} loads torch: import it inside a function of {module}")
            if room != its and not below < floor and not is_package:
                found.append(f"{module} (room '{room}', floor {floor}) may not import {ours} ('{its}', floor {below})")
    return found


def wrong_at_top(house: House, module: str, item: Import) -> str | None:
    ours = house.module_of(item.name)
    if module in LATE_TOP:
        is_right = ours is None or ours == "__init__" or ours.split(".")[0] in LATE_TOP[module]
    elif ours is None:
        is_right = item.is_late or item.is_typing or item.name.split(".")[0] not in HEAVY
    else:
        is_right = item.is_late or item.is_typing or ours.split(".")[0] in {*TOP, "base"}
    return None if is_right else f"{item.name} belongs inside a function of {module}"


def test_imports_follow_the_order(eyas_house):
    assert not {module: found for module in eyas_house.files if (found := wrong(eyas_house, module))}


def test_every_file_has_its_place(eyas_house):
    tops = {module.split(".")[0] for module in eyas_house.files}
    assert tops == {*PACKAGES, *TOP, *LATE_TOP}
    for package, rooms in PACKAGES.items():
        known = {module.split(".")[1] for module in eyas_house.files if module.startswith(f"{package}.")}
        named = [room for floor in rooms.floors for room in floor]
        assert len(set(named)) == len(named) and set(named) <= known, f"{package}: a floor names what is not there"


def test_no_two_files_import_each_other(eyas_house):
    assert not circles({module: found - {"__init__"} for module, found in eyas_house.edges().items()})


@pytest.mark.parametrize(("package", "room", "folder"), [(p, *pair) for p in PACKAGES for pair in PACKAGES[p].loads])
def test_modules_loaded_by_name_are_below(package, room, folder):
    assert floor_of(f"{package}.{folder}.x")[0] < floor_of(f"{package}.{room}.x")[0]


LOADERS = {  # who makes up the name of a module at run time, and where it looks
    "cli": "eyas.",
    "fleet.commands.plan": "eyas.recipes.emit.",
    "recipes.planning.candidates": "eyas.recipes.engines.",
}


def test_modules_loaded_by_name_are_listed(eyas_house):
    assert {name for name, path in eyas_house.files.items() if "import_module(" in path.read_text()} == set(LOADERS)


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("model/x.py", "import eyas.engine.round.types"),
        ("gateway/http/x.py", "import torch"),
        ("engine/round/x.py", "from eyas.engine.step.core import EngineCore"),
        ("engine/drafters/x.py", "from eyas.engine.sampling import sampler"),
        ("engine/round/x.py", "def f():\n    from eyas.engine.step import core"),
        ("engine/round/x.py", "if TYPE_CHECKING:\n    from eyas.engine.step.core import EngineCore"),
        ("serve.py", "import eyas.engine.step.core"),
    ],
)
def test_a_wrong_import_fails(tmp_path, eyas_house, file, code):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)
    house = House(tmp_path)
    house.files |= eyas_house.files | house.files
    assert wrong(house, file.removesuffix(".py").replace("/", "."))


@pytest.mark.parametrize("code", ["from eyas.a.two import f", "if TYPE_CHECKING:\n    import eyas.a.two"])
def test_a_circle_of_files_fails(tmp_path, code):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/one.py").write_text(code)
    (tmp_path / "a/two.py").write_text("def f():\n    from eyas.a import one")
    assert circles(House(tmp_path).edges()) == [["a.one", "a.two"]]


def test_a_circle_of_folders_fails(tmp_path):
    """One of the two directions is always against the order."""
    for name, code in (("round/x", "import eyas.engine.step.x"), ("step/x", "import eyas.engine.round.x")):
        path = tmp_path / f"engine/{name}.py"
        path.parent.mkdir(parents=True)
        path.write_text(code)
    house = House(tmp_path)
    assert [bool(wrong(house, module)) for module in ("engine.round.x", "engine.step.x")] == [True, False]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import torch.nn", [Import("torch.nn")]),
        ("from eyas import model", [Import("eyas.model")]),
        ("from eyas.model.x import y", [Import("eyas.model.x.y")]),
        ("def f():\n if 1:\n  import torch", [Import("torch", is_late=True)]),
        ("class A:\n import torch", [Import("torch")]),
        ("try:\n import torch\nexcept ImportError: pass", [Import("torch")]),
        ("if TYPE_CHECKING:\n import torch\nelse:\n import numpy", [Import("torch", is_typing=True), Import("numpy")]),
    ],
)
def test_the_reader_of_imports_sees_them_all(code, expected):
    assert list(imports(ast.parse(code))) == expected
