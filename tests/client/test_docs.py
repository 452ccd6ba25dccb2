"""The examples of docs/client.md run as they stand, but for the server's port."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.serving import served

import eyas

DEMO = str(Path(eyas.__file__).parent / "demo")
PAGE = Path(__file__).parents[2] / "docs" / "client.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
SAID = ["tokens in", "documentation begins", "using the small model, since the large model: no connection"]


@pytest.fixture(scope="module")
def server():
    with served(DEMO, "--draft-tokens", "3") as server:
        yield server


def test_each_example_is_tried():
    assert len(EXAMPLES) == len(SAID)


@pytest.mark.parametrize(
    ("example", "said"), list(zip(EXAMPLES, SAID, strict=False)), ids=["pieces", "budgets", "fallbacks"]
)
def test_an_example_runs(server, example, said):
    assert "http://127.0.0.1:8000" in example
    code = example.replace("http://127.0.0.1:8000", server.url)
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert said in done.stdout
