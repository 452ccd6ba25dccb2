"""Compares what heads of the demo model learn: losses, supervision, a shuffled teacher, and the best that is possible.

    python tools/bench_train.py --out runs/bench-train [--seeds 3] [--steps N] [--arms kl,hard,...] [train.epochs=4 ...]

On a GPU heads are trained and measured there, and the answers are written by the engine on the CPU, as they would be
without a GPU: a folder with answers can go on anywhere.

The arms of a seed begin with the same weights and see the same batches in the same order; all are the run of
examples/train/demo.yaml but for what their names say. They are measured on the target's own answers to held-out
prompts, which its engine writes once at temperature 0 and 1. What is finished lies in OUT, one file an arm and seed:
the same command goes on, and prints the table of all that is there.

    kl, hard, lk, tv  losses, supervision as in the settings file (loose)
    faithful          kl, faithful supervision
    shuffled          kl from a teacher whose distributions are shuffled over the positions that teach: has to fail
    untrained         a fresh head
    own               no head: the target's own distribution over the draft vocabulary as draft
    own-full          the same over the full vocabulary: every draft is right, and only ends of messages cut rounds
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from eyas.base.settings.config import EngineConfig
from eyas.base.types import Request, SamplingParams
from eyas.bench.engine.drive import run_requests
from eyas.bench.engine.rounds import ContentMarker
from eyas.bench.prompts import read_prompts
from eyas.bench.report import listed, positive_int, print_json, provenance, table
from eyas.bench.stats import Interval, ratio_difference
from eyas.engine.startup.load import load_engine_parts
from eyas.model.hardware import hardware
from eyas.train.data.packing import batches_in_order
from eyas.train.evaluation.chances import Chances, coupled_chance
from eyas.train.evaluation.evaluate import tally
from eyas.train.evaluation.results import Reading
from eyas.train.evaluation.tally import Tally
from eyas.train.loop.parts import Parts, open_run, open_source
from eyas.train.loop.prepared import prepare_run
from eyas.train.settings.reading import read_settings
from eyas.train.states.folder import capture, open_folder
from eyas.train.states.opening import FoundTarget
from eyas.train.states.source import HiddenStates
from eyas.train.steps.processes import Processes
from eyas.train.steps.trainer import Trainer
from eyas.train.types import Batch, Document, Segment, States, supervises

ROOT = Path(__file__).parents[1]
SETTINGS = ROOT / "examples" / "train" / "demo.yaml"
PROMPTS = ROOT / "tests" / "assets" / "demo_heldout.jsonl"
TEMPERATURES: tuple[tuple[int, Reading], ...] = ((0, "text"), (1, "sampled"))
MAX_TOKENS = 256  # of an answer
ANSWERS_AT_ONCE = 8
BATCH_TOKENS = 1024  # of an evaluation
SPARE = 1.1  # of the time of the longest arm so far
BAR = -0.05  # acceptance length of kl over that of hard: the 95 % interval has to lie above

TRAINED = {  # arm: settings, whether the teacher is shuffled
    "kl": (("train.loss=kl",), False),
    "hard": (("train.loss=hard",), False),
    "faithful": (("train.loss=kl", "data.supervise=faithful"), False),
    "shuffled": (("train.loss=kl",), True),
    "lk": (("train.loss=lk",), False),
    "tv": (("train.loss=tv",), False),
}
OTHER = ("untrained", "own", "own-full")  # one seed suffices
Pairs = list[tuple[float, float]]  # tokens and rounds of each prompt


class SoftenedTeacher:
    """A source whose logits are divided by a number: that of a less certain target. Implements `HiddenStates`."""

    def __init__(self, source: HiddenStates, divisor: float) -> None:
        self.config, self.taps = source.config, source.taps
        self.teacher, self.fingerprint, self.labels_only = source.teacher, source.fingerprint, False
        self._source, self._divisor = source, divisor

    def states(self, batch: Batch) -> States:
        states = self._source.states(batch)
        assert states.last_TH is not None
        return states._replace(last_TH=states.last_TH / self._divisor)


class ShuffledTeacher:
    """A source whose last states change places among the positions that teach. Implements `HiddenStates`."""

    def __init__(self, source: HiddenStates, seed: int) -> None:
        self.config, self.taps = source.config, source.taps
        self.teacher, self.fingerprint, self.labels_only = source.teacher, source.fingerprint, False
        self._source, self._generator = source, torch.Generator().manual_seed(seed)

    def states(self, batch: Batch) -> States:
        states = self._source.states(batch)
        assert states.last_TH is not None
        teaches_N = (batch.runs_T[1:] >= 0).nonzero()[:, 0]
        last_TH = states.last_TH.clone()
        order_N = torch.randperm(len(teaches_N), generator=self._generator).to(teaches_N.device)
        last_TH[teaches_N] = states.last_TH[teaches_N[order_N]]
        return states._replace(last_TH=last_TH)


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """What all arms share."""

    answer_folder: Path  # of captured states
    states: Path
    found: FoundTarget
    taps: tuple[int, ...]
    answers: dict[int, list[Document]]  # by temperature
    overrides: tuple[str, ...]
    draft_tokens: int
    soften: float  # divides the logits of the target

    def parts(self, seed: int, overrides: Sequence[str]) -> Parts:
        given = [*self.overrides, f"states.folder={self.states}", f"train.seed={seed}", *overrides]
        return open_run(prepare_run(read_settings(SETTINGS, given)), Processes(), say=lambda text: None)

    def softened(self, source: HiddenStates) -> HiddenStates:
        return source if self.soften == 1 else SoftenedTeacher(source, self.soften)

    def answer_batches(self, temperature: int) -> Iterator[Batch]:
        for batch in batches_in_order(self.answers[temperature], BATCH_TOKENS):
            yield batch.to(self.found.device)

    def answer_states(self) -> HiddenStates:
        """Return the states of the answers. Heads are measured as the engine computes them, whatever trained them."""
        device, dtype = self.found.device, self.found.dtype
        return self.softened(open_folder(self.answer_folder, taps=self.taps, device=device, dtype=dtype))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="work folder")
    parser.add_argument(
        "--states", type=Path, metavar="FOLDER", help="captured states of the chats; WORK/states if not"
    )
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="captured states of chats and answers; OUT if not")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), metavar="N", help="begin no run that would not end within N"
    )
    parser.add_argument("--seeds", type=positive_int, default=3, metavar="N", help="seeds of each trained arm (3)")
    parser.add_argument("--steps", type=positive_int, metavar="N", help="steps of a run; as in the settings if not")
    parser.add_argument("--prompts", type=positive_int, default=300, metavar="N", help="held-out prompts (300)")
    parser.add_argument(
        "--arms", type=listed(str), default=(*TRAINED, *OTHER), metavar="LIST", help="arms to run (all)"
    )
    parser.add_argument(
        "--soften", type=float, default=1.0, metavar="X",
        help="divide the target's logits by X: it teaches, answers and verifies at temperature X where others have 1",
    )  # fmt: skip
    parser.add_argument(
        "overrides", nargs="*", metavar="SECTION.KEY=VALUE", help="settings in place of those of the file, for all arms"
    )
    args = parser.parse_args()
    if unknown := set(args.arms) - {*TRAINED, *OTHER}:
        parser.error(f"no arm {', '.join(sorted(unknown))}; arms are {', '.join((*TRAINED, *OTHER))}")
    args.out.mkdir(parents=True, exist_ok=True)
    ends, longest = time.perf_counter() + 60 * args.minutes, 0.0
    study = prepare_study(args)
    machine = hardware(study.found.device)
    for seed, arm in order_of_work(args.arms, args.seeds):
        path = result_path(args.out, arm, seed)
        if not path.exists():
            began = time.perf_counter()
            if began + SPARE * longest > ends:
                print("the time is up; the same command goes on", flush=True)
                break
            pairs, facts = run_arm(study, arm, seed)
            longest = max(longest, time.perf_counter() - began)
            seconds = round(time.perf_counter() - began, 1)
            write(path, json.dumps({"arm": arm, "seed": seed, "seconds": seconds, **facts, "pairs": pairs}))
            shown = ", ".join(
                f"T={t} {ratio_difference([found], num_samples=1).value:.3f}" for t, found in pairs.items()
            )
            print(f"{arm} {seed}: acceptance length {shown} ({seconds:.0f} s)", flush=True)
    lines, origin = provenance(machine)
    results, certainty = read_results(args.out), teacher_certainty(study)
    print("\n".join([*lines, "", *report(results), certainty_line(certainty)]))
    print_json(
        {
            "bench": "train-quality",
            "model": "demo",
            **origin,
            "settings": SETTINGS.name,
            "overrides": list(study.overrides),
            "prompts": len(study.answers[0]),
            "soften": study.soften,
            "draft_tokens": study.draft_tokens,
            "teacher": certainty,
            **figures(results),
        }
    )


def order_of_work(arms: Sequence[str], num_seeds: int) -> Iterator[tuple[int, str]]:
    """Yield the cheap arms, then seed by seed: a study that is stopped has whole seeds, so that arms are paired."""
    yield from ((0, arm) for arm in OTHER if arm in arms)
    yield from ((seed, arm) for seed in range(num_seeds) for arm in TRAINED if arm in arms)


def result_path(out: Path, arm: str, seed: int) -> Path:
    return out / f"result-{arm}-{seed}.json"


def write(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(path)


# -- preparing --------------------------------------------------------------------------------------------------------


def prepare_study(args: argparse.Namespace) -> Study:
    """Let the engine answer the prompts, and capture the target's states of chats and answers, unless that is done."""
    overrides = (*args.overrides, *([] if args.steps is None else [f"train.steps={args.steps}"]))
    file = args.out / "study.json"
    described = {
        "settings": SETTINGS.read_text(),
        "overrides": list(overrides),
        "prompts": args.prompts,
        "soften": args.soften,
    }
    if file.exists() and json.loads(file.read_text()) != described:
        raise SystemExit(f"{args.out} holds a study with other settings; name another folder")
    write(file, json.dumps(described))
    answers = {t: answered(args.out / f"answers-{t}.json", t * args.soften, args.prompts) for t, _ in TEMPERATURES}
    work = args.work or args.out
    states, answer_folder = args.states or work / "states", work / "answers"
    settings = read_settings(SETTINGS, [*overrides, "states.folder=null", "states.cache=0"])
    prepared = prepare_run(settings)
    source = open_source(prepared)
    count = capture(source, prepared.training, states)
    count += capture(source, [one for found in answers.values() for one in found], answer_folder)
    print(f"states of {count} documents captured", flush=True)
    return Study(
        answer_folder=answer_folder,
        states=states,
        found=prepared.found,
        taps=source.taps,
        soften=args.soften,
        answers=answers,
        overrides=overrides,
        draft_tokens=min(settings.eval.draft_tokens, settings.train.depths),
    )


