"""Names and texts as a hostile server, prompt file or colleague might send them, and runs full of them."""

from itertools import cycle

from tests.bench.endpoint.support.synthetic import synthetic_run

from eyas.bench.endpoint.journal import Header, Run
from eyas.bench.endpoint.records import Counts, Record, Stamp, Window

CORPUS = (
    "<script>window.hacked=1</script>",
    "</script><script>window.hacked=1</script>",
    "</SCRIPT ><script>window.hacked=1</script>",
    '"><img src=x onerror=window.hacked=1>',
    "'><svg/onload=window.hacked=1>",
    "</title></style></textarea></noscript><img src=x onerror=window.hacked=1>",
    "<!--<script>",
    "--><script>window.hacked=1</script>",
    "]]><![CDATA[<script>window.hacked=1</script>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'>",
    "<base href=https://evil.example/><link rel=stylesheet href=https://evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<a href=javascript:window.hacked=1 style=position:fixed;inset:0>x</a>",
    '" onmouseover="window.hacked=1" x="',
    "&lt;script&gt;window.hacked=1&lt;/script&gt; &amp; &#60;b&#62;",
    "<math><mi xlink:href='javascript:window.hacked=1'>",
    "<foreignObject><body onload=window.hacked=1></foreignObject>",
    "url(javascript:window.hacked=1) } * { display: none } </style>",
    "${window.hacked=1} {{constructor.constructor('window.hacked=1')()}}",
    "a\u202egnp.exe \u2066b\u2069 \x00\x01\x1b[31mred\x7f\ufffe",
    "\u2028window.hacked=1\u2029",
    "one\ntwo\r\nthree\tfour | five \\| six",
    "[click](javascript:window.hacked=1) ![x](https://evil.example/x.png) <https://evil.example> https://evil.example",
    "`code` ```\n~~~ **bold** _it_ # head | cell\n\n| a |\n| --- |\n@someone #1 $x$ ~~gone~~",
    "\\",
    "\\<script>window.hacked=1\\</script>",
    "x" * 3000,
    "\u6771\u4eac" * 40,
    "e\u0301" * 200,
    "",
    " ",
)


def hostile_run(words=CORPUS) -> Run:
    """A run in which every text is one of `words`, each of them somewhere."""
    run = synthetic_run(arms=(0, 3), concurrencies=(1, 2), turns=2, num_requests=len(words) // 2)
    word = cycle(words)
    arms = {"off": words[0], "3 drafts": words[1 % len(words)]}
    windows = tuple(_window(window, arms, word) for window in run.windows)
    void = Window(**_fields(windows[0]) | {"void": next(word), "turn": 77})
    stamp = Stamp(
        date=next(word), command=next(word), eyas=next(word), commit=next(word), client=next(word), hardware=next(word),
        simulated=next(word), endpoint={name: next(word) for name in (*arms.values(), *words)},
    )  # fmt: skip
    header = Header(stamp=stamp, settings={one: next(word) for one in words}, run=next(word))
    return Run(header=header, windows=(*windows, void))


def _window(window, arms, word):
    records = tuple(_record(record, word, number) for number, record in enumerate(window.records))
    counts = window.counts and Counts(**_fields(window.counts) | {"source": next(word)})
    return Window(**_fields(window) | {"arm": arms[window.arm], "records": records, "counts": counts})


def _record(record, word, number):
    texts = {name: next(word) for name in ("prompt", "category", "finish_reason", "text")}
    return Record(**_fields(record) | texts | ({"error": next(word) or "x"} if number % 5 == 4 else {}))


def _fields(item):
    return {name: getattr(item, name) for name in item.__struct_fields__}
