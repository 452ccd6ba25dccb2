"""Requests of every kind, by which an engine may be asked for something that did not run at its start."""

from dataclasses import replace
from unittest.mock import patch

from tests.engine.support.exactness import requests_for, run

from eyas.engine.sequences.mask_jobs import SequenceMasks

NUMBER = 12


def answer_all_kinds(core, model, number=NUMBER):
    """Answer requests of all kinds: alone, all together, and one after the other, so that all batch sizes come.

    Every kind of sampling, grammars, allowed ids, scored prompts, prompts that repeat themselves, prefix hits, answers
    that end one by one; with little memory also conversations that are moved out of it. The sequences that a request
    begins last longer than those before it.
    """
    requests = []
    for index, request in enumerate(requests_for(model, number, min_tokens=12, max_prompt=120)):
        prompt = request.prompt_ids
        if index % 4 == 0:
            prompt = (prompt[:12] * 16)[: len(prompt)]
        params = replace(request.params, max_tokens=request.params.max_tokens + 2 * index)
        if index % 6 == 0:
            params = replace(params, prompt_logprobs=2)
        requests.append(replace(request, prompt_ids=prompt, params=params))
    constrained = [request for request in requests if request.params.allowed_token_ids or request.params.grammar]
    for group in (constrained[:1], requests, requests[:6]):
        run(core, group)
    with patch.object(SequenceMasks, "is_slow", True):  # no drafts
        run(core, constrained)