def answered(path: Path, temperature: float, limit: int) -> list[Document]:
    """Return the prompts with the target's answers, written by the engine if the file does not hold them yet."""
    if not path.exists():
        loaded = load_engine_parts(
            EngineConfig(model="demo", draft_tokens=4, context=1024, concurrency=ANSWERS_AT_ONCE, device="cpu")
        )
        prompts, _ = read_prompts(PROMPTS, loaded.tokenizer, limit=limit)
        params = SamplingParams(temperature=temperature, seed=0, max_tokens=MAX_TOKENS)
        requests = [Request(request_id=str(i), prompt_ids=prompt, params=params) for i, prompt in enumerate(prompts)]
        answers = run_requests(loaded.built.core, requests, batch=ANSWERS_AT_ONCE).answers
        found = [
            {
                "prompt": list(prompt),
                "answer": answer,
                "content": [bool(mark) for mark in ContentMarker(loaded.tokenizer).mark(answer)],
            }
            for prompt, answer in zip(prompts, answers, strict=True)
        ]
        write(path, json.dumps(found))
    return [as_document(number, one) for number, one in enumerate(json.loads(path.read_text()), 1)]


def as_document(number: int, one: dict[str, list[int]]) -> Document:
    given, segments = len(one["prompt"]), [Segment.FINAL if mark else Segment.HEADER for mark in one["content"]]
    return Document(
        ids_T=np.array([*one["prompt"], *one["answer"]], np.int32),
        runs_T=np.array([-1] * given + [0] * len(one["answer"]), np.int32),
        segments_T=np.array([Segment.GIVEN] * given + segments, np.uint8),
        source=f"prompt {number}",
    )


