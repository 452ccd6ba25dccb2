"""What the page's tests share: a stub engine whose drafts are right now and then, answers to look at, fast ones."""

import itertools
import os
import random
from pathlib import Path

from eyas.base.tokens.tokenizer import Tokenizer
from eyas.base.types import RoundTrace, TokenEvent
from eyas.engine.ports.stub import StubEngine

EVIL = "evil.example"  # whose DNS server says that it is at this machine
CHROMIUM = Path("/usr/bin/chromium")
CHROMIUM_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", f"--host-resolver-rules=MAP {EVIL} 127.0.0.1"),
)
SHOTS = os.environ.get("EYAS_SHOTS")  # a folder that keeps the screenshots

REASONING = (
    "The user asks how speculative decoding can be exact. I should explain drafting, verification and why the "
    "output does not change. A short list, one line of code, a table of numbers. Keep it brief."
)
CONTENT = """A small **draft head** guesses a few tokens ahead, and the model checks *all of them in one pass*:

1. The head drafts `K` tokens.
2. The model computes the next token at each of the `K + 1` positions.
3. Drafts are kept up to the first that differs; the model's own token follows.

```python
def accepted(drafts, drawn):
    return next((i for i, d in enumerate(drafts) if d != drawn[i]), len(drafts))
```

### Why nothing changes

A draft is kept only if it *equals* what the model draws there, so the text is the same with and without it.

| drafts | tokens per pass |
|---|---|
| 0 | 1.00 |
| 3 | 2.61 |

More in [the paper](https://arxiv.org/abs/2503.01840)  \u2713
"""
HOSTILE = (
    '<img src=x onerror="window.hacked=1"> <script>window.hacked=1</script>\n\n'
    "[link](javascript:window.hacked=1) [data](data:text/html,x) **<b onclick=alert(1)>bold</b>**\n\n"
    "```html\n<iframe src='https://evil.example'></iframe>\n```\n\n| <i>a</i> | b |\n|---|---|\n| <u>c</u> | `<s>` |\n"
)
# Makes the page's answers from now on a text of a number of tokens, 40 every 16 ms, and times its frames.
STREAM = """([text, count]) => {
    window.frames = [];
    let last = performance.now();
    const frame = (now) => {
        window.frames.push(Math.round(now - last));
        last = now;
        requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
    const { fetch } = window;
    window.fetch = (path, options) => {
        if (!path.endsWith("/chat/completions")) return fetch(path, options);
        const size = Math.ceil(text.length / count), encoder = new TextEncoder();
        const chunk = (delta, more) => JSON.stringify({ id: "x-123456", choices: [{ index: 0, delta, ...more }] });
        const line = (delta, more) => encoder.encode(`data: ${chunk(delta, more)}\\n\\n`);
        let at = 0;
        const body = new ReadableStream({ async pull(controller) {
            await new Promise((done) => setTimeout(done, 16));
            for (let n = 0; n < 40 && at < text.length; n++, at += size)
                controller.enqueue(line({ content: text.slice(at, at + size) }));
            if (at < text.length) return;
            controller.enqueue(line({}, { finish_reason: "stop" }));
            controller.enqueue(encoder.encode("data: [DONE]\\n\\n"));
            controller.close();
        } });
        return Promise.resolve(new Response(body));
    };
}"""
QUESTION = "How can speculative decoding be exact?"


class UnevenStub(StubEngine):
    """Accepts between none and all of the drafts of a round, likelier the early ones."""

    _chance = random.Random(5)

    def _round(self, choice):
        num_drafts = self._drafts_per_round
        if choice.cancelled or choice.num_done == 0 or not num_drafts:
            return super()._round(choice)
        rates = [0.86 - 0.07 * i for i in range(num_drafts)]
        num_right = len(list(itertools.takewhile(lambda rate: self._chance.random() < rate, rates)))
        coming = choice._ids[choice.num_done : choice.num_done + num_drafts]
        ids, finish = choice.take(num_right + 1)
        num_right = min(num_right, len(ids) - 1)
        size = self.info.vocab_size
        wrong = [(token + 1 + self._chance.randrange(size - 1)) % size for token in coming[num_right:]]
        trace = RoundTrace(draft_ids=(*ids[:num_right], *wrong), num_accepted=num_right)
        event: TokenEvent = choice.event(ids, finish, trace, self._num_cached)
        return event


def harmony(codec: Tokenizer, content: str, reasoning: str = "") -> list[int]:
    """What gpt-oss emits after `<|start|>assistant`."""
    s = codec.special
    thought = [s["<|channel|>"], *codec.encode("analysis"), s["<|message|>"], *codec.encode(reasoning), s["<|end|>"]]
    final = [s["<|channel|>"], *codec.encode("final"), s["<|message|>"], *codec.encode(content), s["<|return|>"]]
    return [*thought, s["<|start|>"], *codec.encode("assistant"), *final] if reasoning else final


def call(codec: Tokenizer, name: str, arguments: str, reasoning: str = "I need the weather.") -> list[int]:
    """A function call in Harmony."""
    s = codec.special
    return [
        *[s["<|channel|>"], *codec.encode("analysis"), s["<|message|>"], *codec.encode(reasoning), s["<|end|>"]],
        *[
            s["<|start|>"],
            *codec.encode("assistant"),
            s["<|channel|>"],
            *codec.encode(f"commentary to=functions.{name} "),
        ],
        *[s["<|constrain|>"], *codec.encode("json"), s["<|message|>"], *codec.encode(arguments), s["<|call|>"]],
    ]
