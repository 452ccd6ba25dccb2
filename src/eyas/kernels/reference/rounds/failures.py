"""Codes for why a row has no token, which kernels return with drawn tokens; 0 where there is a token."""

__all__ = ["NOT_FINITE", "NO_TOKEN_LEFT"]

NOT_FINITE = 1  # the row's logits have a NaN or an infinity
NO_TOKEN_LEFT = 2  # masks and bias left none
