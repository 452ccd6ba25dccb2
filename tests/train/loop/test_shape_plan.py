"""Plans for published shapes: passes follow from what is free, figures from arithmetic that can be done by hand."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from eyas.base.errors import UserError
from eyas.cli import main
from eyas.train.loop import memory, shape_plan
from eyas.train.loop.shape_plan import plan_shape
from eyas.train.settings.schema import RunSettings, TrainSettings

GPU = torch.device("cuda", 0)


@dataclass
class Run:
    """What `fitted` reads of a prepared run."""

    settings: RunSettings
    found: SimpleNamespace
    head_device: torch.device = GPU


def bytes_of(plan):
    return sum(plan.bytes_by_owner.values())


def test_131072_tokens_beside_the_120b_on_an_h200():
    plan = plan_shape("gpt-oss-120b", tokens=131072, supervised=1.0, gpu="h200")
    assert plan.fits and plan.train.chunk == 8192
    assert plan.bytes_by_owner["target weights"] == pytest.approx(65.2e9, rel=0.005)
    assert plan.bytes_by_owner["states"] == 4 * 2880 * 2 * 131072
    assert plan.bytes_by_owner["head and optimiser"] == pytest.approx(16 * 307.6e6, rel=0.001)
    beyond = bytes_of(plan) - sum(
        plan.bytes_by_owner[x] for x in ("target weights", "teacher", "target caches", "target chunk")
    )
    assert beyond - plan.bytes_by_owner["head and optimiser"] < 20e9
    assert plan.flops["attention"] / 131072 == pytest.approx(26.3e9, rel=0.01)


def test_the_pass_of_the_target_and_the_step_of_the_head_do_not_add():
    plan = plan_shape("gpt-oss-120b", tokens=131072, supervised=1.0, gpu="h200")
    of_target = plan.bytes_by_owner["target caches"] + plan.bytes_by_owner["target chunk"]
    of_head = plan.bytes_by_owner["head pass"] + plan.bytes_by_owner["loss tiles"]
    assert plan.peak == bytes_of(plan) - of_target and of_target < of_head


def test_passes_shrink_to_what_is_free(monkeypatch):
    wide = plan_shape("gpt-oss-20b", tokens=40960, supervised=1.0, gpu="h100")
    room = wide.peak
    sizes = []
    for factor in (1.05, 0.95, 0.85, 0.75):
        gpu = shape_plan.GPUS["h100"]
        small = shape_plan.Gpu(int(factor * room), gpu.rest, gpu.attention, gpu.prompts)
        monkeypatch.setitem(shape_plan.GPUS, "small", small)
        plan = plan_shape("gpt-oss-20b", tokens=40960, supervised=1.0, gpu="small")
        assert plan.peak <= plan.free == int(small.memory * 0.97)
        sizes.append((plan.train.chunk, plan.train.tile))
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 4


def test_fewer_supervised_tokens_cost_less_and_the_target_is_paid_in_full():
    whole, part = (plan_shape("gpt-oss-120b", tokens=40960, supervised=s, gpu="h200") for s in (1.0, 0.1))
    assert part.flops["readout"] == pytest.approx(0.1 * whole.flops["readout"])
    assert part.flops["target"] == whole.flops["target"] and part.flops["keys"] == whole.flops["keys"]
    # The last tenth of the tokens sees 19 % of all pairs.
    assert part.flops["attention"] == pytest.approx(0.19 * whole.flops["attention"], rel=0.01)
    assert bytes_of(part) < bytes_of(whole)
    alone = plan_shape("gpt-oss-120b", tokens=40960, supervised=0.1, gpu="h200", with_target=False)
    assert "target" not in alone.flops and alone.seconds < part.seconds and alone.longest > part.longest


def test_the_command_says_what_fits(monkeypatch, capsys):
    assert main(["train", "plan", "--shape", "gpt-oss-120b", "--gpu", "h200", "--tokens", "65536"]) == 0
    text = capsys.readouterr().out
    assert "PREDICTED" in text and "65,536 tokens" in text and "passes of 8,192 rows" in text
    gpu = shape_plan.GPUS["h100"]
    monkeypatch.setitem(shape_plan.GPUS, "h100", shape_plan.Gpu(74 << 30, gpu.rest, gpu.attention, gpu.prompts))
    assert main(["train", "plan", "--shape", "gpt-oss-120b", "--gpu", "h100"]) == 1
    captured = capsys.readouterr()
    longest = int(captured.err.rsplit(" ", 1)[1])
    assert plan_shape("gpt-oss-120b", tokens=longest, supervised=1.0, gpu="h100").fits
    assert not plan_shape("gpt-oss-120b", tokens=longest + 100, supervised=1.0, gpu="h100").fits


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "a settings file or --shape"),
        (["run.yaml", "--shape", "gpt-oss-20b"], "a settings file or --shape"),
        (["--shape", "gpt-oss-12b"], "no shape 'gpt-oss-12b' (did you mean"),
        (["--shape", "gpt-oss-20b", "--gpu", "h300"], "no GPU 'h300'"),
        (["--shape", "gpt-oss-20b", "--tokens", "131073"], "reads up to 131072 tokens"),
        (["--shape", "gpt-oss-20b", "--supervised", "0"], "--supervised wants"),
    ],
)
def test_wrong_use(args, message, capsys):
    assert main(["train", "plan", *args]) == 1
    assert message in capsys.readouterr().err


def test_a_run_takes_the_largest_passes_that_fit(monkeypatch):
    """A GPU is described by its type alone: nothing is allocated."""
    asked = []

    def needed(prepared, *, longest):
        assert prepared.head_device.type == "cuda"
        train = prepared.settings.train
        asked.append((train.rows_of_pass, train.rows_of_tile))
        return {prepared.head_device: {"head pass": train.rows_of_pass * 10, "loss tiles": train.rows_of_tile}}

    monkeypatch.setattr(memory, "device_bytes", needed)

    def sizes(free, device="cuda", **train):
        found = SimpleNamespace(device=torch.device(device))
        run = Run(RunSettings(train=TrainSettings(**train)), found)
        chosen = memory.fitted(run, free=free).settings.train
        return chosen.rows_of_pass, chosen.rows_of_tile

    assert sizes(10**6) == (8192, 4096) and sizes(8192 * 10 + 1024) == (8192, 1024)
    assert sizes(4096 * 10 + 600) == (4096, 512) and sizes(0) == (512, 512)
    assert sizes(10**6, chunk=1000) == (1000, 4096) and sizes(2048 * 10 + 77, tile=77) == (2048, 77)
    asked.clear()
    assert sizes(0, "cpu") == (2048, 512) and sizes(0, chunk=9000, tile=100) == (9000, 100) and not asked


def test_a_head_on_a_gpu_of_its_own():
    together = plan_shape("gpt-oss-120b", tokens=131072, supervised=1.0, gpu="h100")
    apart = plan_shape("gpt-oss-120b", tokens=131072, supervised=1.0, gpu="h100", head_gpu="h100")
    assert apart.fits and apart.train.chunk > together.train.chunk and apart.longest == 131072
    first, second = apart.bytes_by_owner, apart.head_bytes_by_owner
    assert second["states"] == first["states"] and second["teacher"] == 2 * 201088 * 2880 * 2
    assert not set(memory.HEAD_OWNERS) & set(first) and set(memory.HEAD_OWNERS) < set(second)
    assert not together.head_bytes_by_owner
    with pytest.raises(UserError, match="name that"):
        plan_shape("gpt-oss-120b", tokens=4096, supervised=1.0, gpu="h100", head_gpu="h100", with_target=False)


def test_owners_by_device(monkeypatch):
    owners = {"target weights": 100, "teacher": 0, "states": 7, "states of a step": 14}
    owners |= {"head and optimiser": 50, "head matrices": 5, "head pass": 9, "loss tiles": 3}
    monkeypatch.setattr(memory, "run_bytes", lambda *_, **__: dict(owners))
    config = SimpleNamespace(vocab_size=10, hidden_size=2)
    found = SimpleNamespace(device=torch.device("cuda", 0), config=config, dtype=torch.bfloat16)
    one = Run(RunSettings(), found)
    assert memory.device_bytes(one, longest=8) == {found.device: owners}
    other = torch.device("cuda", 1)
    of = memory.device_bytes(Run(RunSettings(), found, other), longest=8)
    assert of[found.device] == {"target weights": 100, "teacher": 0, "states": 7}
    assert sum(of[other].values()) == 50 + 5 + 9 + 3 + 2 * 10 * 2 * 2 + 7 + 14


@pytest.mark.parametrize(
    ("tokens", "with_target", "seconds"),
    [(4096, False, 0.1355), (40960, False, 1.929), (131072, False, 11.56), (131072, True, 8.67 + 11.56)],
)
def test_predictions_are_near_what_one_h200_took(tokens, with_target, seconds):
    """docs/log/training.md, 2026-11-27."""
    plan = plan_shape("gpt-oss-120b", tokens=tokens, supervised=1.0, gpu="h200", with_target=with_target)
    assert plan.seconds == pytest.approx(seconds, rel=0.1)
