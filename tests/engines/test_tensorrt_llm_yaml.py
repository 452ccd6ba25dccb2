"""TensorRT-LLM's own text against what is emitted: the fields of `llm_args.py` and the options of `serve.py`.

The package index has a placeholder that fetches the wheel from another registry, so the text must be at hand:
TENSORRT_LLM names an unpacked wheel or a checkout. It is read, never imported.
"""

import ast
import os
from pathlib import Path

import pytest
from tests.recipes.engines.test_tensorrt_llm import EVERYTHING, config_of, emission, keys_of, server_of

from eyas.recipes.engines.flags import known_versions

pytestmark = pytest.mark.engines

SECTIONS = {"kv_cache_config": "KvCacheConfig", "cuda_graph_config": "CudaGraphConfig", "moe_config": "MoeConfig"}
SPECULATION = {
    "Eagle": "EagleDecodingConfig",
    "Eagle3": "Eagle3DecodingConfig",
    "DraftTarget": "DraftTargetDecodingConfig",
    "Draft_Target": "DraftTargetDecodingConfig",
}


class Source:
    """The classes of `llm_args.py`, the options of `serve.py` and the version, read from their text."""

    def __init__(self, root: Path) -> None:
        package = root / "tensorrt_llm"
        tree = ast.parse((package / "llmapi/llm_args.py").read_text(encoding="utf-8"))
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        plain = [node for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)]
        self.aliases = {ast.unparse(node.targets[0]): ast.unparse(node.value) for node in plain}
        self.serve = ast.parse((package / "commands/serve.py").read_text(encoding="utf-8"))
        version = ast.parse((package / "version.py").read_text(encoding="utf-8")).body[-1]
        assert isinstance(version, ast.Assign)
        self.version = ast.literal_eval(version.value)

    def fields(self, name: str) -> set[str]:
        """Of a class and its bases in the file; other names that a field accepts included."""
        node = self.classes.get(self.aliases.get(name, name))
        if node is None:
            return set()
        found = {name for base in node.bases if isinstance(base, ast.Name) for name in self.fields(base.id)}
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                found |= {part.target.id, *_strings_of_call(part.value, "AliasChoices")}
        return found

    def decoding_types(self) -> set[str]:
        """As YAML may name them: the literals of the classes, or the keys of the table that names the classes."""
        literals = set()
        for node in self.classes.values():
            for part in ast.walk(node):
                is_type = isinstance(part, ast.AnnAssign) and getattr(part.target, "id", "") == "decoding_type"
                if is_type and "Literal" in ast.unparse(part.annotation):
                    literals |= {one.value for one in ast.walk(part.annotation) if isinstance(one, ast.Constant)}
                if isinstance(part, ast.Assign) and getattr(part.targets[0], "id", "") == "config_classes":
                    assert isinstance(part.value, ast.Dict)
                    return {key.value for key in part.value.keys if isinstance(key, ast.Constant)}
        return literals

    def options(self) -> set[str]:
        serve = next(node for node in self.serve.body if isinstance(node, ast.FunctionDef) and node.name == "serve")
        calls = [one for one in serve.decorator_list if isinstance(one, ast.Call)]
        words = [word.value for call in calls for word in call.args if isinstance(word, ast.Constant)]
        return {word for word in words if str(word).startswith("--")}

    def keys(self) -> set[str]:
        found = self.fields("TorchLlmArgs")
        for section, name in SECTIONS.items():
            found |= {f"{section}.{field}" for field in self.fields(name)}
        for kind in self.decoding_types() & set(SPECULATION):
            found |= {f"speculative_config[{kind}].{field}" for field in self.fields(SPECULATION[kind])}
            found.add(f"speculative_config[{kind}].decoding_type")
        return found


def _strings_of_call(node: ast.AST | None, name: str) -> set[str]:
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)] if node is not None else []
    found = [one for one in calls if getattr(one.func, "id", "") == name]
    return {word.value for call in found for word in call.args if isinstance(word, ast.Constant)}


LLM_ARGS = """
class StrictBaseModel: ...
class DecodingBaseConfig(StrictBaseModel):
    max_draft_len: int = Field(default=None)
    speculative_model: str = Field(validation_alias=AliasChoices("speculative_model", "speculative_model_dir"))
class EagleDecodingConfig(DecodingBaseConfig):
    decoding_type: Literal["Eagle"] = Field(default="Eagle")
class Eagle3DecodingConfig(EagleDecodingConfig):
    decoding_type: Literal["Eagle3"] = Field(default="Eagle3")
class KvCacheConfig(StrictBaseModel):
    dtype: str = Field(default="auto")
class BaseCudaGraphConfig(StrictBaseModel):
    max_batch_size: int = 0
class DecodeCudaGraphConfig(BaseCudaGraphConfig): ...
CudaGraphConfig = DecodeCudaGraphConfig
class BaseLlmArgs(StrictBaseModel):
    model: str
class TorchLlmArgs(BaseLlmArgs):
    moe_config: int
"""
SERVE = """
@click.command("serve")
@click.option("--config", "--extra_llm_api_options", "extra_llm_api_options", type=str)
@click.option('--port', type=int)
def serve(model): ...
"""


def test_the_reader_finds_fields_types_and_options(tmp_path):
    package = tmp_path / "tensorrt_llm"
    texts = {"llmapi/llm_args.py": LLM_ARGS, "commands/serve.py": SERVE, "version.py": '__version__ = "9"'}
    for name, text in texts.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    source = Source(tmp_path)
    assert source.version == "9"
    assert source.options() == {"--config", "--extra_llm_api_options", "--port"}
    assert source.decoding_types() == {"Eagle", "Eagle3"}
    assert {
        *("model", "moe_config", "kv_cache_config.dtype", "cuda_graph_config.max_batch_size"),
        *("speculative_config[Eagle3].max_draft_len", "speculative_config[Eagle].speculative_model_dir"),
    } <= source.keys()


@pytest.mark.skipif("TENSORRT_LLM" not in os.environ, reason="TENSORRT_LLM names no unpacked wheel or checkout")
@pytest.mark.parametrize(("model", "box", "head"), EVERYTHING)
def test_what_is_emitted_is_in_the_text(model, box, head):
    source = Source(Path(os.environ["TENSORRT_LLM"]))
    for changes in ({}, {"concurrency": 8, "kv_dtype": "fp8", "expert_parallel": 4}):
        made = emission(model, box, head, version=source.version, **changes)
        assert set(keys_of(config_of(made))) <= source.keys()
        argv = server_of(made).argv
        words = argv[argv.index("--backend") :]
        assert {word for word in words if isinstance(word, str) and word.startswith("--")} <= source.options()


def test_tables_exist_for_the_versions_that_plans_may_name():
    assert known_versions("tensorrt-llm")[0] == "1.2.0rc2"
