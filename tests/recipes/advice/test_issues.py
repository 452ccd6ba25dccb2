"""Every known issue: plans that it applies to and plans that it leaves alone, written down by hand."""

from __future__ import annotations

import re

import pytest
from tests.recipes.support.issue_facts import (
    B200,
    CHAIN,
    DFLASH,
    DRAFT_TARGET,
    EAGLE,
    EAGLE3,
    H100,
    H200,
    LONGER,
    ONE_GPU,
    PLAIN,
    RTX,
    SCHEDULE,
    TREE,
    data_center,
    llama,
    sgl,
    spark,
    trt,
    vllm,
)

from eyas.recipes.advice.issues import applies, known_issues, matching

ISSUES = {issue.name: issue for issue in known_issues()}
KNOWN = [
    "TRTLLM-8615",
    "TRTLLM-12795",
    "TRTLLM-16377",
    "TRTLLM-10614",
    "TRTLLM-15022",
    "TRTLLM-SWA-TREE",
    "TRTLLM-GREEDY",
    "TRTLLM-DRAFTTARGET",
    "TRTLLM-13995",
    "TRTLLM-METRICS-JSON",
    "SGL-MAXMODELLEN",
    "SGL-QUANT-DRAFT",
    "SGL-SM12-MOE",
    "SGL-TRTLLM-TREE",
    "SGL-24402",
    "SGL-9412",
    "SGL-36528",
    "SGL-CTX-DRAFT",
    "SGL-KEY-LOG",
    "SGL-DRIVER595",
    "SGL-36716",
    "SGL-CUDAGRAPHFLAG",
    "SGL-32459",
    "AUX36",
    "HEAD-THROUGHPUT-3",
    "VLLM-28589",
    "VLLM-26328",
    "VLLM-25979",
    "VLLM-ASYNC",
    "VLLM-ENVGONE",
    "VLLM-SHORT-HEAD",
    "VLLM-31422",
    "VLLM-41838",
    "VLLM-38754",
    "VLLM-H100-TP1",
    "VLLM-41477",
    "VLLM-37030",
    "VLLM-MARLIN-COST",
    "VLLM-43969",
    "VLLM-53670",
    "LCPP-18039",
    "LCPP-EAGLE-SLOW",
    "LCPP-MMAP",
    "LCPP-CONTROL-TOKENS",
    "OLLAMA-EAGLE3",
    "OLLAMA-12403",
    "SPARK-PAGECACHE",
    "HARMONY-VOCAB",
    "EYAS-NOT-HOPPER",
    "EYAS-OLDER-GPU",
    "EYAS-CPU",
]