# -- arms -------------------------------------------------------------------------------------------------------------


def run_arm(study: Study, arm: str, seed: int) -> tuple[dict[int, Pairs], dict[str, float]]:
    """Return tokens and rounds of each prompt by temperature, and facts of the training."""
    overrides, is_shuffled = TRAINED.get(arm, ((), False))
    parts = study.parts(seed, overrides)
    if arm.startswith("own"):
        vocab = parts.source.config.vocab_size
        ids_V = torch.arange(vocab) if arm == "own-full" else parts.head.readout.target_ids_V
        return own_acceptance(study, ids_V), {}
    facts: dict[str, float] = {}
    if arm in TRAINED:
        source = study.softened(parts.source)
        source = ShuffledTeacher(source, seed) if is_shuffled else source
        facts = train(replace(parts, source=source))
    return head_acceptance(study, parts), facts


def train(parts: Parts) -> dict[str, float]:
    """Train `parts.head`."""
    settings = parts.settings
    trainer = Trainer(
        parts.head, parts.source, settings.train,
        rule=settings.data.supervise, num_steps=parts.num_steps, processes=parts.processes,
    )  # fmt: skip
    num_tokens = num_taught = 0
    for step in range(parts.num_steps):
        report = trainer.step(step, parts.batches(step))
        num_tokens, num_taught = num_tokens + report.num_tokens, num_taught + report.num_taught
    return {"steps": parts.num_steps, "tokens": num_tokens, "taught": num_taught, "loss": round(report.loss, 4)}


