"""Words on how to install the program of a native engine on a box: for llama.cpp the build, with the box's GPU."""

from __future__ import annotations

from eyas.recipes.plan import Box, Choice
from eyas.recipes.records import METAL, Engine

__all__ = ["how_to_install"]

LLAMA_CPP = "https://github.com/ggml-org/llama.cpp"
PROGRAMS = "to your PATH, or plan with --binary"


def how_to_install(choice: Choice, engine: Engine, box: Box) -> str:
    """Return the commands, or where to find them, in one line."""
    if choice.engine == "llama.cpp":
        return _llama_cpp(box)
    if choice.engine == "ollama":
        is_mac = box.hardware.compute_capability == METAL
        command = "brew install ollama" if is_mac else "curl -fsSL https://ollama.com/install.sh | sh"
        return f"install it with: {command}"
    if choice.engine == "eyas":
        return "install its wheel: pip install eyas-*.whl"
    command = f"pip install {choice.engine}=={choice.version}"
    return f"install {engine.title} {choice.version}: {command}, or plan without --native"


def _llama_cpp(box: Box) -> str:
    if box.hardware.compute_capability == METAL:
        return f"install it with: brew install llama.cpp, or build it: {_build(['-DGGML_METAL=ON'])}"
    options = ["-DGGML_NATIVE=ON"]
    if box.hardware.is_cuda:
        options = ["-DGGML_CUDA=ON", *options, f"-DCMAKE_CUDA_ARCHITECTURES={_architecture(box)}"]
    return f"build it: {_build(options)}; then add llama.cpp/build/bin {PROGRAMS} llama.cpp/build/bin/llama-server"


def _build(options: list[str]) -> str:
    make = "cmake --build build --config Release -j --target llama-server"
    return f"git clone {LLAMA_CPP} && cd llama.cpp && cmake -B build {' '.join(options)} && {make}"


def _architecture(box: Box) -> str:
    """Name the GPU as nvcc does; from 12.0 on with what only that GPU has: kernels for MXFP4 use it."""
    major, _, minor = box.hardware.compute_capability.partition(".")
    return f"{major}{minor}{'a' if int(major) >= 12 else ''}-real"
