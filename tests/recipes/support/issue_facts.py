"""Facts of plans for the tests of known issues: an engine and its version on a Spark, changed by keywords."""

from eyas.recipes.advice.facts import Facts


def spark(engine, version, *features, **changes):
    facts = {
        "engine": engine,
        "version": version,
        "model": "gpt-oss-120b",
        "hardware": "spark",
        "compute_capability": "12.1",
        "unified": True,
        "bandwidth": 273e9,
        "memory_bytes": 137_438_953_472,
        "context": 40960,
        "concurrency": 4,
        "driver": "580.159.03",
        "features": frozenset(features),
    }
    return Facts(**facts | changes)


def data_center(engine, version, capability, memory, *features, **changes):
    more = {"hardware": "x", "compute_capability": capability, "unified": False, "bandwidth": 4e12}
    return spark(engine, version, *features, **more | {"memory_bytes": memory} | changes)


def trt(version, *features, **changes):
    return spark("tensorrt-llm", version, "yaml:return_perf_metrics=true", *features, **EAGLE | changes)


def sgl(version, *features, **changes):
    return spark("sglang", version, *features, **EAGLE | changes)


def vllm(version, *features, **changes):
    return spark("vllm", version, *features, **EAGLE | changes)


def llama(version, *features, **changes):
    return spark("llama.cpp", version, *features, **changes)


EAGLE = {"method": "eagle3", "head": "lmsys-120b", "draft_tokens": 3}
PLAIN = {"method": "none", "head": "", "draft_tokens": 0}
B200 = {"compute_capability": "10.0", "unified": False, "hardware": "b200", "bandwidth": 8e12}
H100 = {"compute_capability": "9.0", "unified": False, "hardware": "h100", "memory_bytes": 85_520_809_984}
H200 = H100 | {"hardware": "h200", "memory_bytes": 150_754_820_096}
RTX = {"compute_capability": "12.0", "unified": False, "hardware": "rtx-pro-6000"}
TREE = ("flag:--speculative-eagle-topk", "flag:--speculative-eagle-topk=4")
CHAIN = ("flag:--speculative-eagle-topk", "flag:--speculative-eagle-topk=1")
EAGLE3 = ("flag:--speculative-algorithm", "flag:--speculative-algorithm=EAGLE3")
LONGER = "env:SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
DRAFT_TARGET = "yaml:speculative_config.decoding_type=DraftTarget"
DFLASH = "yaml:speculative_config.decoding_type=DFlash"
SCHEDULE = "yaml:speculative_config.draft_len_schedule"
ONE_GPU = ("flag:--gpu-memory-utilization=0.95", "flag:--max-num-batched-tokens")
