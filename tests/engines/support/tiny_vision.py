"""A vision encoder with random weights as a projector file of llama.cpp (gemma3's kind), for any small text model."""

import gguf
import numpy as np

WIDTH, LAYERS, FF, HEADS, PATCH, SIDE = 64, 2, 128, 4, 14, 112  # 8 x 8 patches become 4 tokens


def write(path, hidden_size):
    """Names are those of tools/mtmd/clip.cpp; `hidden_size` is the text model's."""
    writer, draw = gguf.GGUFWriter(path, "clip"), np.random.default_rng(0)
    writer.add_string("clip.projector_type", "gemma3")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    for name, value in {
        "image_size": SIDE,
        "patch_size": PATCH,
        "embedding_length": WIDTH,
        "feed_forward_length": FF,
        "projection_dim": hidden_size,
        "block_count": LAYERS,
        "attention.head_count": HEADS,
    }.items():
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5] * 3)
    writer.add_array("clip.vision.image_std", [0.5] * 3)

    def add(name, *shape, ones=False):
        values = np.ones(shape) if ones else 0.1 * draw.standard_normal(shape)
        writer.add_tensor(name, values.astype(np.float32))

    def linear(name, rows, columns):
        add(f"{name}.weight", rows, columns)
        add(f"{name}.bias", rows)

    def norm(name):
        add(f"{name}.weight", WIDTH, ones=True)
        add(f"{name}.bias", WIDTH)

    add("v.patch_embd.weight", WIDTH, 3, PATCH, PATCH)
    add("v.patch_embd.bias", WIDTH)
    add("v.position_embd.weight", (SIDE // PATCH) ** 2, WIDTH)
    norm("v.post_ln")
    for layer in (f"v.blk.{index}" for index in range(LAYERS)):
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            linear(f"{layer}.{name}", WIDTH, WIDTH)
        norm(f"{layer}.ln1")
        norm(f"{layer}.ln2")
        linear(f"{layer}.ffn_up", FF, WIDTH)
        linear(f"{layer}.ffn_down", WIDTH, FF)
    add("mm.input_projection.weight", WIDTH, hidden_size)
    add("mm.soft_emb_norm.weight", WIDTH, ones=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
