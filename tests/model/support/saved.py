"""A small random gpt-oss as transformers saves it, and its model as the oracle."""

import torch
import transformers


def save_random(folder, *, vocab_size, seed):
    """Write the checkpoint into `folder` in bf16; returns transformers' model of it in fp32."""
    torch.manual_seed(seed)
    config = transformers.GptOssConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_local_experts=6,
        num_experts_per_tok=4,
        sliding_window=20,
        max_position_embeddings=512,
        initializer_range=0.15,
    )
    transformers.GptOssForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
