"""`eyas serve` of a choice, to the word; its options are those of the parser."""

import argparse
from importlib import import_module

import pytest
from tests.recipes.engines.test_llama_cpp import H100, choice

from eyas import __version__
from eyas.base.errors import UserError
from eyas.base.settings import config as settings
from eyas.base.settings.config import ServeConfig
from eyas.recipes.engines import eyas_image, flags
from eyas.recipes.engines.eyas import emit
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Box, EnvVar, Home, Mount, Ref
from eyas.recipes.records import CPU

CPU_BOX = Box(name="here", hardware=knowledge().hardware[CPU], architecture="x86_64")


def made(model="gpt-oss-120b", head=None, box=H100, **changes):
    known = knowledge()
    if head is not None:
        changes = {"method": "eagle3", "head": head, "draft_tokens": 3} | changes
    chosen = choice(
        **{"engine": "eyas", "version": __version__, "port": 8000, "concurrency": 4, "model": model} | changes
    )
    return emit(chosen, box, known.model(model), known.head(head) if head else None)


def parsed(emission):
    """The settings that `eyas serve` takes from the command."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    import_module("eyas.serve").add_arguments(parser)
    (server,) = emission.launches
    assert server.argv[1] == "serve"
    return settings.load(ServeConfig, parser.parse_args(server.argv[2:]), {})


def test_the_command():
    emission = made(head="lmsys-120b")
    config = parsed(emission)
    assert (config.model, config.draft) == ("openai/gpt-oss-120b", "lmsys/EAGLE3-gpt-oss-120b-bf16")
    assert (config.context, config.concurrency, config.host, config.port) == (65536, 4, "127.0.0.1", 8000)
    assert config.draft_tokens == "auto", "it measures by itself what pays"
    assert parsed(made(head="lmsys-120b", draft_tokens=3, are_drafts_fixed=True)).draft_tokens == 3
    assert (config.kv_dtype, parsed(made(kv_dtype="fp8")).kv_dtype) == ("auto", "fp8")
    assert config.offline and config.served_name == "openai/gpt-oss-120b" == emission.readiness.model
    (server,) = emission.launches
    assert server.env == (EnvVar(name="HF_HOME", value=Home(path=".cache/huggingface")),)
    assert [d.repo for d in emission.downloads] == ["openai/gpt-oss-120b", "lmsys/EAGLE3-gpt-oss-120b-bf16"]
    assert emission.readiness.path == "/ready"
    assert not config.whole_lm_head
    assert parsed(made(memory_cap=90 << 30)).whole_lm_head, "it takes no memory for speed alone where that is scarce"


def test_the_demo_model_needs_nothing_from_anywhere():
    emission = made("demo", head="demo-head", context=4096, binary="/opt/eyas")
    config = parsed(emission)
    assert (config.model, config.draft, config.offline, config.served_name) == ("demo", "auto", False, "demo")
    assert not emission.downloads and not emission.launches[0].env and emission.launches[0].argv[0] == "/opt/eyas"
    assert parsed(made("demo")).draft == "none"


def test_folders_and_keys():
    emission = made(model_path="/m", head="lmsys-120b", head_path="/h", api_key_env="MY_KEY", listen="0.0.0.0")
    assert (parsed(emission).model, parsed(emission).draft, parsed(emission).host) == ("/m", "/h", "0.0.0.0")
    assert EnvVar(name="EYAS_API_KEY", value=Ref(name="MY_KEY")) in emission.launches[0].env
    assert not emission.downloads


def test_in_a_container_of_our_image():
    emission = made(head="lmsys-120b", image=eyas_image.TAG, api_key_env="MY_KEY", listen="0.0.0.0")
    (server,) = emission.launches
    assert server.argv[:2] == ("serve", "openai/gpt-oss-120b"), "the entry point is eyas"
    assert server.container.is_built and [file.path for file in emission.files] == list(eyas_image.NAMES)
    assert server.container.options[:4] == ("--gpus", "all", "--network", "host")
    assert server.container.mounts == (
        Mount(source=Home(path=".cache/huggingface"), target=eyas_image.CACHE, read_only=True),
    )
    assert server.env == (
        EnvVar(name="HF_HOME", value=eyas_image.CACHE),
        EnvVar(name="EYAS_API_KEY", value=Ref(name="MY_KEY")),
    )
    native = made(head="lmsys-120b", api_key_env="MY_KEY", listen="0.0.0.0")
    assert server.argv == native.launches[0].argv[1:] and emission.downloads == native.downloads


def test_folders_are_mounted_into_a_container():
    emission = made(model_path="/m", head="lmsys-120b", head_path="/h", image="registry.example/mine:1")
    (server,) = emission.launches
    assert server.argv[:4] == ("serve", "/models/target", "--draft", "/models/draft")
    assert not server.container.is_built and not emission.files, "theirs is theirs"
    mounted = {mount.target: (mount.source, mount.read_only) for mount in server.container.mounts}
    assert mounted["/models/target"] == ("/m", True) and mounted["/models/draft"] == ("/h", True)


def test_the_demo_model_in_a_container_needs_no_gpu():
    (server,) = made("demo", box=CPU_BOX, head="demo-head", context=4096, image=eyas_image.TAG).launches
    assert server.argv[:4] == ("serve", "demo", "--draft", "auto") and not server.env
    assert "--gpus" not in server.container.options and not server.container.mounts


def test_the_type_of_the_cache_is_passed_on_or_refused():
    """An engine without the option must not be started as if it had it."""
    if "--kv-dtype" in flags.options("eyas", __version__):
        (server,) = made(kv_dtype="fp8").launches
        assert server.argv[server.argv.index("--kv-dtype") + 1] == "fp8"
    else:
        with pytest.raises(ValueError, match="has no option --kv-dtype"):
            made(kv_dtype="fp8")
    assert "--kv-dtype" not in made().launches[0].argv


def test_what_it_cannot_do():
    with pytest.raises(UserError, match="not with draft models"):
        made(method="draft-model")


def test_the_table_is_the_parser():
    """After a wanted change write the options of `eyas serve` into recipes/data/flags/eyas anew."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    import_module("eyas.serve").add_arguments(parser)
    options = {option for action in parser._actions for option in action.option_strings}
    assert flags.known_versions("eyas") == (__version__,) and flags.options("eyas", __version__) == options
