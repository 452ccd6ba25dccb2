"""Reads the imports of source files: what is imported, where in the file, and for typing only or not."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Import(NamedTuple):
    """`name` is dotted; `is_late` inside a function, `is_typing` under `if TYPE_CHECKING`."""

    name: str
    is_late: bool = False
    is_typing: bool = False


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports(tree: ast.AST, *, is_late: bool = False, is_typing: bool = False) -> Iterator[Import]:
    """Every import below `tree`. `from eyas.x import y` gives eyas.x.y: a module, or a name in eyas.x."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, is_late, is_typing) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, "imports are absolute"
            is_ours = node.module.split(".")[0] == "eyas"
            names = [f"{node.module}.{alias.name}" for alias in node.names] if is_ours else [node.module]
            yield from (Import(name, is_late, is_typing) for name in names)
        elif is_type_checking(node):
            assert isinstance(node, ast.If)
            yield from imports(ast.Module(node.body, []), is_late=is_late, is_typing=True)
            yield from imports(ast.Module(node.orelse, []), is_late=is_late, is_typing=is_typing)
        else:
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from imports(node, is_late=is_late or is_function, is_typing=is_typing)


class House:
    """The source files below a folder, by module name without the leading "eyas."."""

    def __init__(self, root: Path) -> None:
        self.files: dict[str, Path] = {}
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            self.files[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
        self.imports = {name: list(imports(ast.parse(path.read_text()))) for name, path in self.files.items()}

    def module_of(self, name: str) -> str | None:
        """The module of ours that an imported name is or stands in, None for others'."""
        top, _, rest = name.partition(".")
        if top != "eyas":
            return None
        if rest in self.files:
            return rest
        module = rest.rpartition(".")[0]
        return module if module in self.files else "__init__"

    def edges(self) -> dict[str, set[str]]:
        """Module -> modules of ours that it imports, anywhere in the file and for any reason."""
        return {
            name: {module for item in found if (module := self.module_of(item.name)) is not None} - {name}
            for name, found in self.imports.items()
        }


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components with more than one node (Tarjan, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found
