"""What owners of boxes asked, and what must and must not stand in the answer. Each case is a command as it was typed.

Words are looked for in the answer with its line breaks taken out; `~` before one means that it must not be there.
"""

import re
import shlex

import pytest

from eyas.cli import main
from eyas.recipes.advice.symptoms import explain

TRT = "nvcr.io/nvidia/tensorrt-llm/release"
IMAGES = {
    # TensorRT-LLM #8615: the image of the Spark playbook's first edition, planned as if 1.3.0rc13 were in it.
    f"plan gpt-oss-120b --on rtx-pro-6000 --engine tensorrt-llm --image {TRT}:1.2.0rc6": [
        "tensorrt-llm 1.2.0rc6, no speculation",
        "TRTLLM-8615",
        "--extra_llm_api_options",
        "~--config /opt",
    ],
    # Also where the head is left out because it costs time: who adds it by hand should know.
    f"plan gpt-oss-120b --on spark --engine tensorrt-llm --image {TRT}:1.2.0rc6": [
        "tensorrt-llm 1.2.0rc6, no speculation",
        "left out: EAGLE-3 of gpt-oss on compute capability 12.x, since the output loops on '!'",
    ],
    f"plan gpt-oss-120b --on spark --engine tensorrt-llm --draft nvidia-long-context --image {TRT}:1.2.0rc6": [
        "tensorrt-llm 1.2.0rc6, eagle3",
        "TRTLLM-8615",
        "TRTLLM-GREEDY",
    ],
    f"plan gpt-oss-120b --on 8xb200 --engine tensorrt-llm --image {TRT}:1.1.0rc0": [
        f"version 1.1.0rc0 in {TRT}:1.1.0rc0 is not known here",
        "~TRTLLM-8615",
    ],
    f"plan gpt-oss-120b --on rtx-pro-6000 --engine tensorrt-llm --image {TRT}:1.2.0rc1": [
        "version 1.2.0rc1",
        "TRTLLM-8615",
        "loops on '!'",
    ],
    f"plan gpt-oss-120b --on rtx-pro-6000 --engine tensorrt-llm --image {TRT}:1.3.0rc13": [
        "tensorrt-llm 1.3.0rc13",
        "~TRTLLM-8615",
    ],
    "plan gpt-oss-120b --on spark --engine sglang --image lmsysorg/sglang:spark": [
        "sglang 0.5.3.post3",
        "--cuda-graph-max-bs 4",
        "all layers in full",
        "~--cuda-graph-max-bs-decode",
    ],
    "plan gpt-oss-120b --on spark --engine sglang --image lmsysorg/sglang:spark --draft lmsys --draft-tokens 3": [
        "sglang 0.5.3.post3, eagle3 with lmsys-120b, 3 draft tokens",
    ],
    "plan gpt-oss-120b --on spark --engine sglang --image lmsysorg/sglang:spark --draft nvidia-v3": [
        "wants SGLang >=0.5.17, this is 0.5.3.post3",
    ],
    "plan gpt-oss-120b --on spark --engine vllm --image avarok/vllm-nvfp4-gb10-sm120:v14": [
        "planned as vLLM 0.14.1",
        "its version is not known",
        "may apply to avarok/vllm-nvfp4-gb10-sm120:v14",
        "--engine-version",
        "~TRITON_ATTN --moe-backend",
    ],
    "plan gpt-oss-120b --on spark --engine vllm --engine-version 0.20.1 --image avarok/vllm-nvfp4-gb10-sm120:v14": [
        "vllm 0.20.1",
        "--moe-backend marlin",
        "~is not known",
    ],
    "plan gpt-oss-120b --on spark --engine vllm --image registry.local:5000/vllm/vllm-openai:v0.14.1": [
        "vllm 0.14.1",
        "~TRITON_ATTN --moe-backend",
        "~is not known",
    ],
    "plan gpt-oss-120b --on h100 --engine vllm --image vllm/vllm-openai:v0.20.1@sha256:" + "ab" * 32: ["vllm 0.20.1"],
    "plan gpt-oss-120b --on spark --engine vllm --image nvcr.io/nvidia/vllm:26.03-py3": ["vllm 0.17.1"],
    "plan gpt-oss-120b --on spark --engine vllm --image nvcr.io/nvidia/vllm:26.01-py3": ["version 0.11.1 in"],
    "plan gpt-oss-120b --on h100 --engine sglang --image lmsysorg/sglang:latest": [
        "planned as SGLang 0.5.6",
        "~--cuda-graph-max-bs",
    ],
    "plan gpt-oss-120b --on h100 --engine vllm --engine-version 0.33.0 --image vllm/vllm-openai:v0.20.1": [
        "vllm 0.33.0",
        "--engine-version 0.33.0 is believed",
        "hold 0.20.1",
    ],
    "plan gpt-oss-120b --on h100 --engine vllm --image lmsysorg/sglang:v0.5.21-cu130": ["holds sglang", "~Memory"],
    "plan gpt-oss-120b --on h100 --engine vllm --image ''": ["--image wants the name of a container image, got ''"],
    "plan gpt-oss-120b --on h100 --engine vllm --image 'vllm/vllm openai'": ["--image wants"],
}
ISSUES = {
    # MXFP4 on compute capability 12.x: marlin or nothing, and what that costs.
    "plan gpt-oss-120b --on rtx-pro-6000 --engine vllm": [
        "--moe-backend marlin",
        "VLLM-MARLIN-COST",
        "28 % slower",
        "~VLLM-37030",
    ],
    "plan gpt-oss-120b --on spark --engine vllm --image vllm/vllm-openai:v0.20.1": ["VLLM-37030", "~VLLM-43969"],
    "plan gpt-oss-120b --on spark --engine vllm --image vllm/vllm-openai:v0.22.0": ["VLLM-43969", "~VLLM-37030"],
    "plan gpt-oss-120b --on spark --engine vllm --image nvcr.io/nvidia/vllm:26.05.post1-py3": [
        "--moe-backend marlin",
        "~VLLM-37030",
    ],
    "plan gpt-oss-120b --on h100 --engine vllm --spec none": [
        "~TRITON_ATTN --moe-backend",
        "~VLLM-MARLIN-COST",
        "~VLLM-53670",
    ],
    # A prefix that is found in the cache, with drafts.
    "plan gpt-oss-120b --on h200 --engine vllm --draft nvidia-v3 --for claude-code": ["VLLM-53670", "~SGL-32459"],
    "plan gpt-oss-120b --on h200 --engine sglang --draft nvidia-v3 --for claude-code": ["SGL-32459", "40 to 53 %"],
    "plan gpt-oss-120b --on h200 --engine sglang --spec none --for claude-code": ["~SGL-32459"],
    "plan gpt-oss-120b --on h200 --engine sglang --draft nvidia-v3 --for batch": ["~SGL-32459"],
}
PURPOSE = {
    # An engine without /v1/messages, or whose own loses what Claude Code sends, gets the router in front.
    "plan gpt-oss-120b --on spark --for claude-code --engine sglang": [
        "Claude Code talks to eyas router on port 8100",
        "drops messages of role system",
        'eyas router "$HOME"/.local/share/eyas/gpt-oss-120b-sglang/router.yaml',
        "eyas claude --url http://127.0.0.1:8100",
    ],
    "plan gpt-oss-120b --on b200 --for claude-code --engine tensorrt-llm": ["has no /v1/messages", "router.yaml"],
    "plan gpt-oss-120b --on spark --for claude-code --engine ollama": ["moves system messages", "router.yaml"],
    "plan gpt-oss-120b --on spark --for claude-code --engine llama.cpp": ["drops messages of role", "router.yaml"],
    "plan gpt-oss-120b --on h100 --for claude-code --engine vllm --image vllm/vllm-openai:v0.20.1": [
        "moves system messages",
        "router.yaml",
    ],
    "plan gpt-oss-120b --on h200 --for claude-code --engine vllm": ["only 26 % of a prompt", "~moves system messages"],
    "plan gpt-oss-120b --on h200 --for claude-code --engine eyas": ["~router"],
    "plan gpt-oss-120b --on h200 --for chat --engine sglang": ["~router"],
    "plan gpt-oss-120b --on 8xb200 --for claude-code --emit compose --out /tmp/never": [
        "eyas router stands in front of this engine",
        "--emit shell",
    ],
    # A box with several GPUs and an engine for one.
    "plan gpt-oss-120b --on 8xh200 --engine eyas": ["7 of 8 GPUs stay idle", "on all 8 is expected to give"],
    "plan gpt-oss-120b --on 2xh200 --concurrency 1": ["1 of 2 GPUs stay idle", "(--engine sglang)"],
    "plan gpt-oss-120b --on 8xh200 --concurrency 1": ["7 of 8 GPUs stay idle", "(--engine sglang)"],
    "plan gpt-oss-120b --on 8xh200 --concurrency 64": ["vllm 0.33.0", "~stay idle"],
    "plan gpt-oss-120b --on h200 --engine eyas": ["~stay idle"],
}
ASKED = {
    # Other names of engines.
    "plan gpt-oss-120b --on b200 --engine trtllm": ["tensorrt-llm 1.3.0rc13"],
    "plan gpt-oss-120b --on b200 --engine TRT-LLM": ["tensorrt-llm 1.3.0rc13"],
    "plan gpt-oss-120b --on spark --engine llamacpp": ["llama.cpp 0.5.0"],
    "plan gpt-oss-120b --on spark --engine llama-server": ["llama.cpp 0.5.0"],
    # A draft model for one conversation.
    "plan llama-3.3-70b-fp4 --on spark --engine trtllm --spec draft-model": [
        "is meant for at most 1 request at once (--concurrency 1 would do",
        "~Expected speed",
    ],
    "plan llama-3.3-70b-fp4 --on spark --engine trtllm --spec draft-model --concurrency 1": ["draft-model with llama"],
    # A head that was asked for: what speaks against it stands beside what speaks against engines.
    "plan gpt-oss-120b --on mac --draft nvidia-v3": [
        "nvidia/gpt-oss-120b-Eagle3-v3 cannot be loaded by llama.cpp",
        "vLLM: not planned on Macs",
    ],
    "plan gpt-oss-120b --on spark --engine ollama --draft nvidia-v3": ["Eagle3-v3 cannot be loaded by Ollama"],
    # More at once than the memory holds, and no queue.
    "plan gpt-oss-120b --on spark --engine llama.cpp --concurrency 64 --context 32k": ["what fits:", "--concurrency "],
    # An 8-bit cache is an option of every engine's command, or the plan is refused.
    "plan gpt-oss-120b --on h200 --engine sglang --kv-dtype fp8": ["--kv-cache-dtype fp8_e4m3"],
    "plan gpt-oss-120b --on h200 --engine vllm --kv-dtype fp8": ["--kv-cache-dtype fp8"],
    "plan gpt-oss-120b --on spark --engine llama.cpp --kv-dtype fp8": ["-ctk q8_0"],
    "plan gpt-oss-120b --on spark --engine ollama --kv-dtype fp8": ["OLLAMA_KV_CACHE_TYPE=q8_0"],
    # Files go to a named folder.
    "plan gpt-oss-120b --on spark --emit shell": ["--emit shell writes several files", "--out start"],
    "plan gpt-oss-120b --on mac --emit systemd --out /tmp/never": ["a Mac has no systemd; use --emit shell"],
    "plan gpt-oss-120b --on mac --emit sbatch --out /tmp/never": ["Slurm runs on Linux", "use --emit shell"],
    "plan gpt-oss-120b --on spark --engine ollama --image ollama/ollama": ["Ollama: it is planned", "~Ollama: Ollama"],
    "plan gpt-oss-120b --on spark --emit systemd": ["--emit systemd writes several files"],
}
MANY = {
    # Slurm and TensorRT-LLM: a task for each GPU, joined by PMIx, in place of mpirun over ssh.
    "plan gpt-oss-120b --on 8xb200 --engine trtllm --emit sbatch --out OUT": [
        "#SBATCH --ntasks-per-node=8",
        "srun --overlap --mpi=pmix --nodes=1 --ntasks=8 --ntasks-per-node=8",
        "trtllm-llmapi-launch trtllm-serve",
        "~mpirun",
    ],
    "plan gpt-oss-120b --on 8xgb200 --engine trtllm --node a=10.0.0.1 --node b=10.0.0.2 --emit sbatch --out OUT": [
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        "srun --overlap --mpi=pmix --nodes=2 --ntasks=8 --ntasks-per-node=4",
        "NVIDIA_IMEX_CHANNELS",
        "~mpirun",
        "~sshd",
        "~openmpi-hostfile",
    ],
    "plan gpt-oss-120b --on 8xb200 --engine trtllm --native --emit sbatch --out OUT": [
        "srun --overlap --mpi=pmix --nodes=1 --ntasks=8",
        "trtllm-llmapi-launch trtllm-serve",
        "~container",
    ],
    "plan gpt-oss-20b --on spark --engine ollama --emit sbatch --out OUT": ["/dev/tcp/127.0.0.1/11434"],
    "plan gpt-oss-120b --on b200 --engine trtllm --emit sbatch --out OUT": ["#SBATCH --ntasks-per-node=1", "~pmix"],
    # Ray over two machines, as vLLM's page on parallelism and scaling has it.
    "plan gpt-oss-120b --on 2xspark --engine vllm --emit shell --out OUT": [
        "ray start --block",
        "--head --port=6379 --node-ip-address=192.168.200.12",
        "--address=192.168.200.12:6379 --node-ip-address=192.168.200.13",
        "VLLM_HOST_IP=192.168.200.13",
        "RAY_OVERRIDE_NODE_IP_ADDRESS=192.168.200.13",
        "GPUs have joined",
        "--tensor-parallel-size 2 --distributed-executor-backend ray",
    ],
    # Two Sparks by the playbook: network, ssh, MPI, host file.
    "plan qwen3-235b-a22b-fp4 --on 2xspark --engine trtllm --emit shell --out OUT": [
        "192.168.200.14/24",
        "192.168.200.15/24",
        "ssh-copy-id",
        "the same user name is needed on both machines",
        "192.168.200.12 slots=1 192.168.200.13 slots=1",
        "/etc/openmpi-hostfile",
        "OMPI_MCA_btl_tcp_if_include=enp1s0f1np1,enP2p1s0f1np1",
        "OMPI_MCA_rmaps_ppr_n_pernode=1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
        "UCX_NET_DEVICES=enp1s0f1np1,enP2p1s0f1np1",
        "TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas",
        "memlock=-1",
        "Port 2233",
        "mpirun reached fewer than",
        "mpirun -np 2",
        "trtllm-llmapi-launch trtllm-serve nvidia/Qwen3-235B-A22B-FP4",
        "--tp_size 2",
        "~raw.githubusercontent",
    ],
}
BOXES = {
    # Macs: llama.cpp and Ollama, within what macOS lets the GPU have.
    "plan gpt-oss-120b --on mac --explain": ["llama.cpp 0.5.0", "of 96.00 GiB", "iogpu.wired_limit_mb", "~eyas 0.1.0"],
    "plan gpt-oss-120b --on m3-ultra-512": [
        "llama.cpp",
        "of 384.00 GiB",
        "Ollama",
        "~--load-mode",
        "~drop_caches",
    ],
    "plan gpt-oss-120b --on mac --engine eyas": ["not planned on Macs"],
    "plan gpt-oss-120b --on mac --engine vllm": ["not planned on Macs"],
    "plan gpt-oss-120b --on mac --engine llama.cpp --emit shell --out OUT": ["~drop_caches"],
    "plan gpt-oss-120b --on m4-max-64": ["it has 48.00 GiB", "a larger box (--on ", "gpt-oss-20b"],
    # Two cards of 24 GB.
    "plan gpt-oss-20b --on 2xrtx-3090": ["llama.cpp", "tok/s"],
    "plan gpt-oss-20b --on 2xrtx-4090": ["llama.cpp", "tok/s"],
    "plan gpt-oss-120b --on 2xrtx-3090": ["each GPU has 23.69 GiB", "--n-cpu-moe", "a larger box (--on "],
    "plan gpt-oss-120b --on 2x4090": ["each GPU has 23.65 GiB", "--n-cpu-moe"],
    # Known, and not planned.
    "plan gpt-oss-120b --on mi300x": ["mi300x is known, and nothing is planned", "vllm/vllm-openai-rocm", "GGML_HIP"],
    "plan gpt-oss-120b --on 8xmi300x": ["8xmi300x is known, and nothing is planned"],
    # The guides of the documents that it started from, each with what is different and why.
    "plan gpt-oss-120b --on 8xh800 --engine vllm --draft aimo3 --draft-tokens 3 --explain": [
        "aimo3 guide: --async-scheduling",
        "aimo3 guide: --kv-cache-dtype fp8",
        "aimo3 guide: -m vllm.entrypoints.openai.api_server",
    ],
    "plan gpt-oss-120b --on spark --engine sglang --draft lmsys --explain": ["Spark guide 2025-12: --max-model-len"],
    "plan gpt-oss-120b --on spark --engine llama.cpp --explain": ["corti.com guide 2026-05: "],
    "plan gpt-oss-120b --on spark --engine trtllm --draft nvidia-long-context --explain": ["playbook"],
    "plan gpt-oss-120b --on 8xb200 --engine trtllm --explain": ["TensorRT-LLM blog 11: --trust_remote_code"],
}
SPEED = {
    # Published: 62.4, 65.2 and 60.7 tok/s without, with 1 and with 2 drafts, of a patched build on hardware that is not
    # named; the range ended at 51.1. They move nothing, so no drafts are chosen for them, and an owner is told of them.
    "plan gpt-oss-120b --on spark --engine vllm --concurrency 1": ["49.7..68.0 tok/s", "~46.8..51.1", "no speculation"],
    "plan gpt-oss-120b --on spark --concurrency 1 --context 4k --explain": [
        "llama.cpp 0.5.0, no speculation",
        "62.4, 65.2 and 60.7 tokens per second without, with 1 and with 2 drafts",
    ],
    "plan gpt-oss-120b --on spark --engine vllm --draft nvidia-v3 --draft-tokens 1 --concurrency 1 --explain": [
        "65.2 tok/s at 1 with 1 drafts",
        "only shown, it moves no estimate: a patched build on hardware that is not named",
    ],
    # Doubts lower the pick as they lower the others, and it says so.
    "plan gpt-oss-120b --on m4-max-128 --explain": [
        "weighed 15 % lower than that, as the others are: it has no published"
    ],
    # A head that never saw such positions earns nothing there.
    "plan gpt-oss-120b --on h200 --engine sglang --draft lmsys --context 32k --concurrency 1": [
        "speculation is expected to cost time here",
    ],
    "plan gpt-oss-120b --on h100 --engine eyas --concurrency 8": ["published: 1319 tok/s at 8", "1305 without"],
    "plan demo --on cpu --engine eyas": ["llama-server is several times faster there", "EYAS-CPU"],
}
EARLY = {
    # Before the first gigabyte: the program and how to get it, driver, port, memory, disk; the image last.
    "plan gpt-oss-120b --on spark --engine llama.cpp --emit shell --out OUT": [
        "-DGGML_CUDA=ON -DGGML_NATIVE=ON -DCMAKE_CUDA_ARCHITECTURES=121a-real",
        "driver_from 580 'the GPU needs it",
        "port 8005 is in use",
        "memory_of ",
        "room_in ",
    ],
    "plan gpt-oss-120b --on h100 --engine vllm --image vllm/vllm-openai:v0.33.0 --emit shell --out OUT": [
        "gpus_with 1 ",
        "docker image inspect vllm/vllm-openai:v0.33.0",
        "docker does not answer",
    ],
    "plan gpt-oss-120b --on h200 --engine vllm --emit sbatch --out OUT": ["need hf", "driver_from ", "gpus_with 1 "],
    # The largest that an engine may take, the name, and other machines with a key: in every engine's words.
    "plan gpt-oss-120b --on spark --engine eyas --memory 90GiB --host 0.0.0.0 --api-key env:KEY": [
        "eyas takes 69.14 GiB and 2.00 GiB for its processes",
        "--served-name openai/gpt-oss-120b",
        "--host 0.0.0.0",
        'EYAS_API_KEY="$KEY"',
    ],
    "plan gpt-oss-120b --on spark --engine sglang --memory 90GiB --host 0.0.0.0 --api-key env:KEY": [
        "--mem-fraction-static 0.701",
        "--host 0.0.0.0",
        'SGLANG_SERVER_KEY="$KEY"',
    ],
    "plan gpt-oss-120b --on spark --engine vllm --memory 90GiB --host 0.0.0.0 --api-key env:KEY": [
        "--gpu-memory-utilization 0.726",
        "--host 0.0.0.0",
        'VLLM_API_KEY="$KEY"',
    ],
    "plan gpt-oss-120b --on spark --engine llama.cpp --memory 90GiB --host 0.0.0.0 --api-key env:KEY": [
        "--cache-ram 3829",
        "--alias openai/gpt-oss-120b",
        "--host 0.0.0.0",
        'LLAMA_API_KEY="$KEY"',
    ],
    "plan gpt-oss-120b --on spark --engine trtllm --memory 90GiB --host 0.0.0.0 --api-key env:KEY": [
        "clients talk to eyas router on port 8100, which asks them for the key: TensorRT-LLM knows no API keys",
        'KEY="$KEY" eyas router',
        "--host 127.0.0.1",
        "~--host 0.0.0.0 --port 8000",
    ],
    "plan gpt-oss-120b --on spark --engine ollama --memory 90GiB --host 0.0.0.0 --api-key env:KEY": [
        "which asks them for the key: Ollama knows no API keys",
        "OLLAMA_HOST=127.0.0.1:11434",
    ],
    "plan gpt-oss-120b --on spark --engine ollama --host 192.168.1.5 --api-key env:KEY": [
        "the router in front that asks for them wants --host 0.0.0.0",
    ],
}
SCREENS = {
    "plan gpt-oss-120b --on spark": ["tok/s for each of 4", "together", "first token", "no speculation"],
    "plan gpt-oss-120b --on 2xspark": ["vllm serve", "no speculation", "5 more launches"],
    "plan gpt-oss-120b --on h200 --concurrency 1": ["eyas serve", "~for each of", "draft token a round gains"],
    "plan gpt-oss-120b --on 8xb200 --for claude-code --engine trtllm": [
        "Claude Code talks to eyas router on port 8100"
    ],
    "plan gpt-oss-120b --on rtx-pro-6000 --engine vllm": ["--moe-backend marlin", "[VLLM-MARLIN-COST]"],
    "plan gpt-oss-120b --on m3-ultra-512": ["llama.cpp", "384.00 GiB", "~SGLang", "~drop_caches"],
    "plan gpt-oss-20b --on mac": ["llama-server", "Mac with M4 Max"],
    f"plan gpt-oss-120b --on rtx-pro-6000 --engine tensorrt-llm --image {TRT}:1.2.0rc6": ["TRTLLM-8615"],
    "plan gpt-oss-120b --on 8xh100 --engine eyas --concurrency 64": ["7 of 8 GPUs stay idle"],
    "plan nomic-embed-text-v1.5 --on spark": ["the vector of"],
    # Why nothing is drafted, also where a head would gain, where the engine is too old for it, or loads none.
    "plan gpt-oss-20b --on rtx-5090": ["x1.00..1.17, weighed lower since it"],
    "plan gpt-oss-120b --on spark --engine sglang --image lmsysorg/sglang:spark": ["no speculation: nvidia/"],
    "plan gpt-oss-120b --on spark --engine ollama": [
        "no speculation: Ollama loads no draft head of gpt-oss-120b",
        "OLLAMA_CONTEXT_LENGTH=32768",  # its settings are variables: `ollama serve` alone is another server
    ],
    # The address is where clients get an answer.
    "plan gpt-oss-120b --on spark --engine trtllm --host 0.0.0.0 --api-key env:KEY": [
        "http://127.0.0.1:8100/v1, open to other machines (0.0.0.0)",
        "~:8000/v1",
    ],
    "plan gpt-oss-120b --on mac --for claude-code": ["http://127.0.0.1:8100/v1", "libraries 768.0 MiB", "~CUDA"],
    "plan gpt-oss-120b --on 8xgb200 --node a=10.0.0.1 --node b=10.0.0.2": ["8 x GB200 GPU", "~are assumed"],
    "plan gpt-oss-120b --on 8xgb200 --node a --node b=10.0.0.2": ["10.0.0.2 are assumed"],
    "plan gpt-oss-120b --on spark --engine eyas": ["[EYAS-NOT-HOPPER] its kernels have run on Hopper only"],
    "plan gpt-oss-20b --on rtx-3090 --engine eyas": ["[EYAS-OLDER-GPU]"],
    "plan gpt-oss-120b --on h100 --engine eyas": ["~EYAS-"],
    "plan gpt-oss-120b --on h100 --concurrency 64": ["143.93 GiB of 79.18 GiB, some wait", "only 10 of 64"],
}
LINES = {  # of logs, as `eyas logs --explain` gets them (all of them: advice/test_symptoms.py)
    "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'": ["older than the GPU", "CUDA 13"],
    "[sgl_kernel] CRITICAL: Could not load any common_ops library!": ["no code for this GPU"],
    "sglang: error: argument --attention-backend: invalid choice: 'torch_sdpa'": ["not this value"],
    "  Extra inputs are not permitted [type=extra_forbidden, input_value='fr']": ["a field that this version does not"],
    "[12-16 14:27:10] Exit code: -9": ["the machine's memory was full"],
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2)": ["one GPU or node waited"],
    "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD": ["a rank of MPI ended"],
    "Repo model meta-llama/Llama-2-7b-chat-hf is gated. You must be authenticated": ["HF_TOKEN"],
    "write /ollama/models/blobs/sha256-00-partial: no space left on device": ["the disk is full"],
    "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)": ["a newer NVIDIA driver"],
    "code: -98, name: EADDRINUSE, message: address already in use": ["another program listens on the port"],
    "openai_harmony.HarmonyError: error downloading or loading vocab file": ["vocabulary"],
    "Exception: Capture cuda graph failed: CUDA out of memory.": ["CUDA graphs could not be captured"],
    "Received request chatcmpl-8f1: prompt: 'Wow!!!!!!!!!!!!!!!!!!!!!!!!', params: SamplingParams(n=1)": [],
}


