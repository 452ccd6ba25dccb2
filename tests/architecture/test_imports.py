"""The table of docs/structure.md: which package may import which, and which heavy libraries."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "eyas"
HEAVY = {
    *("torch", "triton", "safetensors", "numpy", "transformers", "scipy"),
    *("starlette", "uvicorn", "aiohttp", "msgspec", "httpx", "openai", "rich", "discord"),
}
MAY_IMPORT = {  # package: (ours, heavy)
    "base": (set(), set()),
    "kernels": (set(), {"torch", "triton"}),
    "model": ({"kernels", "base"}, {"torch", "safetensors", "numpy", "httpx", "gguf"}),  # httpx: the hub's errors
    "engine": ({"model", "kernels", "base"}, {"torch", "numpy", "msgspec"}),
    "train": ({"model", "kernels", "base"}, {"torch", "numpy", "safetensors"}),
    "recipes": ({"base"}, {"msgspec"}),
    "fleet": ({"recipes", "base"}, {"msgspec", "httpx"}),
    "gateway": ({"fleet", "base"}, {"starlette", "uvicorn", "aiohttp", "msgspec"}),
    "bench": ({"base"}, {"aiohttp", "rich"}),
    "discord": ({"base"}, {"discord"}),
}
ROOTS = {"__init__", "__main__", "cli", "serve", "chat", "generate", "local", "terminal", "key"}
BENCH_INSIDE_FUNCTIONS = {"engine", "model", "kernels", "local"}  # the offline benchmarks load an engine when they run


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports(tree: ast.AST, *, inside_function: bool = False):
    """(dotted name, whether inside a function) of every import that can run."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, inside_function) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "eyas" else [node.module]
            yield from ((name, inside_function) for name in names)
        elif not is_type_checking(node):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from imports(node, inside_function=inside_function or is_function)


FILES = sorted(path for path in SRC.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SRC)))
def test_imports_follow_the_table(path):
    parts = path.relative_to(SRC).parts
    package = parts[0] if len(parts) > 1 else path.stem
    for name, inside in imports(ast.parse(path.read_text())):
        if name == "eyas":  # the package's own names, which load nothing
            continue
        top, _, rest = name.partition(".")
        ours = rest.split(".")[0] if top == "eyas" else None
        if package in ROOTS:
            is_light = ours in ROOTS | {"base", "__version__"} if ours else top not in HEAVY
            assert is_light or inside, f"{name} belongs inside a function here"
            continue
        allowed, heavy = MAY_IMPORT[package]
        if ours:
            is_late = package == "bench" and inside and ours in BENCH_INSIDE_FUNCTIONS
            assert ours == package or ours in allowed or is_late, f"{package} may not import {name}"
        elif top in HEAVY:
            assert top in heavy, f"{package} may not import {name}"


def test_every_file_belongs_to_the_table():
    tops = {path.relative_to(SRC).parts[0].removesuffix(".py") for path in FILES}
    assert tops <= set(MAY_IMPORT) | ROOTS


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import torch.nn", [("torch.nn", False)]),
        ("from eyas import model", [("eyas.model", False)]),
        ("from eyas.model.x import y", [("eyas.model.x", False)]),
        ("def f():\n if 1:\n  import torch", [("torch", True)]),
        ("class A:\n import torch", [("torch", False)]),
        ("try:\n import torch\nexcept ImportError: pass", [("torch", False)]),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n import torch", [("typing", False)]),
    ],
)
def test_the_reader_of_imports_sees_them_all(code, expected):
    assert list(imports(ast.parse(code))) == expected
