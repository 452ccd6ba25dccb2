"""Wait for a server, ask it one streamed question, and check that an answer came and that it was drafted.

Usage: ask.py URL. Exits with 1 and a reason if anything is missing.
"""

import json
import sys
import time

import httpx

WAIT_S = 120
QUESTION = "What does os.path.join do?"


def wait_until_ready(url: str) -> dict:
    end = time.monotonic() + WAIT_S
    while True:
        try:
            answer = httpx.get(f"{url}/ready", timeout=WAIT_S)
            if answer.status_code == 200:
                return answer.json()
        except httpx.TransportError:
            pass
        if time.monotonic() > end:
            sys.exit(f"ci: {url}/ready did not answer within {WAIT_S} s")
        time.sleep(0.2)


def ask(url: str) -> list[dict]:
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "stream": True,
        "temperature": 0,
        "max_tokens": 256,
        "stream_options": {"include_usage": True},
    }
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=WAIT_S) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    if answer.status_code != 200 or lines[-1] != "[DONE]":
        sys.exit(f"ci: the stream broke off: {lines[-1:]}")
    return [json.loads(line) for line in lines[:-1]]


def main() -> None:
    url = sys.argv[1]
    print("ci: ready:", wait_until_ready(url))
    chunks = ask(url)
    text = "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])
    timings = next(chunk["timings"] for chunk in chunks if "timings" in chunk)
    print("ci: asked:", QUESTION)
    print("ci: answer:", text)
    print(f"ci: {len(chunks)} chunks; {timings}; {chunks[-1]['usage']}")
    if not text:
        sys.exit("ci: the answer has no content")
    if len(chunks) < 3:
        sys.exit("ci: the answer came in one piece")
    if not timings["draft_n"]:
        sys.exit("ci: nothing was drafted")


main()
