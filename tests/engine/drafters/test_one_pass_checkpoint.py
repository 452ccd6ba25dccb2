"""A head of another kind in a folder: two registrations, and it is loaded, described and refused like EAGLE-3."""

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tests.engine.support.exactness import random_prompts, run
from tests.engine.support.one_pass import ONE_PASS, OnePassDrafter, one_pass_head, save_one_pass

from eyas.base.bundled import DEMO
from eyas.base.errors import UserError
from eyas.base.settings.config import EngineConfig
from eyas.base.types import Request, SamplingParams
from eyas.bench.engine.arms import Arm
from eyas.bench.engine.limit import round_limit
from eyas.bench.engine.rounds import Acceptance
from eyas.cli import main
from eyas.engine.drafters.registry import DRAFTERS
from eyas.engine.ports.threaded import Engine
from eyas.engine.round.stages import Stages
from eyas.engine.startup import load
from eyas.model.checkpoints.head_kinds import HEAD_KINDS
from eyas.model.gguf.export import export_head
from eyas.model.making.make import make_target
from eyas.model.making.presets import PRESETS
from eyas.model.weights import num_bytes, tensors_of


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A random target and a head for it; a head for the bundled model."""
    folder = tmp_path_factory.mktemp("one-pass")
    make_target(PRESETS["tiny"], folder / "target", seed=1)
    save_one_pass(one_pass_head(PRESETS["tiny"]), folder / "head")
    save_one_pass(one_pass_head(load.inspect_target(DEMO)[0]), folder / "demo-head")
    return folder


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """All that eyas knows of it."""
    monkeypatch.setitem(DRAFTERS, "one-pass", OnePassDrafter)
    monkeypatch.setitem(HEAD_KINDS, "one-pass", ONE_PASS)


def settings(folders, **changes):
    values = {"model": str(folders / "target"), "draft": str(folders / "head"), "device": "cpu", "draft_tokens": 4}
    return EngineConfig(**values | changes)


def complaint(call, *args, **options):
    with pytest.raises(UserError) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.slow
def test_a_folder_drafts_as_the_head_in_memory(folders, monkeypatch):
    drafts = []

    class Recorder(OnePassDrafter):
        def propose(self, *args):
            found = super().propose(*args)
            drafts.append((found.ids_SK.tolist(), found.num_valid_S.tolist()))
            return found

    monkeypatch.setitem(DRAFTERS, "one-pass", Recorder)
    model, head = load.load_model(settings(folders)), one_pass_head(PRESETS["tiny"])
    assert model.head.config == head.config and model.options.drafter == "one-pass"
    for ours, theirs in zip(tensors_of(model.head.weights), tensors_of(head.weights), strict=True):
        assert torch.equal(ours, theirs)
    params = SamplingParams(temperature=1, seed=5, max_tokens=40, ignore_eos=True)
    prompts = random_prompts(3, model.config.vocab_size)
    requests = [
        Request(request_id=str(number), prompt_ids=tuple(ids), params=params) for number, ids in enumerate(prompts)
    ]
    found = []
    for source in (model, replace(model, head=head), replace(model, options=replace(model.options, drafter="none"))):
        drafts.clear()
        found.append((run(source.build(kv_bytes=1 << 26, concurrency=3).core, requests), list(drafts)))
    assert found[0] == found[1] and len(found[0][1]) > 5
    assert found[0][0] == found[2][0] and not found[2][1]


def test_an_engine_serves_with_it(folders):
    engine = Engine.load(settings(folders, model=str(DEMO), draft=str(folders / "demo-head"), context=256))
    try:
        assert engine.info.drafter == "one-pass"
        assert engine.info.details["head"] == str(folders / "demo-head")
    finally:
        engine.close()


def test_info_describes_it(folders, capsys):
    head, folder = one_pass_head(PRESETS["tiny"]), str(folders / "head")
    assert main(["models", "info", folder, "--target", str(folders / "target"), "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    description = json.loads(last)
    assert (description["kind"], description["bytes"]) == ("one-pass", num_bytes(head.weights))
    assert description["parameters"] == sum(tensor.numel() for tensor in tensors_of(head.weights))
    assert lines[0] == f"model         one-pass head, {description['parameters'] / 1e9:.3g} B parameters"
    assert main(["models", "info", folder, "--target", str(DEMO)]) == 1
    assert "made for another target" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "has_kernels", "message"),
    [
        ({"draft_weights": "fp8"}, False, "--draft-weights fp8 is not possible with a one-pass head; leave it out"),
        ({"draft_vocab": 64}, False, "--draft-vocab is not possible with a one-pass head; leave it out"),
        ({}, True, "the kernels of this GPU cannot compute a one-pass head; use another --draft, or --device cpu"),
    ],
)
def test_what_it_cannot_do_is_said_before_weights_are_read(folders, monkeypatch, changes, has_kernels, message):
    monkeypatch.setattr(load, "can_use_kernels", lambda *args: has_kernels)
    monkeypatch.setattr(load, "load_target", lambda *args, **options: pytest.fail("weights are read"))
    assert complaint(load.load_model, settings(folders, **changes)) == message


def test_llama_cpp_does_not_load_it(folders, tmp_path):
    message = complaint(
        export_head, folders / "head", tmp_path / "x.gguf", target_folder=folders / "target", name="one pass"
    )
    assert "llama.cpp cannot express a one-pass head" in message


def test_it_is_no_target(folders):
    message = complaint(load.load_model, settings(folders, model=str(folders / "head")))
    assert "is that of a one-pass head; give the model itself" in message


def test_a_folder_of_no_known_kind(folders, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Medusa"]}))
    message = complaint(load.load_model, settings(folders, draft=str(tmp_path)))
    assert message == (
        f"{tmp_path / 'config.json'} is of no known kind of draft head (architectures ['Medusa']); "
        "--draft wants an EAGLE-3 head or a one-pass head"
    )


@pytest.mark.parametrize("drafts", [0, 1, 4])
def test_a_round_reads_it_once(folders, drafts):
    """The bench's bound of the memory's bandwidth."""
    model = load.load_model(settings(folders))
    counts = Acceptance(histogram=Counter({1: 10}), num_drafts=10 * drafts)
    core = SimpleNamespace(runner=SimpleNamespace(stages=Stages(), screen=None))
    arm = Arm(tiles="tiled", drafts=drafts, core=core, draft_length=None, counts=counts, experts=1)
    read = round_limit(model, arm, context=0, batch=1, bandwidth=1e9).head
    assert read == (num_bytes(model.head.weights) if drafts else 0)
