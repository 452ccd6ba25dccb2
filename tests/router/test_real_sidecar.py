"""A real embeddings model beside a chat model: both llama-server, in one pool, asked with OpenAI's own library."""

import asyncio
import json
import math

import msgspec
import openai
import pytest
import yaml
from tests.fleet.support.lab import free_port
from tests.router.support.pooled import pooled

from eyas import cli
from eyas.base.bundled import DEMO
from eyas.fleet.preflight.plan_file import read_plan
from eyas.model.gguf.export import export_target
from tools import llama_server as tool

TEXTS = [  # the demo model never learnt to embed: only what is nearly the same is near
    "A young eagle sat on the roof of the old house.",
    "A young eagle sat on the roof of the old barn.",
    "Seventeen screws and 3.5 kg of nails cost 12 euros",
]


def plan_of(folder, role):
    """A plan of the demo model in a role, with a GGUF that is there."""
    argv = ["plan", "demo", "--engine", "llama.cpp", "--native", "--spec", "none", "--role", role, "--name", role]
    argv += ["--binary", str(tool.binary()), "--port", str(free_port()), "--emit", "plan", "--out", str(folder)]
    assert cli.main(argv) == 0
    file = folder / f"{role}.yaml"
    plan = read_plan(file)
    server = plan.emission.launches[-1]
    words = tuple(
        str(folder / "demo.gguf") if at and server.argv[at - 1] == "-m" else word for at, word in enumerate(server.argv)
    )
    emission = msgspec.structs.replace(plan.emission, launches=(msgspec.structs.replace(server, argv=words),))
    file.write_text(yaml.safe_dump(json.loads(msgspec.json.encode(msgspec.structs.replace(plan, emission=emission)))))
    return str(file)


@pytest.mark.engines
def test_embeddings_beside_a_chat_model(lab):
    lab.limit(grace_s=10.0)
    export_target(DEMO, lab.tmp / "demo.gguf", weights="f32", name="demo")
    config = {
        "pools": {"box": {"kind": "size", "size": "8GiB"}},
        "backends": {"chat": {"plan": plan_of(lab.tmp, "text")}, "vectors": {"plan": plan_of(lab.tmp, "embeddings")}},
        "models": {"demo": ["chat"], "embed": ["vectors"]},
    }
    path = lab.tmp / "router.yaml"
    path.write_text(yaml.safe_dump(config))

    async def main():
        async with pooled(path) as box:
            client = openai.AsyncOpenAI(base_url=f"{box.url}/v1", api_key="none", timeout=120)
            async with client:
                found = await client.embeddings.create(model="embed", input=TEXTS)
                chat = await client.chat.completions.create(
                    model="demo", messages=[{"role": "user", "content": "Name a bird."}], max_tokens=8
                )
            vectors = [one.embedding for one in found.data]
            assert len(vectors) == 3 and len({len(one) for one in vectors}) == 1
            assert all(math.isfinite(value) for one in vectors for value in one)
            assert cosine(vectors[0], vectors[1]) > cosine(vectors[0], vectors[2])
            assert chat.choices[0].message is not None and chat.usage.completion_tokens > 0
            assert box.loaded() == {"chat", "vectors"}
            (pool,) = box.router.orchestrator.status()
            held = {one.backend: one.used for one in pool.members}
            assert min(held.values()) > 20 << 20 and pool.used == sum(held.values())
            print("\n", {name: f"{used / 2**20:.0f} MiB" for name, used in held.items()})

    asyncio.run(main())


def cosine(one, other):
    return sum(a * b for a, b in zip(one, other, strict=True)) / math.hypot(*one) / math.hypot(*other)