def head_acceptance(study: Study, parts: Parts) -> dict[int, Pairs]:
    source, found = study.answer_states(), {}
    for temperature, reading in TEMPERATURES:
        batches = study.answer_batches(temperature)
        sums = tally(parts.head, source, batches, temperature=float(temperature) or None)
        found[temperature] = pairs_of(sums, reading, study.draft_tokens)
    return found


def own_acceptance(study: Study, ids_V: Tensor) -> dict[int, Pairs]:
    """Return the acceptance of the target as its own draft, over a draft vocabulary."""
    source, found = study.answer_states(), {}
    ids_V = ids_V.to(study.found.device)
    for temperature, reading in TEMPERATURES:
        sums = Tally(study.draft_tokens, float(temperature) or None)
        for batch in study.answer_batches(temperature):
            sums.add(batch, own_chances(batch, source, ids_V, study.draft_tokens, temperature), ids_V)
        found[temperature] = pairs_of(sums, reading, study.draft_tokens)
    return found


def own_chances(batch: Batch, source: HiddenStates, ids_V: Tensor, num_depths: int, temperature: int) -> Chances:
    """Return the chances of drafts by the target itself: at every depth those of the token after the one before."""
    states = source.states(batch)
    assert states.last_TH is not None
    logits_TV = F.linear(states.last_TH, source.teacher.lm_head_VH).float()
    next_T = batch.ids_T.roll(-1)
    guess_T = ids_V[logits_TV[:, ids_V].argmax(-1)]
    by_token = [guess_T == next_T, guess_T == logits_TV.argmax(-1)]
    if temperature:
        scaled_TV = logits_TV / temperature
        by_token.append(coupled_chance(scaled_TV, scaled_TV[:, ids_V], next_T, ids_V))
    at_T = torch.arange(batch.num_tokens, device=batch.ids_T.device)
    chances = np.zeros((len(by_token), num_depths, batch.num_tokens))
    for depth in range(num_depths):
        is_drafted_T = supervises(batch, at_T, at_T + 1 + depth, "faithful")
        for number, chance_T in enumerate(by_token):
            shifted_T = chance_T.double().roll(-depth)
            chances[number, depth] = torch.where(is_drafted_T, shifted_T, 0.0).cpu().numpy()
    return Chances(chances[0], chances[1], chances[2] if temperature else None)


def pairs_of(sums: Tally, reading: Reading, draft_tokens: int) -> Pairs:
    rounds_D, tokens_D = sums.by_document(reading, draft_tokens)
    return list(zip(tokens_D.tolist(), rounds_D.tolist(), strict=True))


