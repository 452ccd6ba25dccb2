"""What lm-eval asks of a server: log-probabilities of a prompt, as `transformers` computes them for the demo model."""

import openai
import pytest
import torch
import transformers
from tests.support.serving import served

from eyas.base.bundled import DEMO
from eyas.base.tokens.tokenizer import Tokenizer

pytestmark = pytest.mark.slow  # tests/gateway/test_demo.py has a shorter prompt of a small random model
CONTEXT = "os.path.join(path, *paths): Join one or more path segments intelligently.\n" * 30
CONTINUATION = "shutil.rmtree(path): Recursively delete a directory tree. Gr\u00fc\u00dfe."


@pytest.fixture(scope="module")
def client():
    with served("demo", "--draft-tokens", "3") as server:
        yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def codec():
    return Tokenizer.load(DEMO)


@pytest.fixture(scope="module")
def oracle():
    model = transformers.AutoModelForCausalLM.from_pretrained(
        DEMO, quantization_config=transformers.Mxfp4Config(dequantize=True), attn_implementation="eager"
    )
    return model.float().eval()


def expected(oracle, ids):
    with torch.inference_mode():
        return oracle(torch.tensor([ids])).logits[0].log_softmax(-1)


def test_echoed_logprobs_equal_transformers(client, codec, oracle):
    """lm-eval's local-completions: token-id prompts, echo, logprobs=1, max_tokens=1; more than one prompt chunk."""
    prompts = [codec.encode(CONTEXT) + codec.encode(CONTINUATION), codec.encode(CONTINUATION)]
    assert len(prompts[0]) > 600
    answer = client.completions.create(
        model="eyas-demo", prompt=prompts, echo=True, logprobs=1, max_tokens=1, temperature=0, seed=1234
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice, ids in zip(answer.choices, prompts, strict=True):
        wanted, found = expected(oracle, ids), choice.logprobs
        assert found.token_logprobs[0] is None and len(found.token_logprobs) == len(ids) + 1
        chosen = wanted[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
        assert torch.tensor(found.token_logprobs[1 : len(ids)]).sub(chosen).abs().max() < 1e-3
        for place in range(1, len(ids)):
            best = max(found.top_logprobs[place].values())
            assert abs(best - wanted[place - 1].max().item()) < 1e-3
            is_greedy = found.token_logprobs[place] == best  # how lm-eval tells a greedy token
            assert is_greedy == (wanted[place - 1].argmax().item() == ids[place])


def test_the_prompt_cache_changes_nothing(client, codec):
    ids = codec.encode(CONTEXT)
    ask = {"model": "eyas-demo", "prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    first, second = (client.completions.create(**ask).choices[0].logprobs for _ in range(2))
    assert first == second
