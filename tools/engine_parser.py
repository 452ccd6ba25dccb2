"""Asks an engine's own argument parser, from the unpacked package, on a machine that cannot run the engine.

Run as `python engine_parser.py sglang|vllm FOLDER`, a process per package. It reads one JSON list of words per line
and answers each with one JSON line: the parsed values, or the error that the parser gives. `["?options"]` lists the
options; `["?speculative", JSON]` and `["?config", CLASS, JSON]` ask vLLM's config classes, `["?parsers"]` lists its
parsers of output. Modules that cannot be had without a GPU are replaced by empty stand-ins: the argument definitions
are the engine's own, what comes after is not reached.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.abc
import importlib.machinery
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any


class Anything(type):
    """A class that any attribute, call, subscript or operator of leads to again; usable as base, type and decorator."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        is_decorating = len(args) == 1 and not kwargs and callable(args[0])
        return args[0] if is_decorating else cls

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__

    def __iter__(cls) -> Any:
        return iter(())

    def __lt__(cls, other: Any) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__


class Nothing(metaclass=Anything):
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return {"type": "any"}


class StandIn(ModuleType):
    __path__ = ()
    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last on the path of finders: gives an empty module for what code in `folder` imports and is not installed.

    Libraries that look for optional companions, and code that only asks whether a module exists, get the truth.
    """

    def __init__(self, folder: str, own: str) -> None:
        self.folder = folder
        self.own = own
        self.names: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or (top == self.own and not name.startswith("vllm._")):
            return None
        if name.rpartition(".")[0] not in self.names and not self._is_wanted():
            return None
        self.names.add(name)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def _is_wanted(self) -> bool:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            if frame.f_code.co_name == "find_spec" and frame.f_code.co_filename.endswith("util.py"):
                return False
            frame = frame.f_back
        return frame is not None and frame.f_code.co_filename.startswith(self.folder)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def sglang_parser() -> argparse.ArgumentParser:
    import transformers

    # Newer releases of transformers know some of the models that SGLang registers.
    transformers.AutoConfig.register = lambda *args, **kwargs: None
    sys.modules["sglang.srt.layers.attention.fla.chunk_delta_h"] = StandIn("chunk_delta_h")  # asks for a device
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(prog="sglang")
    ServerArgs.add_cli_args(parser)
    return parser


def vllm_parser() -> argparse.ArgumentParser:
    import vllm.platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform

    vllm.platforms._current_platform = NonNvmlCudaPlatform()
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    for place in ("common", "launchers", "openai"):  # from the newest to the oldest
        with contextlib.suppress(ModuleNotFoundError):
            definitions = importlib.import_module(f"vllm.entrypoints.{place}.cli_args")
            break
    parser: argparse.ArgumentParser = FlexibleArgumentParser(prog="vllm")
    commands = parser.add_subparsers(required=True, dest="subparser")
    definitions.make_arg_parser(commands.add_parser("serve"))
    return parser


def with_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser itself, or that of `vllm serve`."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            serve: argparse.ArgumentParser = action.choices["serve"]
            return serve
    return parser


def answer(parser: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, Any]:
    if words[0] == "?options":
        return {"options": sorted(with_options(parser)._option_string_actions)}
    if words[0] == "?speculative":
        return {"error": speculative_error(json.loads(words[1]))}
    if words[0] == "?parsers":
        from vllm.reasoning import ReasoningParserManager
        from vllm.tool_parsers import ToolParserManager

        managers = {"reasoning": ReasoningParserManager, "tools": ToolParserManager}
        return {kind: sorted(manager.list_registered()) for kind, manager in managers.items()}
    if words[0] == "?config":
        return {"error": config_error(words[1], json.loads(words[2]))}
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            values = vars(parser.parse_args(list(words)))
    except (SystemExit, ValueError) as error:
        lines = said.getvalue().strip().splitlines()
        return {"error": lines[-1] if lines else str(error)}
    return {"error": None, "values": values}


def speculative_error(settings: dict[str, Any]) -> str | None:
    """Return what is wrong with a speculative config by the fields of vLLM's own class and their types."""
    from pydantic import TypeAdapter, ValidationError
    from vllm.config import SpeculativeConfig

    fields = SpeculativeConfig.__dataclass_fields__
    for name, value in settings.items():
        if name not in fields:
            return f"no field {name}"
        try:
            TypeAdapter(fields[name].type).validate_python(value)
        except ValidationError as error:
            return f"{name}: {error}"
    return None


def config_error(name: str, settings: dict[str, Any]) -> str | None:
    """Return what another of vLLM's config classes says when it is made of `settings`."""
    import vllm.config

    try:
        getattr(vllm.config, name)(**settings)
    except Exception as error:
        return str(error) or repr(error)
    return None


def main() -> None:
    engine, folder = sys.argv[1], str(Path(sys.argv[2]).resolve())
    sys.path.insert(0, folder)
    sys.meta_path.append(StandIns(folder, engine))
    with contextlib.redirect_stdout(sys.stderr):
        parser = {"sglang": sglang_parser, "vllm": vllm_parser}[engine]()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(parser, json.loads(line)), default=str), flush=True)


if __name__ == "__main__":
    main()
