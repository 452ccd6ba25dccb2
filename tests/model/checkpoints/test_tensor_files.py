"""Streamed tensors against those that the safetensors library gives, in pieces of odd sizes, and files that break."""

from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch

from eyas.base.errors import UserError
from eyas.model.checkpoints import tensor_files
from eyas.model.checkpoints.shards import read_headers
from eyas.model.checkpoints.tensor_files import MappedTensors, StreamedTensors
from eyas.model.making.make import make_head, make_target
from eyas.model.making.presets import PRESETS, default_head

CPU = torch.device("cpu")
TINY = replace(PRESETS["tiny"], num_layers=2, layer_is_sliding=(True, False))
DEVICES = [CPU, pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    out = tmp_path_factory.mktemp("files")
    target = make_target(TINY, out / "target", shard_bytes=100_000)
    return target, make_head(default_head(TINY), out / "head", target=TINY)  # with an I64 and a BOOL


@pytest.fixture(params=[(1000, 5000), (1 << 20, 1 << 30), (4096, 0)])
def _sizes(request, monkeypatch):
    monkeypatch.setattr(tensor_files, "PIECE_BYTES", request.param[0])
    monkeypatch.setattr(tensor_files, "AHEAD_BYTES", request.param[1])


@pytest.mark.usefixtures("_sizes")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("inference", [False, True])
def test_streamed_tensors_are_those_of_the_files(folders, device, inference):
    for folder in folders:
        stored = read_headers(folder)
        names = [name for name in stored if stored[name].dtype != "BOOL"]
        with ExitStack() as files, torch.inference_mode(inference):
            mapped = MappedTensors(folder, stored, files)
            streamed = StreamedTensors(folder, stored, names, device, files)
            for name in names:
                tensor, expected = streamed.tensor(name), mapped.tensor(name)
                assert tensor.device.type == device.type and tensor.dtype == expected.dtype
                assert torch.equal(tensor.cpu(), expected)


def test_a_file_that_was_cut_after_its_header_was_read(tmp_path):
    folder = make_target(TINY, tmp_path / "target")
    stored, path = read_headers(folder), folder / "model.safetensors"
    names = sorted(stored, key=lambda name: stored[name].start)
    with path.open("r+b") as file:
        file.truncate(stored[names[-1]].start)
    with ExitStack() as files:
        streamed = StreamedTensors(folder, stored, names, CPU, files)
        for name in names[:-1]:
            streamed.tensor(name)
        with pytest.raises(UserError, match=r"model.safetensors cannot be read \(it ends at byte \d+\); download it"):
            streamed.tensor(names[-1])
    path.unlink()
    with ExitStack() as files, pytest.raises(UserError, match="No such file"):
        StreamedTensors(folder, stored, names, CPU, files).tensor(names[0])
