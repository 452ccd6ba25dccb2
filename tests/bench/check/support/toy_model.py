"""A language model of a few words for stubs of servers: it obeys, has real log-probabilities, and a token is a word."""

import json
import math
import random
import re
from dataclasses import dataclass, field

WORDS = (
    "light",
    "sea",
    "storm",
    "rock",
    "boat",
    "wind",
    "wave",
    "night",
    "lamp",
    "fog",
    "gull",
    "rope",
    "tide",
    "sand",
)
RIVALS = 4  # words that may come at a place
SUM = re.compile(r"What is (\d+) \+ (\d+)\?")
LINE = re.compile(r"How many nails does line (\d+) name")


@dataclass(frozen=True)
class Token:
    text: str
    kind: str = "content"  # or "reasoning"
    rivals: tuple[tuple[str, float], ...] = ()  # with their probabilities at temperature 1, itself among them

    @property
    def logprob(self):
        return math.log(dict(self.rivals)[self.text]) if self.rivals else 0.0


@dataclass(frozen=True)
class Written:
    """`calls` are (name, arguments)."""

    tokens: list[Token] = field(default_factory=list)
    calls: list[tuple[str, dict]] = field(default_factory=list)


def text_of(messages):
    return "\n".join(str(message.get("content") or "") for message in messages)


def write(body, *, random_seed=None, sure=None):
    """What the model writes to a body, before limits and stop strings are applied."""
    messages, tools = body["messages"], body.get("tools") or []
    if tools and messages[-1]["role"] != "tool" and (called := call_of(body, tools)):
        return Written(thought(), [called])
    if body.get("response_format"):
        schema = body["response_format"]["json_schema"]["schema"]
        return Written(
            [*thought(), Token(json.dumps({name: chosen(kind) for name, kind in schema["properties"].items()}))]
        )
    if messages[-1]["role"] == "tool":
        return Written(said(f"The number is {messages[-1]['content'].split()[0]} as looked up."))
    text = text_of(messages)
    if found := SUM.search(text):
        one, other = map(int, found.groups())
        return Written([*thought(), *said(f"The sum of {one} and {other} is {one + other}, and no other.")])
    if found := LINE.search(text):
        nails = re.search(rf"Line {found[1]}: .* holds (\d+) nails", text)
        return Written(said(f"It names {nails[1]} nails." if nails else "There is no such line."))
    if "Count from" in text:
        return Written([Token(f"{number}\n") for number in range(1, 3001)])
    return Written([*thought(), *drawn(text, body, random_seed, sure)])


def thought():
    return [Token(f"{word} ", "reasoning") for word in ("I", "have", "to", "think", "about", "this.")]


def said(text):
    return [Token(f"{word} ") for word in text.split()]


def chosen(kind):
    return kind["enum"][0] if "enum" in kind else True


def call_of(body, tools):
    choice, names = body.get("tool_choice", "auto"), [tool["function"]["name"] for tool in tools]
    if choice == "none":
        return None
    name = choice["function"]["name"] if isinstance(choice, dict) else names[0]
    properties = tools[names.index(name)]["function"]["parameters"]["properties"]
    return name, {key: kind["enum"][0] for key, kind in properties.items()}


def drawn(text, body, random_seed, sure):
    """48 words, each from a distribution that the prompt and the place decide; noise belongs to seed and place."""
    temperature, seed = body.get("temperature", 1), body.get("seed", random_seed)
    for place in range(48):
        rivals = rivals_of(random.Random(f"{text}{place}"), sure)
        word = rivals[0][0]
        if temperature > 0:
            kept = filtered(heated(rivals, temperature), body.get("top_k") or RIVALS, body.get("top_p") or 1)
            word = random.Random(f"{seed}/{place}/{text}").choices([w for w, _ in kept], [p for _, p in kept])[0]
        yield Token(word, rivals=rivals)


def rivals_of(rng, sure):
    """Words with their probabilities, the most likely first; its probability is `sure` if that is given."""
    words = [f"{word} " for word in rng.sample(WORDS, RIVALS)]
    weights = [math.exp(rng.gauss(0, 1.5)) for _ in words]
    shares = sorted((weight / sum(weights) for weight in weights), reverse=True)
    if sure is not None:
        shares = [sure, *[(1 - sure) / (RIVALS - 1)] * (RIVALS - 1)]
    return tuple(zip(words, shares, strict=True))


def heated(rivals, temperature):
    weights = [(word, p ** (1 / temperature)) for word, p in rivals]
    return [(word, weight / sum(w for _, w in weights)) for word, weight in weights]


def filtered(rivals, top_k, top_p):
    """The `top_k` most likely, and of them as few as have `top_p` together."""
    kept, total = [], 0.0
    for word, p in rivals[:top_k]:
        kept.append((word, p))
        total += p
        if total >= top_p:
            break
    return kept
