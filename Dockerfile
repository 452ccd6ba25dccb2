# eyas for NVIDIA GPUs, x86_64 and aarch64; without a GPU it serves the demo model on the CPU.
#
#   docker build --tag eyas:0.1.0 .        after `make wheel`, in a checkout or in what `eyas plan --emit compose` wrote
#   docker run --gpus all --publish 127.0.0.1:8000:8000 --volume eyas-cache:/cache eyas:0.1.0
#
# The build context holds dist/eyas-*.whl and the constraints. A slim base is enough: the CUDA libraries come with torch
# as Python packages, on both architectures, and the driver is the host's (NVIDIA Container Toolkit).
# --build-arg TORCH=cpu takes the pins of a machine without a GPU.
FROM python:3.12.14-slim-trixie@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea

# Triton compiles its launchers with a C compiler when a kernel first runs.
# Debian keeps one version of a package at a time: a pinned one is gone with its next update.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home --uid 1000 eyas \
    && install --directory --owner=eyas --group=eyas /cache /cache/huggingface

COPY constraints*.txt dist/eyas-*.whl /tmp/build/

ARG TORCH=cuda
RUN set -- /tmp/build/eyas-*.whl \
    && { [ "$#" -eq 1 ] || { echo "dist holds $# wheels of eyas: $*" >&2; exit 1; }; } \
    && pip install --no-cache-dir --constraint "/tmp/build/constraints-$TORCH.txt" "$1[gpu]" \
    && rm -rf /tmp/build

# Models and compiled kernels; they outlive the container in a volume with a name.
ENV XDG_CACHE_HOME=/cache HF_HOME=/cache/huggingface TRITON_CACHE_DIR=/cache/triton \
    EYAS_HOST=0.0.0.0 EYAS_PORT=8000
VOLUME /cache
EXPOSE 8000
USER 1000:1000
WORKDIR /home/eyas

# A large model loads for minutes.
HEALTHCHECK --interval=30s --timeout=10s --start-period=15m --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as http; http.urlopen('http://127.0.0.1:' + os.environ['EYAS_PORT'] + '/ready', timeout=8)"]
ENTRYPOINT ["eyas"]
CMD ["serve"]
