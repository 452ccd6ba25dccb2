"""Reads a Dockerfile as far as ours goes, and says so where it goes further."""

import json
import shlex
from typing import NamedTuple

KNOWN = {"FROM", "ARG", "ENV", "RUN", "COPY", "USER", "WORKDIR", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


class Step(NamedTuple):
    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """The JSON form of a command."""
        return json.loads(self.text[self.text.index("[") :])

    @property
    def settings(self) -> dict[str, str]:
        """Of ENV and ARG."""
        return dict(word.split("=", 1) for word in shlex.split(self.text))


def steps(text: str) -> list[Step]:
    """Raises ValueError for an instruction that is not known here."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    found = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, rest = line.strip().partition(" ")
        if name and name not in KNOWN:
            raise ValueError(f"no reading of {line!r}")
        if name:
            found.append(Step(name, rest.strip()))
    return found


def variables(text: str) -> dict[str, str]:
    """What ENV sets in the image."""
    return {key: value for step in steps(text) if step.name == "ENV" for key, value in step.settings.items()}