# Name: plans that it applies to, plans that it does not apply to.
CASES = {
    "TRTLLM-8615": (
        [trt("1.2.0rc1"), trt("1.1.0rc3", **RTX), trt("1.2.0rc6"), trt("1.2.1")],
        [trt("1.3.0rc12"), trt("1.3.0rc13", **RTX), trt("1.2.0rc1", **B200), trt("1.2.0rc1", **PLAIN)],
    ),
    "TRTLLM-12795": (
        [trt("1.3.0rc10"), trt("1.3.0rc11", **RTX), trt("1.4.0rc1", **RTX)],
        [trt("1.3.0rc12"), trt("1.2.1", **RTX), trt("1.3.0rc10", **B200), trt("1.3.0rc10", **PLAIN), trt("1.2.0rc6")],
    ),
    "TRTLLM-16377": (
        [trt("1.3.0rc13", "tools"), trt("1.4.0rc1", "tools")],
        [trt("1.3.0rc13"), trt("1.3.0rc13", "tools", **PLAIN), trt("1.3.0rc13", "tools", **B200)],
    ),
    "TRTLLM-10614": (
        [trt("1.2.0rc6", "kv:fp8", **B200), trt("1.3.0rc13", "kv:fp8", **B200)],
        [trt("1.2.0rc6", **B200), trt("1.2.0rc6", "kv:fp8"), trt("1.2.0rc6", "kv:fp8", **B200 | {"draft_tokens": 1})],
    ),
    "TRTLLM-15022": (
        [
            trt("1.3.0rc13", "guided-decoding", SCHEDULE, f"{SCHEDULE}.1=3", f"{SCHEDULE}.32=0"),
            trt("1.3.0rc13", "yaml:guided_decoding_backend=xgrammar", f"{SCHEDULE}.32=0"),
        ],
        [
            trt("1.3.0rc13", f"{SCHEDULE}.32=0"),
            trt("1.3.0rc13", "guided-decoding", f"{SCHEDULE}.1=3", f"{SCHEDULE}.32=1"),
            trt("1.3.0rc13", "guided-decoding", f"{SCHEDULE}.32=10"),
        ],
    ),
    "TRTLLM-SWA-TREE": (
        [trt("1.3.0rc13", "yaml:speculative_config.use_dynamic_tree=true")],
        [
            trt("1.3.0rc13", "yaml:speculative_config.use_dynamic_tree=false"),
            trt("1.3.0rc13", "yaml:speculative_config.use_dynamic_tree=true", model="qwen3-235b-a22b-fp4"),
        ],
    ),
    "TRTLLM-GREEDY": (
        [trt("1.1.0rc0", **B200)],
        [
            trt("1.3.0rc12"),
            trt("1.1.0rc0", **PLAIN),
            trt("1.2.0rc6", "yaml:speculative_config.allow_advanced_sampling=true"),
        ],
    ),
    "TRTLLM-DRAFTTARGET": (
        [trt("1.3.0rc12", DRAFT_TARGET, method="draft-model", model="llama-3.3-70b-fp4")],
        [
            trt("1.2.0rc6", DRAFT_TARGET, method="draft-model", model="llama-3.3-70b-fp4"),
            trt("1.3.0rc12", "yaml:speculative_config.decoding_type=Draft_Target", method="draft-model"),
        ],
    ),
    "TRTLLM-METRICS-JSON": (
        [spark("tensorrt-llm", "1.3.0rc13"), spark("tensorrt-llm", "1.3.0rc13", "yaml:return_perf_metrics=false")],
        [trt("1.3.0rc13"), sgl("0.5.23")],
    ),
    "SGL-MAXMODELLEN": (
        [sgl("0.5.23", "flag:--max-model-len", "flag:--max-model-len=8192"), sgl("0.5.4", "flag:--max-model-len")],
        [sgl("0.5.23", "flag:--context-length"), vllm("0.33.0", "flag:--max-model-len")],
    ),
    "SGL-QUANT-DRAFT": (
        [sgl("0.5.23", "flag:--quantization", "flag:--quantization=mxfp4")],
        [
            sgl("0.5.23"),
            sgl("0.5.23", "flag:--quantization=mxfp4", **PLAIN),
            sgl("0.5.23", "flag:--quantization=mxfp4", "flag:--speculative-draft-model-quantization=unquant"),
        ],
    ),
    "SGL-SM12-MOE": (
        [sgl("0.5.6"), sgl("0.5.9", **RTX)],
        [sgl("0.5.10"), sgl("0.5.9", "flag:--moe-runner-backend=triton_kernel"), sgl("0.5.9", **B200)],
    ),
    "SGL-TRTLLM-TREE": (
        [
            sgl("0.5.23", *TREE, **B200),
            sgl("0.5.23", *TREE, **B200 | {"compute_capability": "10.3"}),
            sgl("0.5.23", *TREE, "flag:--attention-backend", "flag:--attention-backend=trtllm_mha", **H100),
        ],
        [
            sgl("0.5.23", *CHAIN, **B200),
            sgl("0.5.23", *TREE, "flag:--attention-backend", "flag:--attention-backend=triton", **B200),
            sgl("0.5.23", *TREE),
        ],
    ),
    "SGL-24402": (
        [sgl("0.5.10", *TREE, **H100), sgl("0.5.11", *TREE, **H200)],
        [
            sgl("0.5.12", *TREE, **H100),
            sgl("0.5.9", *TREE, **H100),
            sgl("0.5.10", *CHAIN, **H100),
            sgl("0.5.10", *TREE, "flag:--attention-backend=triton", **H100),
            sgl("0.5.10", *TREE, "flag:--disable-hybrid-swa-memory", **H100),
        ],
    ),
    "SGL-9412": (
        [sgl("0.5.1"), sgl("0.5.0", "flag:--attention-backend", "flag:--attention-backend=triton", **H100)],
        [sgl("0.5.2"), sgl("0.5.1", **H100), sgl("0.5.1", **PLAIN)],
    ),
    "SGL-36528": (
        [sgl("0.5.18", *EAGLE3)],
        [
            sgl("0.5.18", *EAGLE3, "flag:--speculative-draft-model-path"),
            sgl("0.5.18", *EAGLE3, "flag:--speculative-draft-model"),
            sgl("0.5.18", **PLAIN),
        ],
    ),
    "SGL-CTX-DRAFT": (
        [sgl("0.5.23", "short-head"), sgl("0.5.6", "short-head", head="specdrift-120b")],
        [sgl("0.5.23", "short-head", LONGER, f"{LONGER}=1"), sgl("0.5.23"), vllm("0.33.0", "short-head")],
    ),
    "SGL-KEY-LOG": (
        [sgl("0.5.21", "api-key")],
        [
            sgl("0.5.23", "api-key"),
            sgl("0.5.21", "api-key", "flag:--log-level=warning"),
            sgl("0.5.21"),
            vllm("0.33.0", "api-key", "env:VLLM_API_KEY=$KEY"),
        ],
    ),
    "SGL-DRIVER595": (
        [sgl("0.5.10", "flag:--moe-runner-backend=triton_kernel", **B200 | {"driver": "595.45.04"})],
        [
            sgl("0.5.10", "flag:--moe-runner-backend=triton_kernel", **B200),
            sgl("0.5.10", **B200 | {"driver": "595.45.04"}),
            sgl("0.5.10", "flag:--moe-runner-backend=triton_kernel", driver="595.45.04"),
            sgl("0.5.10", "flag:--moe-runner-backend=triton_kernel", **B200 | {"driver": ""}),
        ],
    ),
    "SGL-36716": (
        [
            sgl("0.5.18", "image:lmsysorg/sglang:qwen38flashnext"),
            sgl("0.5.23", "flag:--attention-backend=trtllm_mha"),
        ],
        [
            sgl("0.5.23", "image:lmsysorg/sglang:latest-cu130"),
            sgl("0.5.23", "flag:--attention-backend=trtllm_mha", **B200),
            sgl("0.5.23", "image:lmsysorg/sglang:qwen38flashnext", **H100),
        ],
    ),
    "TRTLLM-13995": (
        [
            trt("1.3.0rc13", DFLASH),
            trt("1.4.0rc1", DFLASH, **B200),
            trt("1.3.0rc13", method="dflash", head="", draft_tokens=5),
        ],
        [
            trt("1.3.0rc13"),
            trt("1.2.1", DFLASH),
            trt("1.3.0rc13", DFLASH, model="qwen3-8b"),  # no YaRN
            trt("1.3.0rc13", "yaml:speculative_config.decoding_type=Eagle3"),
        ],
    ),
    "SGL-32459": (
        [sgl("0.5.16"), sgl("0.5.23", purpose="claude-code"), sgl("0.5.21", **H200 | {"draft_tokens": 1})],
        [
            sgl("0.5.15"),
            sgl("0.5.23", **PLAIN),
            sgl("0.5.23", "flag:--disable-radix-cache"),
            sgl("0.5.23", purpose="batch"),  # where prompts share nothing
        ],
    ),
    "VLLM-41477": (
        [
            vllm("0.33.0", "flag:--moe-backend", "flag:--moe-backend=triton"),
            vllm("0.20.1", "flag:--moe-backend=triton_unfused", **RTX | PLAIN),
            vllm("0.20.1", "flag:--moe-backend=flashinfer_cutlass"),
            vllm("0.33.0", "flag:--moe-backend=deep_gemm", **RTX),
            vllm("0.33.0", "flag:--moe-backend=flashinfer_trtllm"),
            vllm("0.33.0", "flag:--moe-backend=flashinfer_cutedsl"),
        ],
        [
            vllm("0.33.0", "flag:--moe-backend", "flag:--moe-backend=marlin"),
            vllm("0.33.0", "flag:--moe-backend=flashinfer_cutlass"),  # not known
            vllm("0.33.0"),  # its own choice is marlin
            vllm("0.33.0", "flag:--moe-backend=triton", **H100),
            vllm("0.33.0", "flag:--moe-backend=triton", model="qwen3-32b"),
        ],
    ),
    "VLLM-37030": (
        [
            vllm("0.20.0"),
            vllm("0.20.1rc1", "image:vllm/vllm-openai:nightly-aarch64", **PLAIN),
            vllm("0.19.0", "flag:--moe-backend=marlin"),
        ],
        [
            vllm("0.21.0"),
            vllm("0.33.0"),
            vllm("0.20.1", "image:nvcr.io/nvidia/vllm:26.05.post1-py3"),
            vllm("0.20.1", **RTX),
            vllm("0.20.1", "flag:--moe-backend=emulation"),
        ],
    ),
    "VLLM-MARLIN-COST": (
        [vllm("0.33.0", "flag:--moe-backend=marlin"), vllm("0.14.1", "env:VLLM_MXFP4_USE_MARLIN=1", **RTX)],
        [vllm("0.33.0"), vllm("0.33.0", "flag:--moe-backend=marlin", **H100)],
    ),
    "VLLM-43969": (
        [vllm("0.22.0"), vllm("0.22.1rc1", **PLAIN)],
        [
            vllm("0.20.1"),
            vllm("0.25.1"),
            vllm("0.22.0", tensor_parallel=2),
            vllm("0.22.0", **RTX),
            vllm("0.22.0", model="gpt-oss-20b"),
        ],
    ),
    "VLLM-53670": (
        [vllm("0.33.0"), vllm("0.14.1", purpose="claude-code"), vllm("0.25.1", **H100)],
        [
            vllm("0.33.0", **PLAIN),
            vllm("0.33.0", "flag:--no-enable-prefix-caching"),
            vllm("0.33.0", purpose="batch"),
        ],
    ),
    "SGL-CUDAGRAPHFLAG": (
        [sgl("0.5.20", "flag:--cuda-graph-max-bs"), sgl("0.5.23", "flag:--cuda-graph-max-bs")],
        [sgl("0.5.19", "flag:--cuda-graph-max-bs"), sgl("0.5.23", "flag:--cuda-graph-max-bs-decode")],
    ),
    "AUX36": (
        [sgl("0.5.16", head="nvidia-v3"), vllm("0.14.1", head="nvidia-v3")],
        [sgl("0.5.17", head="nvidia-v3"), vllm("0.19.0", head="nvidia-v3"), sgl("0.5.10"), vllm("0.14.1")],
    ),
    "HEAD-THROUGHPUT-3": (
        [vllm("0.33.0", head="nvidia-throughput"), trt("1.3.0rc13", head="nvidia-throughput", draft_tokens=2)],
        [vllm("0.33.0", head="nvidia-throughput", draft_tokens=1), vllm("0.33.0", head="nvidia-v3")],
    ),
    "VLLM-28589": (
        [
            vllm("0.11.1rc7.dev41"),
            vllm("0.33.0", "flag:--attention-backend=FLASH_ATTN"),
            vllm("0.19.0", "flag:--attention-backend=FLASHINFER", **RTX),
        ],
        [
            vllm("0.14.1"),
            vllm("0.11.0", "env:VLLM_ATTENTION_BACKEND=TRITON_ATTN"),
            vllm("0.33.0", "flag:--attention-backend=TRITON_ATTN"),
            vllm("0.33.0", "flag:--attention-backend=FLASHINFER"),
            vllm("0.33.0", "flag:--attention-backend=FLASH_ATTN", **H100),
        ],
    ),
    "VLLM-26328": (
        [vllm("0.11.0", tensor_parallel=2, **H100)],
        [vllm("0.11.1", tensor_parallel=2, **H100), vllm("0.11.0", **H100)],
    ),
    "VLLM-25979": (
        [vllm("0.10.2", concurrency=128, **H100)],
        [vllm("0.10.2", **H100), vllm("0.11.2", concurrency=128, **H100)],
    ),
    "VLLM-ASYNC": (
        [vllm("0.11.1", "flag:--async-scheduling")],
        [vllm("0.11.2", "flag:--async-scheduling"), vllm("0.11.1"), vllm("0.11.1", "flag:--async-scheduling", **PLAIN)],
    ),
    "VLLM-ENVGONE": (
        [
            vllm("0.33.0", "env:VLLM_ATTENTION_BACKEND"),
            vllm("0.25.1", "env:VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8"),
            vllm("0.33.0", "env:VLLM_MXFP4_USE_MARLIN"),
        ],
        [vllm("0.14.1", "env:VLLM_ATTENTION_BACKEND"), vllm("0.33.0", "env:VLLM_SERVER_DEV_MODE")],
    ),
    "VLLM-SHORT-HEAD": (
        [vllm("0.33.0", "short-head")],
        [vllm("0.33.0"), vllm("0.33.0", "short-head", **PLAIN), sgl("0.5.23", "short-head")],
    ),
    "VLLM-31422": (
        [vllm("0.13.0", tensor_parallel=2, **RTX), vllm("0.11.1", tensor_parallel=2, **B200)],
        [
            vllm("0.14.1", tensor_parallel=2, **RTX),
            vllm("0.13.0", **RTX),
            vllm("0.13.0", "flag:--no-async-scheduling", tensor_parallel=2, **RTX),
            vllm("0.13.0", tensor_parallel=2, **H100),
        ],
    ),
    "VLLM-41838": (
        [vllm("0.20.1", head="nvidia-v3", **H200)],
        [
            vllm("0.33.0", head="nvidia-v3", **H200),
            vllm("0.20.1", "flag:--no-enable-prefix-caching", head="nvidia-v3", **H200),
            vllm("0.20.1", **H200),
        ],
    ),
    "VLLM-38754": (
        [vllm("0.20.1"), vllm("0.25.1", **H100)],
        [vllm("0.33.0"), vllm("0.20.1", "flag:--no-enable-prefix-caching"), vllm("0.20.1", **PLAIN)],
    ),
    "VLLM-H100-TP1": (
        [
            vllm("0.33.0", **H100 | PLAIN),
            vllm("0.33.0", "flag:--gpu-memory-utilization=0.95", **H100),
            vllm("0.33.0", "flag:--max-num-batched-tokens", "flag:--gpu-memory-utilization=0.8", **H100),
        ],
        [
            vllm("0.33.0", *ONE_GPU, **H100),
            vllm("0.33.0", tensor_parallel=2, **H100),
            vllm("0.33.0", **H200),
            vllm("0.33.0", model="gpt-oss-20b", **H100),
        ],
    ),
    "LCPP-18039": (
        [llama("b9000", **EAGLE), llama("b10100", **EAGLE | {"head": "ggml-120b"})],
        [llama("b10100", **EAGLE), llama("b10158", **EAGLE | {"head": "nvidia-v3"}), llama("b9000")],
    ),
    "LCPP-EAGLE-SLOW": (
        [llama("b10488", **EAGLE | {"concurrency": 1})],
        [
            llama("b10488", concurrency=1),
            llama("b10488", **EAGLE | {"concurrency": 8}),
            llama("b10488", **EAGLE | RTX | {"concurrency": 1, "bandwidth": 1.792e12}),
        ],
    ),
    "LCPP-MMAP": (
        [llama("b10488")],
        [llama("b10488", "flag:--no-mmap"), llama("b10488", "flag:--load-mode=none"), llama("b10488", **RTX)],
    ),
    "LCPP-CONTROL-TOKENS": (
        [llama("0.5.0", "api-key")],
        [llama("0.5.0"), llama("0.5.0", "api-key", model="demo"), spark("ollama", "0.33.0-rc2", "api-key")],
    ),
    "OLLAMA-EAGLE3": (
        [spark("ollama", "0.33.0-rc2", **EAGLE)],
        [spark("ollama", "0.33.0-rc2"), llama("b10488", **EAGLE)],
    ),
    "OLLAMA-12403": (
        [data_center("ollama", "0.12.0", "8.9", 48_000_000_000)],
        [
            data_center("ollama", "0.12.1", "8.9", 48_000_000_000),
            data_center("ollama", "0.12.0", "9.0", 80_000_000_000),
            data_center("ollama", "0.12.0", "8.9", 48_000_000_000, model="gpt-oss-20b"),
        ],
    ),
    "SPARK-PAGECACHE": (
        [sgl("0.5.23", "page-cache-full"), spark("eyas", "0.1.0", "page-cache-full")],
        [sgl("0.5.23"), sgl("0.5.23", "page-cache-full", **H100)],
    ),
    "EYAS-NOT-HOPPER": ([spark("eyas", "0.1.0"), spark("eyas", "0.1.0", **B200)], [spark("eyas", "0.1.0", **H100)]),
    "EYAS-OLDER-GPU": (
        [spark("eyas", "0.1.0", compute_capability="8.6", hardware="rtx-3090")],
        [spark("eyas", "0.1.0"), spark("eyas", "0.1.0", **H100), llama("0.5.0", compute_capability="8.6")],
    ),
    "EYAS-CPU": (
        [spark("eyas", "0.1.0", compute_capability="cpu", hardware="cpu", model="demo")],
        [spark("eyas", "0.1.0"), llama("0.5.0", compute_capability="cpu", hardware="cpu", model="demo")],
    ),
    "HARMONY-VOCAB": (
        [sgl("0.5.23", "offline"), trt("1.3.0rc13", "offline")],
        [
            sgl("0.5.23", "offline", "env:TIKTOKEN_ENCODINGS_BASE"),
            sgl("0.5.23"),
            sgl("0.5.23", "offline", model="qwen3-coder-30b-a3b"),
            llama("b10488", "offline"),
        ],
    ),
}


