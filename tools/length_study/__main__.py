"""Studies of draft heads that need a GPU, in flows that end within minutes (default: 9 each).

    python -m tools.length_study target                # a target that quotes from far back: OUT/target, target.json
    python -m tools.length_study heads                 # heads of 512 and of 4,096 tokens: OUT/heads
    python -m tools.length_study measure               # the engine's rounds with heads not measured yet, and the table
    python -m tools.length_study losses                # kl, hard, lk and tv, 3,000 steps each, of the demo's head
    python -m tools.length_study same --device cuda    # a head by 200 steps of the example: OUT/same; and --device cpu
    python -m tools.length_study compare               # the engine's rounds with these heads, and whether they agree

OUT has what is to be kept: the target, heads, results a head, logs. WORK has the rest: chats, runs, captured states.
A flow that ends before all is done goes on by the same command, given OUT; a head is made once it is whole.
`--small` is for a CPU. Settings of the training may follow: `heads train.attention=plain`.

*Quality at length.* Does a head that was trained on chats of up to 4,096 tokens accept more, far into a long chat, than
one of chats of up to 512? Answers repeat notes that nothing near them predicts (`quoting.py`), and the head has taps of
the target and its own attention to find how they go on. `target.json` says first whether the target quotes from each
distance. Expected: the long one is ahead beyond 1,024 tokens of context with its interval, and nowhere behind by more
than 0.05.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.length_study.records import read_results
from tools.length_study.sizes import FULL, SMALL

from eyas.bench.report import positive_int, print_json

FLOWS = ("target", "heads", "measure", "losses", "same", "compare")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("flow", choices=FLOWS)
    parser.add_argument("--out", type=Path, default=Path("runs/length-study"), metavar="DIR", help="what is to be kept")
    parser.add_argument("--work", type=Path, metavar="DIR", help="the rest (default: OUT with -work behind its name)")
    parser.add_argument("--minutes", type=float, default=9.0, metavar="N", help="in which the flow ends (default: 9)")
    parser.add_argument("--seeds", type=positive_int, default=3, metavar="N", help="of heads and losses (default: 3)")
    parser.add_argument("--steps", type=positive_int, metavar="N", help="of a head, where a flow trains heads")
    parser.add_argument(
        "--device",
        default="cpu",
        help="of the engine that measures, or of the training of `same` (default: cpu)",
    )
    parser.add_argument("--only", metavar="NAME", help="heads, measure: this head alone, such as long-0")
    parser.add_argument("--small", action="store_true", help="small sizes, on a CPU")
    parser.add_argument("overrides", nargs="*", metavar="SECTION.KEY=VALUE", help="settings of the heads' training")
    args = parser.parse_intermixed_args(argv)
    args.work = args.work or args.out.with_name(f"{args.out.name}-work")
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    sizes = SMALL if args.small else FULL
    args.out.mkdir(parents=True, exist_ok=True)
    match args.flow:
        case "target":
            from tools.length_study import target_flow

            target_flow.run(args, sizes)
        case "losses":
            from tools.length_study import losses_flow

            losses_flow.run(args)
        case "same":
            from tools.length_study import same_flow

            same_flow.run(args)
        case "heads":
            from tools.length_study import heads_flow

            heads_flow.run(args, sizes)
        case "compare":
            from tools.length_study import same_flow

            same_flow.compare(args)
        case _:
            from tools.length_study import heads_flow, report

            heads_flow.measure_heads(args, sizes)
            found = read_results(args.out)
            print("\n".join(report.lines(found)))
            print_json({"study": "length", **report.figures(found)})


if __name__ == "__main__":
    main()
