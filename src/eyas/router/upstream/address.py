"""The address of a backend: where it listens, and how it wants to be asked."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Address"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """A backend's URL, without `/v1` and without a slash at the end, its key, and its model's name there.

    `model` is what requests to it name; None leaves their names as they are. The key stands in no text.
    """

    name: str
    url: str
    key: str | None = field(default=None, repr=False)
    model: str | None = None

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")) or self.url.endswith("/"):
            raise ValueError(f"the URL of backend '{self.name}' must be http://HOST:PORT or https://..., without a '/'")
