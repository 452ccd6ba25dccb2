"""The error of a backend that gave no answer, or one that is none."""

from __future__ import annotations

from eyas.base.errors import EyasError
from eyas.base.serving.failures import FailureKind

__all__ = ["UpstreamError"]


class UpstreamError(EyasError):
    """A backend failed. `kind` counts for its breaker, `detail` is for people: neither holds a key."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
