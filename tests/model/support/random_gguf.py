"""Small random checkpoints with a tokenizer, so that they can be written as GGUF."""

import json
from dataclasses import replace

from eyas.base.bundled import DEMO, OWN_HEAD
from eyas.base.tokens.cuts import O200K
from eyas.base.tokens.tokenizer import CONTROL_TOKENS, byte_alphabet
from eyas.model.making.make import make_head, make_target
from eyas.model.making.presets import PRESETS, head_of_kind

RETURN, CALL = 505, 506  # ids of the control tokens that end an answer
TINY = replace(
    PRESETS["tiny"], num_layers=4, layer_is_sliding=(True, False, True, False), eos_ids=(RETURN, CALL), max_context=2048
)
LETTERS = ("a", "b")


def make_random(config, folder, *, style="hf", head=None, head_changes=(), seed=0, **own):
    """A checkpoint in `folder`, with a head of a published kind in its own folder if asked for; returns the folder."""
    make_target(config, folder, style=style, seed=seed)
    write_tokenizer(folder)
    if head is not None:
        head_config, head_style = head_of_kind(head, config)
        head_config = replace(head_config, **dict(head_changes))
        make_head(head_config, folder / OWN_HEAD, target=config, style=head_style, seed=seed, **own)
    return folder


def write_tokenizer(folder, *, rule="demo"):
    """All bytes, one merge, and the control tokens at the end of a vocabulary of 512."""
    raw = json.loads((DEMO / "tokenizer.json").read_text())
    if rule == "o200k":
        raw["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = O200K
    vocab = {char: byte for byte, char in byte_alphabet().items()} | {"".join(LETTERS): 256}
    raw["model"] |= {"vocab": vocab, "merges": [" ".join(LETTERS)]}
    template = raw["added_tokens"][0]
    raw["added_tokens"] = [template | {"id": 500 + i, "content": name} for i, name in enumerate(CONTROL_TOKENS)]
    (folder / "tokenizer.json").write_text(json.dumps(raw))