def cases(table):
    return pytest.mark.parametrize(("command", "words"), table.items(), ids=list(table))


@cases(IMAGES)
def test_images_have_versions(command, words, capsys):
    check(command, words, capsys)


@cases(ISSUES)
def test_known_issues_are_said(command, words, capsys):
    check(command, words, capsys)


@cases(PURPOSE)
def test_the_purpose_decides(command, words, capsys):
    check(command, words, capsys)


@cases(ASKED)
def test_what_is_asked_is_done_or_refused(command, words, capsys):
    check(command, words, capsys)


@cases(MANY)
def test_several_machines_and_slurm(command, words, capsys, tmp_path):
    check(command.replace("OUT", str(tmp_path)), words, capsys, tmp_path)


@cases(BOXES)
def test_boxes_and_guides(command, words, capsys, tmp_path):
    check(command.replace("OUT", str(tmp_path)), words, capsys, tmp_path)


@cases(SPEED)
def test_speeds_agree_with_the_record(command, words, capsys):
    check(command, words, capsys)


@cases(EARLY)
def test_starts_fail_early_and_limits_reach_every_engine(command, words, capsys, tmp_path):
    check(command.replace("OUT", str(tmp_path)), words, capsys, tmp_path)


@cases(SCREENS)
def test_a_plan_fits_one_screen(command, words, capsys):
    assert main(shlex.split(command)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 100
    for word in words:
        assert (word[1:] not in "\n".join(lines)) if word[0] == "~" else (word in "\n".join(lines)), word


def test_a_plan_for_another_box_does_not_start_here(tmp_path, capsys, monkeypatch):
    """A deleted EYAS_HOME, the other half of this report: fleet/commands/test_down.py."""
    monkeypatch.setenv("EYAS_HOME", str(tmp_path))
    for box, words in (("spark", "is for NVIDIA DGX Spark (GB10)"), ("mac", "is for a Mac with M4 Max")):
        engine = "llama.cpp" if box == "mac" else "eyas"
        assert main(["up", "demo", "--on", box, "--engine", engine]) == 1
        says = " ".join(capsys.readouterr().err.split())
        assert words in says and "nothing was started" in says


@pytest.mark.parametrize(("line", "words"), LINES.items(), ids=list(LINES))
def test_lines_of_logs_are_explained(line, words):
    answer = " ".join(f"{finding.meaning}. {finding.remedy}" for finding in explain(line))
    assert bool(answer) == bool(words)
    assert all(word in answer for word in words)


def check(command, words, capsys, folder=None) -> None:
    """Run a command and compare its answer, on both streams and in the files that it wrote, with the words."""
    argv = shlex.split(command)
    if argv[0] == "plan" and not {"--explain", "--json", "--emit"} & {*argv}:
        argv.append("--explain")  # the screen is a test of its own
    code = main(argv)
    out, err = capsys.readouterr()
    assert bool(err) == (code != 0)
    written = [path.read_text() for path in sorted(folder.iterdir())] if folder is not None else []
    answer = re.sub(r"[\s\\]+", " ", "\n".join((out, err, *written)))
    for word in words:
        if word.startswith("~"):
            assert word[1:] not in answer
        else:
            assert word in answer
