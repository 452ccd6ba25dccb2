"""Choices for the tests of emitters, from the names of a box and a head; and a grid of them."""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from eyas.recipes.engines import sglang, vllm
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Box, Choice, Emission, Home, Launch, Node
from eyas.recipes.records import Head, Model

EMITTERS = {"sglang": sglang, "vllm": vllm}
IMAGES = {"sglang": "lmsysorg/sglang:v0.5.21-cu130", "vllm": "vllm/vllm-openai:v0.33.0"}
BOXES = ("spark", "2xspark", "rtx-pro-6000", "h100", "h200", "8xh200", "h800", "b200", "8xb200", "gb200")
HEADS = ("lmsys-120b", "nvidia-long-context", "nvidia-throughput", "nvidia-v3", None)
OTHERS = (("qwen3-235b-a22b-fp4", "qwen3-235b-eagle3"), ("llama-3.3-70b-fp4", None), ("qwen3-coder-30b-a3b", None))
HOSTILE = ("/models/with space", "/models/it's", '/models/"x"', "/models/$HOME/`id`", "/models/x; rm -rf ~", "/m\\n")
PURPOSES = ("chat", "claude-code", "discord", "batch")


class Case(NamedTuple):
    choice: Choice
    box: Box
    model: Model
    head: Head | None

    def emit(self) -> Emission:
        return EMITTERS[self.choice.engine].emit(*self)

    def servers(self) -> list[Launch]:
        return [launch for launch in self.emit().launches if not launch.is_once]


def case(engine: str, box: str, head: str | None = "lmsys-120b", **changes) -> Case:
    """A choice for `box`; `changes` are fields of Choice."""
    known, place = knowledge(), parse_box(box)
    method = known.heads[head].kind if head is not None else "none"
    nodes = tuple(
        Node(name=f"node-{rank}", address=f"192.168.200.{12 + rank}", interfaces=("enp1s0f1np1", "enP2p1s0f1np1"))
        for rank in range(place.nodes)
    )
    fields = {
        "model": "gpt-oss-120b",
        "engine": engine,
        "version": known.engines[engine].version,
        "image": IMAGES[engine],
        "method": method,
        "head": head,
        "draft_tokens": 3 if head is not None else 0,
        "context": 65536,
        "concurrency": 4,
        "memory_fraction": 0.8,
        "tensor_parallel": place.num_gpus,
        "nodes": nodes,
        "port": 8000,
        "cache": Home(".cache/huggingface"),
        "directory": Home(".local/share/eyas/test"),
        "name": "test",
    }
    choice = Choice(**(fields | changes))
    return Case(choice, place, known.models[choice.model], known.heads[head] if head is not None else None)


def grid(engine: str, version: str) -> Iterator[Case]:
    """Boxes, heads and purposes of gpt-oss-120b; other models; local folders; without a container."""
    for box, head, purpose in product(BOXES, HEADS, PURPOSES):
        is_batch = purpose == "batch"
        yield case(
            engine,
            box,
            head,
            version=version,
            purpose=purpose,
            draft_tokens=0 if head is None else 1 if head == "nvidia-throughput" else 3,
            tools=not is_batch,
            kv_dtype="fp8" if is_batch else "auto",
            concurrency=64 if is_batch else 4,
            context=131072 if purpose == "claude-code" else 32768,
            memory_fraction=None if purpose == "discord" else 0.85,
            api_key_env="EYAS_API_KEY" if purpose == "claude-code" else None,
        )
    for box, (model, head) in product(("spark", "2xspark", "b200"), OTHERS):
        if not (
            version in ("0.5.3.post3", "0.5.6") and head is not None
        ):  # it cannot load such a head; see test_sglang.py
            yield case(engine, box, head, version=version, model=model)
    yield case(engine, "h100", version=version, image=None, binary="/opt/venv/bin/python3")
    yield case(engine, "b200", version=version, image=None)
    yield case(engine, "spark", version=version, model_path="/models/it's $HOME", head_path='/models/a "head"')
    yield case(engine, "2xspark", version=version, expert_parallel=2)


def words(launch: Launch) -> list[str]:
    """The words of a launch as an engine would see them, with stand-ins for what only the node knows."""
    return [word if isinstance(word, str) else f"/somewhere/{type(word).__name__}" for word in launch.argv]


def option(launch: Launch, name: str) -> str | None:
    """The value of an option, None if the launch lacks it."""
    found = words(launch)
    return found[found.index(name) + 1] if name in found else None


def env(launch: Launch) -> dict:
    return {variable.name: variable.value for variable in launch.env}
