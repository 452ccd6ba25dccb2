"""One thread for tensors: the test models are tiny, and spinning threads fight over few cores. GPU tests need a GPU."""

import functools
import gc
import os
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest
import torch
from tests.support import ticks
from tests.support.slowest import SlowestFiles

gc.disable()  # until the tests are collected
torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is imported

# Each client, also of OpenAI's and Anthropic's SDKs, would read the certificates of all authorities: 25 ms of CPU.
httpx._transports.default.create_ssl_context = functools.cache(httpx.create_ssl_context)
ticks.shorten()

with suppress(ImportError):  # tests on a GPU do without
    from hypothesis import settings

    settings.register_profile("busy machine", deadline=None, max_examples=30)  # all runs together try many
    settings.load_profile("busy machine")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SlowestFiles())


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, for `-n auto`: many tests wait for servers and browsers."""
    return (os.cpu_count() or 1) + 1


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """The settings of plugins, where `make test-gpu` runs without them."""
    if not pluginmanager.hasplugin("timeout"):
        parser.addini("timeout", "seconds of a test; needs pytest-timeout")


@pytest.fixture(autouse=True)
def _gpu_is_left_as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """The process's settings of CUDA, whatever a test marked `gpu` does to them."""
    if not request.node.get_closest_marker("gpu"):
        yield
        return
    device, sync_mode = torch.cuda.current_device(), torch.cuda.get_sync_debug_mode()
    try:
        yield
    finally:
        torch.cuda.set_device(device)
        if torch.cuda.get_sync_debug_mode() != sync_mode:
            torch.cuda.set_sync_debug_mode(sync_mode)


def pytest_collection_finish() -> None:
    """Leave what imports and collection made out of every later collection of garbage: half of their CPU time else."""
    gc.freeze()
    gc.enable()


def is_longest(item: pytest.Item) -> bool:
    """Whether a test may take more than twice as long as tests may usually take."""
    marker = item.get_closest_marker("timeout")
    return marker is not None and marker.args[0] > 2 * float(item.config.getini("timeout"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=is_longest, reverse=True)  # first, else one of them runs alone at the end
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
