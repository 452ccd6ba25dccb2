"""Collects what the demo model knows: public names of the standard library with the first sentence of their docstring.

The result, `facts.json`, is committed, so that training does not depend on the interpreter that runs it.
Run `python tools/demo/facts.py` to rebuild it; it was built with CPython 3.11.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["FACTS_PATH", "Fact", "load_facts"]

FACTS_PATH = Path(__file__).with_name("facts.json")

# In order of fame: a bare name that several modules share belongs to the first of them.
_MODULES = """
builtins os os.path shutil json re math random datetime time collections itertools functools pathlib csv
textwrap string statistics copy operator bisect heapq subprocess threading tempfile glob fnmatch pprint hashlib
base64 urllib.parse urllib.request contextlib dataclasses enum logging argparse sys io struct zlib gzip zipfile
tarfile pickle sqlite3 socket secrets uuid decimal fractions calendar difflib inspect traceback warnings queue
asyncio concurrent.futures multiprocessing configparser getpass platform shlex html unicodedata locale array
weakref types typing ast dis tokenize importlib pkgutil timeit cProfile unittest doctest pdb gc atexit signal
select selectors http.server http.client email.utils smtplib xml.etree.ElementTree hmac binascii bz2 lzma
mimetypes fileinput filecmp linecache abc numbers cmath keyword reprlib graphlib zoneinfo colorsys ipaddress
webbrowser sched contextvars tomllib html.parser urllib.robotparser http.cookies wave plistlib netrc shelve
gettext cmd tracemalloc venv runpy ftplib
"""
MODULES = tuple(_MODULES.split())

BUILTIN_TYPES = ("str", "list", "dict", "set")
TYPES_WITH_METHODS = {
    "pathlib": ("Path",),
    "datetime": ("datetime",),
    "collections": ("Counter", "deque"),
    "threading": ("Thread", "Event"),
    "subprocess": ("Popen",),
    "queue": ("Queue",),
    "zipfile": ("ZipFile",),
    "argparse": ("ArgumentParser",),
    "configparser": ("ConfigParser",),
    "difflib": ("SequenceMatcher",),
    "csv": ("DictWriter", "Sniffer"),
}
OBSCURE = re.compile(
    r"W[A-Z]+$|sched_|setres|getres|posix_spawn|TIPC|CAN_|v4_|v6_|[gs]et[er]?[ug]id|p(?:read|write)v?$|plock$|memfd|eventfd"
)
MAX_SENTENCE = 190
MIN_SENTENCE = 12


@dataclass(frozen=True, slots=True)
class Fact:
    """A documented name. `path` is what one would type after `import module`, `owner` the class of a method."""

    module: str
    name: str  # "copytree", or "Path.exists" for a method
    kind: str  # function, class, exception, method, module
    sentence: str
    primary: bool  # the bare name means this fact

    @property
    def bare(self) -> str:
        return self.name.rsplit(".", 1)[-1]

    @property
    def path(self) -> str:
        if self.kind == "module":
            return self.module
        return self.name if self.module == "builtins" else f"{self.module}.{self.name}"


def load_facts(path: Path = FACTS_PATH) -> list[Fact]:
    rows = json.loads(path.read_text(encoding="ascii"))["facts"]
    return [Fact(module, name, kind, sentence, bool(primary)) for module, name, kind, sentence, primary in rows]


def without_signature(doc: str, name: str) -> str:
    """The docstring without the lines (or the head of a line) that repeat how the function is called."""
    lines = inspect.cleandoc(doc).splitlines()
    while lines and re.match(r"^[\w.]+\(.*\)\s*(?:-+>.*)?:?$|^-+>|^$", lines[0].strip()):
        lines.pop(0)
    text = "\n".join(lines)
    return re.sub(rf"^(?:[A-Za-z_]+\.)*{re.escape(name)}\([^)\n]*\)\s*(?:->\s*[^.\n]*?)?\s*(?:--?|:|=)\s+", "", text)


def first_sentence(doc: str | None, name: str) -> str | None:
    """The first sentence of a docstring, signature lines skipped, or None where there is none worth knowing."""
    if not isinstance(doc, str):
        return None
    for paragraph in re.split(r"\n\s*\n", without_signature(doc, name))[:2]:
        match = re.match(r"(.*?(?<!e\.g)(?<!i\.e)[.!])(?:  |\s+[A-Z(`'\"@]|$)", paragraph, re.DOTALL)
        text = " ".join((match.group(1) if match else paragraph).split()).rstrip(":;")
        text = text if text.endswith((".", "!")) else text + "."
        if is_usable(text):
            return text[0].upper() + text[1:]
    return None


def is_usable(text: str) -> bool:
    """Whether a sentence is short, plain and complete enough to be learnt and quoted."""
    if not MIN_SENTENCE <= len(text) <= MAX_SENTENCE or not text.isascii() or " " not in text or not text[0].isalpha():
        return False
    if re.search(r"->|[<>\\=]|^An? (?:generic version|enumeration)|>>>|%\(|[\[({]\.$|\bi\.e\.$|\bvs\.$", text):
        return False
    return text.count("(") == text.count(")") and text.count("[") == text.count("]") and text.count('"') % 2 == 0


def kind_of(value: Any) -> str | None:
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    return "function" if callable(value) and hasattr(value, "__name__") else None


def members(module: Any) -> Iterator[tuple[str, Any]]:
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    for name in names:
        value = getattr(module, name, None)
        home = getattr(value, "__module__", None) or module.__name__
        root = module.__name__.split(".")[0]
        foreign = (
            not hasattr(module, "__all__")
            and module.__name__ != "builtins"
            and home.lstrip("_").split(".")[0] not in (root, "builtins", "posix", "nt")
        )
        if not name.startswith("_") and not foreign:
            yield name, value


def own_methods(owner: type) -> Iterator[tuple[str, Any]]:
    for name in dir(owner):
        value = getattr(owner, name, None)
        if not name.startswith("_") and callable(value) and not inspect.isclass(value):
            yield name, value


def collect() -> list[Fact]:
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        doc = first_sentence(module.__doc__, module_name)
        if doc:
            found[module_name, module_name] = ("module", doc)
        owners = BUILTIN_TYPES if module_name == "builtins" else TYPES_WITH_METHODS.get(module_name, ())
        for name, value in members(module):
            kind, doc = kind_of(value), first_sentence(getattr(value, "__doc__", None), name)
            if OBSCURE.match(name):
                continue
            if (
                kind
                and doc
                and not doc.startswith(("Built-in mutable", "Inappropriate"))
                and name not in ("copyright", "credits")
            ):
                found[module_name, name] = (kind, doc)
        for owner in owners:
            for name, value in own_methods(getattr(module, owner)):
                doc = first_sentence(getattr(value, "__doc__", None), name)
                if doc:
                    found[module_name, f"{owner}.{name}"] = ("method", doc)
    seen: set[str] = set()
    facts = []
    ordered = sorted(
        found.items(), key=lambda item: item[1][0] == "method"
    )  # stable: a function's name beats a method's
    for (module_name, name), (kind, doc) in ordered:
        bare = name.rsplit(".", 1)[-1].lower()
        facts.append(Fact(module_name, name, kind, doc, kind == "module" or bare not in seen))
        seen.add(bare)
    return facts


def main() -> None:
    facts = collect()
    rows = ",\n".join(
        json.dumps([fact.module, fact.name, fact.kind, fact.sentence, int(fact.primary)]) for fact in facts
    )
    FACTS_PATH.write_text('{"facts": [\n' + rows + "\n]}\n", encoding="ascii")
    print(f"{len(facts)} facts, {FACTS_PATH.stat().st_size} bytes")


if __name__ == "__main__":
    main()