def teacher_certainty(study: Study) -> dict[str, float]:
    """Return how certain the target is of the tokens of its answers at temperature 1: where it is, losses agree."""
    source = study.answer_states()
    best, entropies = [], []
    for batch in study.answer_batches(1):
        last_TH = source.states(batch).last_TH
        assert last_TH is not None
        teaches_N = (batch.runs_T[1:] >= 0).nonzero()[:, 0]
        log_p_NV = F.linear(last_TH[teaches_N], source.teacher.lm_head_VH).float().log_softmax(-1)
        best.append(log_p_NV.amax(-1).exp())
        entropies.append(-(log_p_NV.exp() * log_p_NV).sum(-1))
    best_N, entropy_N = torch.cat(best), torch.cat(entropies)
    return {
        "mean_entropy_nats": round(float(entropy_N.mean()), 4),
        "share_above_0.99": round(float((best_N > 0.99).double().mean()), 4),
        "share_below_0.5": round(float((best_N < 0.5).double().mean()), 4),
    }


# -- the table --------------------------------------------------------------------------------------------------------

Results = dict[str, dict[int, dict[int, Pairs]]]  # by arm, seed, temperature


def read_results(out: Path) -> Results:
    found: Results = {}
    for path in sorted(out.glob("result-*.json")):
        one = json.loads(path.read_text())
        pairs = {int(t): [(tokens, rounds) for tokens, rounds in some] for t, some in one["pairs"].items()}
        found.setdefault(one["arm"], {})[one["seed"]] = pairs
    return {arm: found[arm] for arm in (*TRAINED, *OTHER) if arm in found}


def length(results: Results, arm: str, temperature: int) -> Interval:
    return ratio_difference([one[temperature] for one in results[arm].values()])


def gain(results: Results, arm: str, base: str, temperature: int) -> Interval | None:
    """Return the acceptance length of an arm minus that of another, over the seeds that both have."""
    seeds = [seed for seed in results.get(arm, {}) if seed in results.get(base, {})]
    if not seeds or arm == base:
        return None
    ours, theirs = ([results[name][seed][temperature] for seed in seeds] for name in (arm, base))
    return ratio_difference(ours, theirs)


def figures(results: Results) -> dict[str, object]:
    """Return the fields of the JSON."""
    arms = {arm: {"seeds": len(seeds), **arm_figures(results, arm)} for arm, seeds in results.items()}
    bars = [x.low > BAR for t, _ in TEMPERATURES if (x := gain(results, "kl", "hard", t))]
    return {"arms": arms, "kl_over_hard_above_bar": all(bars) if bars else None}


def arm_figures(results: Results, arm: str) -> dict[str, object]:
    found: dict[str, object] = {f"length_t{t}": length(results, arm, t).json() for t, _ in TEMPERATURES}
    for temperature, _ in TEMPERATURES:
        if over := gain(results, arm, "hard", temperature):
            found[f"over_hard_t{temperature}"] = over.json()
    return found


def arm_row(results: Results, arm: str) -> list[str]:
    over = [gain(results, arm, "hard", t) for t, _ in TEMPERATURES]
    lengths = [length(results, arm, t).text(2) for t, _ in TEMPERATURES]
    return [arm, str(len(results[arm])), *lengths, *("" if x is None else x.text(2) for x in over)]


def certainty_line(found: dict[str, float]) -> str:
    sure, unsure = 100 * found["share_above_0.99"], 100 * found["share_below_0.5"]
    return (
        f"the target on its answers at T=1: entropy {found['mean_entropy_nats']:.3f} nats a token; its most likely "
        f"token has more than 0.99 at {sure:.1f} % of tokens, less than 0.5 at {unsure:.1f} %"
    )


def report(results: Results) -> list[str]:
    """Return the table, and whether kl is as good as hard."""
    rows = [arm_row(results, arm) for arm in results]
    lines = [
        "acceptance length over content [95 %, bootstrap over seeds and prompts]; over hard: same seeds and prompts",
        *table(["arm", "seeds", "T=0", "T=1", "over hard, T=0", "over hard, T=1"], rows),
    ]
    for temperature, _ in TEMPERATURES:
        if found := gain(results, "kl", "hard", temperature):
            verdict = "holds" if found.low > BAR else "FAILS"
            lines.append(f"T={temperature}: kl - hard {found.text(3)}, lower end above {BAR:g}: {verdict}")
    return lines


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
