"""`eyas train inspect`: shows a chat with its supervised tokens marked, and counts of the whole file.

numpy and torch are imported by `run` alone, so that help stays instant.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from eyas.base.bundled import DEMO_NAME
from eyas.base.errors import UserError

__all__ = ["add_arguments", "run"]

NUM_DEPTHS = 7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="JSONL file of chats, in OpenAI's format or ShareGPT's")
    parser.add_argument(
        "--target", metavar="PATH|ID", default=DEMO_NAME, help="model whose tokens to show (default: demo)"
    )
    parser.add_argument(
        "--chat", metavar="N", type=int, default=1, help="chat to show, counted from 1; 0 shows none (default: 1)"
    )
    parser.add_argument(
        "--rule",
        choices=("loose", "faithful"),
        default="loose",
        help="count drafts of all generated tokens, or those that an engine starts (default: loose)",
    )
    parser.add_argument("--context", metavar="N", type=int, help="longest turn in tokens; longer ones are left out")
    parser.add_argument("--draft-vocab", metavar="N", type=int, help="say how much a draft vocabulary of N covers")
    parser.add_argument("--write-counts", metavar="PATH", type=Path, help="write the token counts for --draft-counts")


def run(args: argparse.Namespace) -> int:
    from eyas.base.tokens.tokenizer import Tokenizer
    from eyas.model.checkpoints.hub import resolve_headers
    from eyas.model.checkpoints.loader import inspect_target
    from eyas.terminal import has_colour
    from eyas.train.data.chats import read_chats
    from eyas.train.data.documents import DocumentOptions, Tally, documents_of
    from eyas.train.data.show import legend, marked, summary_lines
    from eyas.train.data.summary import Summary
    from eyas.train.data.vocabulary import Counts, choose_vocabulary, coverage, forced_ids, write_counts

    if args.chat < 0:
        raise UserError(f"--chat counts from 1, and 0 shows none; got {args.chat}")
    if args.context is not None and args.context < 1:
        raise UserError(f"--context is a number of tokens, 1 or more; got {args.context}")
    folder, stored = resolve_headers(args.target)
    config, codec = inspect_target(folder, stored)[0], Tokenizer.load(folder)
    options = DocumentOptions(context=args.context, too_long="skip")
    tally, summary, counts = Tally(), Summary(num_depths=NUM_DEPTHS), Counts(config.vocab_size)
    colour = has_colour(sys.stdout)
    for chat in read_chats([args.file]):
        for document in documents_of(codec, chat, options, tally):
            summary.add(document)
            counts.add(document)
            if tally.num_chats == args.chat:
                print(f"{document.source}: {legend(colour=colour)}\n")
                print(*marked(document, codec, colour=colour), sep="", end="\n\n")
    if tally.num_chats < max(args.chat, 1):
        raise UserError(f"{args.file} has {tally.num_chats} chats, and no chat {args.chat}")
    covered = None
    if args.draft_vocab is not None:
        always = forced_ids(codec, config.eos_ids, config.vocab_size)
        covered = coverage(counts.by_segment_SV, choose_vocabulary(counts.by_segment_SV, args.draft_vocab, always))
    for line in summary_lines(summary, tally, args.rule, covered):
        print(line)
    if args.write_counts is not None:
        write_counts(args.write_counts, counts.by_segment_SV)
    return 0