def test_all_known_issues_are_there_and_have_cases():
    assert len(KNOWN) == 51
    assert set(ISSUES) == set(KNOWN) == set(CASES)


@pytest.mark.parametrize("name", KNOWN)
def test_an_issue_applies_to_what_it_describes_and_to_nothing_else(name):
    affected, unaffected = CASES[name]
    assert affected and unaffected
    assert [facts for facts in affected if not applies(ISSUES[name], facts)] == []
    assert [facts for facts in unaffected if applies(ISSUES[name], facts)] == []


@pytest.mark.parametrize("name", KNOWN)
def test_each_way_in_which_an_issue_can_apply_is_in_a_case(name):
    issue = ISSUES[name]
    for when in issue.when:
        alone = type(issue)(**{field: getattr(issue, field) for field in issue.__struct_fields__} | {"when": (when,)})
        assert any(applies(alone, facts) for facts in CASES[name][0]), when


@pytest.mark.parametrize(
    "facts",
    [
        sgl("0.5.23", *CHAIN, *EAGLE3, "flag:--speculative-draft-model-path", LONGER, "tools"),
        sgl("0.5.23", *CHAIN, *EAGLE3, "flag:--speculative-draft-model-path", LONGER, **H100),
        vllm("0.33.0", "flag:--attention-backend=TRITON_ATTN", "tools"),
        vllm("0.33.0", *ONE_GPU, **H100),
        trt("1.3.0rc12"),
        trt("1.3.0rc13", "tools", **PLAIN),
        trt("1.3.0rc13", "tools", **B200),
        llama("b10488", "flag:--load-mode=none"),
        spark("ollama", "0.33.0-rc2"),
        spark("eyas", "0.1.0", **EAGLE, **H100),
    ],
    ids=lambda facts: f"{facts.engine}-{facts.hardware}-{facts.method}",
)
def test_the_plans_that_are_recommended_have_no_issue_but_costs(facts):
    assert [issue.name for issue in matching(facts) if issue.severity != "performance"] == []


def test_what_forbids_comes_first():
    facts = trt("1.3.0rc13", "tools", "page-cache-full", features=frozenset({"tools", "page-cache-full"}))
    assert [issue.name for issue in matching(facts)] == ["TRTLLM-16377", "SPARK-PAGECACHE", "TRTLLM-METRICS-JSON"]


@pytest.mark.parametrize("issue", ISSUES.values(), ids=lambda issue: issue.name)
def test_an_issue_is_complete_and_its_predicates_name_its_engines(issue):
    for when in issue.when:
        asked = when.engine if isinstance(when.engine, tuple) else (when.engine,)
        assert asked == (None,) or set(asked) <= set(issue.engines)
    assert all(re.compile(pattern) for pattern in issue.log_patterns)
    assert issue.affected and issue.trigger and issue.symptom and issue.workaround
    assert not issue.symptom.endswith(".") and not issue.workaround.endswith(".")
    if issue.effect == "forbid":
        assert issue.confidence != "low"
