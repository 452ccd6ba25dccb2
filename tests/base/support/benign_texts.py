"""Answers with much repetition that are right as they are, and the prompts that they answer; seeded."""

import base64
import json
import random
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["BENIGN", "WANTED", "Answer"]


class Answer(NamedTuple):
    prompt: str
    text: str


def fenced(
    language: str, *lines: str, before: str = "Here it is:", after: str = "Let me know if you need more."
) -> str:
    return f"{before}\n\n```{language}\n" + "\n".join(lines) + f"\n```\n\n{after}\n"


def markdown_table(rng: random.Random) -> str:
    rows = [f"| {i} | {rng.choice(['yes', 'no'])} | {rng.randrange(100)} % | - |" for i in range(60)]
    return "\n".join(["| # | passed | share | note |", "|---|---|---|---|", *rows]) + "\n"


def markdown_table_of_equal_rows(rng: random.Random) -> str:
    return "| Day | Morning | Noon | Evening |\n|---|---|---|---|\n" + "|  | free | free | free |\n" * 31


def wide_markdown_header(rng: random.Random) -> str:
    cells = 48
    header = "|" + "|".join(f" {i:02} " for i in range(cells)) + "|"
    return f"{header}\n|{'----|' * cells}\n" + f"|{'    |' * cells}\n" * 3 + "\nFill in the hours above.\n"


def ascii_table(rng: random.Random) -> str:
    line = "+" + "-" * 12 + "+" + "-" * 30 + "+" + "-" * 10 + "+"
    rows = [f"| {i:<10} | {rng.choice(['alpha', 'beta', 'gamma']):<28} | {rng.random():<8.3f} |" for i in range(40)]
    return fenced("", *(part for row in rows for part in (line, row)), line)


def box_art(rng: random.Random) -> str:
    return fenced(
        "",
        "\u2554" + "\u2550" * 58 + "\u2557",
        *["\u2551" + " " * 58 + "\u2551"] * 24,
        "\u255a" + "\u2550" * 58 + "\u255d",
    )


def ascii_landscape(rng: random.Random) -> str:
    sky = [" " * 78] * 10
    hills = ["".join("^" if (x * 7 + y) % 13 < 5 else "." for x in range(78)) for y in range(12)]
    return fenced("", *sky, *hills, *["~" * 78] * 12)


def filled_circle(rng: random.Random) -> str:
    rows = ["".join("@" if (x - 39) ** 2 / 4 + (y - 15) ** 2 < 200 else " " for x in range(78)) for y in range(31)]
    return fenced("", *rows, before="A circle of radius 14:")


def base64_of_zeros(rng: random.Random) -> str:
    data = base64.b64encode(rng.randbytes(90) + bytes(330) + rng.randbytes(120)).decode()
    return f"The padded key is `{data}`.\n"


def base64_image(rng: random.Random) -> str:
    data = base64.b64encode(b"\x89PNG\r\n\x1a\n" + rng.randbytes(30) + (b"\xff" * 63 + b"\0") * 12).decode()
    return f'<img alt="white" src="data:image/png;base64,{data}">\n'


def csv_of_zeros(rng: random.Random) -> str:
    return fenced("csv", "time," + ",".join(f"s{i}" for i in range(16)), *[f"{i}" + ",0" * 16 for i in range(100)])


def csv_of_zeros_without_index(rng: random.Random) -> str:
    return fenced("csv", *[",".join("0" * 32)] * 32, before="A table with 32 sensors and no events yet:")


def matrix_of_zeros(rng: random.Random) -> str:
    return "The start is\n\n" + ("0.0 " * 15 + "0.0\n") * 24 + "\nand only then are values written.\n"


def identity_matrix(rng: random.Random) -> str:
    rows = ["[" + ", ".join(str(int(i == j)) for j in range(24)) + "]," for i in range(24)]
    return fenced("python", "identity = [", *("    " + row for row in rows), "]")


def c_array(rng: random.Random) -> str:
    rows = ["    " + "0x00, " * 12 + "0x00,"] * 36
    return fenced("c", "static const uint8_t font[] = {", *rows, "    0x18, 0x3c, 0x7e, 0xff,", "};")


def bool_map(rng: random.Random) -> str:
    rows = ["    [" + ", ".join(["false"] * 20) + "],"] * 20
    return fenced("js", "const visited = [", *rows, "];", before="Nothing has been visited:")


def chorus(rng: random.Random) -> str:
    verse = "The rain came down on Marlow Street\nand washed the chalk away,\n"
    refrain = "Oh, carry me home, carry me home,\ncarry me home by the bay,\n"
    return (verse + refrain * 2 + "\n") * 4 + refrain * 6 + "carry me home.\n"


def na_na_na(rng: random.Random) -> str:
    return "[Verse]\nStay till the lights go down\n\n[Outro]\n" + "Na na na, na-na-na na, na-na-na na, hey now\n" * 18


def counting_rhyme(rng: random.Random) -> str:
    lines = [
        f"{i} green bottles hanging on the wall,\n" * 2 + "and if one green bottle should fall,\n"
        for i in range(40, 0, -1)
    ]
    return "".join(lines)


def hexdump_of_zeros(rng: random.Random) -> str:
    return fenced("", *(f"{i * 16:08x}  {'00 ' * 8} {'00 ' * 8} |{'.' * 16}|" for i in range(80)))


def hexdump_by_bytes(rng: random.Random) -> str:
    return fenced("", *[" ".join(["00"] * 16)] * 48, " ".join(["ff"] * 16))


def digits_of_pi(rng: random.Random) -> str:
    a, b = 10**1520, 0  # Machin: 16 arctan(1/5) - 4 arctan(1/239)
    for factor, x in ((16, 5), (-4, 239)):
        term, k, sign = a // x, 1, 1
        while term:
            b += factor * sign * (term // k)
            term, k, sign = term // (x * x), k + 2, -sign
    return "Here are 1,500 digits: 3." + str(b)[1:1501] + "\n"


def one_seventh(rng: random.Random) -> str:
    return "As a decimal, 1/7 = 0." + "142857" * 120 + "... and 1/3 = 0." + "3" * 600 + "...\n"


def sitemap(rng: random.Random) -> str:
    urls = [
        f"  <url>\n    <loc>https://example.com/shop/{i}</loc>\n    <lastmod>2026-02-01</lastmod>\n"
        f"    <changefreq>weekly</changefreq>\n    <priority>0.5</priority>\n  </url>"
        for i in range(60)
    ]
    return fenced("xml", '<?xml version="1.0" encoding="UTF-8"?>', "<urlset>", *urls, "</urlset>")


def sql_inserts(rng: random.Random) -> str:
    return fenced(
        "sql", *(f"INSERT INTO seats (hall, row, taken) VALUES ({i // 20}, {i % 20}, FALSE);" for i in range(100))
    )


def sql_equal_values(rng: random.Random) -> str:
    return fenced("sql", "INSERT INTO slots (user_id, state) VALUES", *["  (NULL, 'free'),"] * 80, "  (NULL, 'free');")


def progress_bars(rng: random.Random) -> str:
    return fenced("", *(f"[{'#' * i}{' ' * (50 - i)}] {2 * i:3} %" for i in range(51)))


def pytest_output(rng: random.Random) -> str:
    dots = ["." * 72 + f" [{i:3}%]" for i in range(3, 100, 3)]
    return fenced("", "collected 2376 items", "", *dots, "", "=" * 30 + " 2376 passed in 41.02s " + "=" * 30)


def list_of_tests(rng: random.Random) -> str:
    return fenced("", *(f"tests/test_api.py::test_case[{i}] PASSED" for i in range(90)))


def equal_log_lines(rng: random.Random) -> str:
    lines = ["WARN  retrying connection to db:5432 ..."] * 22
    return fenced("", *lines, "ERROR giving up", before="What you see in the log:")


def server_log(rng: random.Random) -> str:
    return "".join(
        f'10.0.0.{rng.randrange(9)} - - [02/Jan/2026:10:{i // 60:02}:{i % 60:02}] "GET /health HTTP/1.1" 200 2\n'
        for i in range(150)
    )


def json_rows(rng: random.Random) -> str:
    return fenced("json", "[", *(f'  {{"id": {i}, "active": true, "tags": []}},' for i in range(120)), "]")


def equal_json_rows(rng: random.Random) -> str:
    return json.dumps({"cells": [{"value": None, "style": "default"}] * 36, "ok": True}) + "\n"


def minified_json(rng: random.Random) -> str:
    grid = [[rng.choice([0, 0, 0, 1]) for _ in range(30)] for _ in range(30)]
    return json.dumps({"grid": grid, "layers": [{"w": 30, "h": 30, "data": [0] * 400}]}, separators=(",", ":"))


def call_arguments(rng: random.Random) -> str:
    content = (
        "import unittest\n\n\n"
        + "    self.assertIsNone(cache.get())\n" * 30
        + "".join(f"    check({i})\n" for i in range(90))
    )
    return json.dumps({"path": "tests/test_cache.py", "content": content})


def rulers(rng: random.Random) -> str:
    sections = [f"{'=' * 79}\n{i}. Part\n{'=' * 79}\n{'-' * 79}\nSome words on part {i * i}.\n" for i in range(25)]
    return "".join(sections) + "*" * 600 + "\n"


def form(rng: random.Random) -> str:
    return (
        "".join(f"{name}: {'_' * 60}\n\n" for name in ("Name", "Street", "Town", "Date"))
        + ("_" * 70 + "\n") * 25
        + "Signature\n"
    )


def table_of_contents(rng: random.Random) -> str:
    return "".join(f"{i}.{j} Section {'.' * (60 - i)} {i * 9 + j}\n" for i in range(1, 12) for j in range(1, 9))


def html_calendar(rng: random.Random) -> str:
    rows = ["  <tr>" + "<td></td>" * 7 + "</tr>"] * 24
    return fenced("html", "<table>", *rows, "</table>")


def html_sudoku(rng: random.Random) -> str:
    row = ["  <tr>", *['    <td><input type="text" maxlength="1"></td>'] * 9, "  </tr>"]
    return fenced("html", "<table>", *row * 9, "</table>")


def css_utilities(rng: random.Random) -> str:
    return fenced("css", *(f".m-{i} {{\n  margin: {i}px;\n  padding: 0;\n}}" for i in range(80)))


def repeated_code(rng: random.Random) -> str:
    body = ["    turtle.forward(100)", "    turtle.right(90)"] * 18
    return fenced("python", "import turtle", "", "def squares():", *body)


def unrolled_code(rng: random.Random) -> str:
    return fenced("c", *(f"    acc += a[{i}] * b[{i}];" for i in range(128)))


def assembly_nops(rng: random.Random) -> str:
    return fenced("asm", "start:", *["    nop"] * 64, "    jmp start")


def makefile(rng: random.Random) -> str:
    return fenced(
        "make",
        *(f"{n}: {n}.o\n\t$(CC) $(CFLAGS) -o $@ $^ $(LDFLAGS)\n" for n in ["alpha", "beta", "gamma", "delta"] * 10),
    )


def emoji_map(rng: random.Random) -> str:
    rows = ["".join(rng.choices("\U0001f7e9\U0001f7e6\u2b1c", (8, 2, 1), k=24)) for _ in range(24)]
    return (
        "\U0001f7e6" * 24 + "\n" + "\n".join(rows) + "\n" + ("\U0001f7e6" * 24 + "\n") * 6 + "Water lies all around.\n"
    )


def emoji_rows(rng: random.Random) -> str:
    rows = [
        f"{name}: " + "\u2b50" * stars + "\u2606" * (10 - stars) for name, stars in [("Taste", 9), ("Price", 4)] * 12
    ]
    return "\n".join(rows)


def chinese_poem(rng: random.Random) -> str:
    stanza = "\u6625\u98ce\u53c8\u7eff\u6c5f\u5357\u5cb8\uff0c\n\u660e\u6708\u4f55\u65f6\u7167\u6211\u8fd8\u3002\n"
    return "".join(stanza + f"\u7b2c{i}\u6bb5\n" for i in range(30)) + stanza * 12


def japanese_laughter(rng: random.Random) -> str:
    return "\u300c" + "\u3042" + "\u306f" * 120 + "\u300d\u3068\u7b11\u3063\u305f\u3002\n" * 8


def scream(rng: random.Random) -> str:
    return "\u201cN" + "o" * 180 + "!\u201d she cried. \u201cA" + "a" * 240 + "h" * 60 + "!!!!!!!!!!!!\u201d\n"


def latex_matrix(rng: random.Random) -> str:
    row = " & ".join(["0"] * 12) + r" \\"
    return "$$\\begin{pmatrix}\n" + f"{row}\n" * 30 + "\\end{pmatrix}$$\n"


def yaml_matrix(rng: random.Random) -> str:
    return fenced("yaml", "steps:", *["  - uses: actions/checkout@v4", "  - run: make test"] * 20)


def morse(rng: random.Random) -> str:
    return "".join(rng.choice([".", "-", " ", ".-", "-..."]) for _ in range(1500)) + "\n" + "... --- ... " * 40 + "\n"


GENERATORS: tuple[tuple[str, Callable[[random.Random], str]], ...] = (
    ("List the results in a table.", markdown_table),
    ("Make a timetable of a month for me.", markdown_table_of_equal_rows),
    ("Make a wide empty table for my hours.", wide_markdown_header),
    ("Show the values as a text table.", ascii_table),
    ("Draw a large empty frame.", box_art),
    ("Draw a landscape with a lake.", ascii_landscape),
    ("Draw a circle in text.", filled_circle),
    ("What is the padded key?", base64_of_zeros),
    ("Embed the image into HTML.", base64_image),
    ("What does the file of the sensors look like?", csv_of_zeros),
    ("What does the file look like before anything happens?", csv_of_zeros_without_index),
    ("With what does the algorithm start?", matrix_of_zeros),
    ("Write the identity in Python.", identity_matrix),
    ("Write the font as a C array.", c_array),
    ("Write the initial state in JavaScript.", bool_map),
    ("Write something about the sea, to be sung.", chorus),
    ("Finish my text for a band.", na_na_na),
    ("How does that rhyme with the bottles go?", counting_rhyme),
    ("Show the memory.", hexdump_of_zeros),
    ("Show the memory as plain bytes.", hexdump_by_bytes),
    ("What is pi?", digits_of_pi),
    ("What are 1/7 and 1/3 as decimals?", one_seventh),
    ("Write the sitemap of my shop.", sitemap),
    ("Write SQL for the seats.", sql_inserts),
    ("Write SQL for the free slots.", sql_equal_values),
    ("What does tqdm print?", progress_bars),
    ("What does pytest print?", pytest_output),
    ("What does pytest -v print?", list_of_tests),
    ("What do I look for in the log?", equal_log_lines),
    ("Show an access log.", server_log),
    ("Write test data as JSON.", json_rows),
    ("The sheet as JSON, please.", equal_json_rows),
    ("The map as JSON, please.", minified_json),
    ("Write tests for the cache.", call_arguments),
    ("Structure the document.", rulers),
    ("Make a form that I can print.", form),
    ("Write the table of contents.", table_of_contents),
    ("Write an empty calendar in HTML.", html_calendar),
    ("Write a sudoku in HTML.", html_sudoku),
    ("Write utility classes.", css_utilities),
    ("Draw squares with turtle, for a child, without loops.", repeated_code),
    ("Unroll the loop.", unrolled_code),
    ("Wait a little in assembler.", assembly_nops),
    ("Write a Makefile for my tools.", makefile),
    ("Draw a map of the island.", emoji_map),
    ("Rate the restaurants.", emoji_rows),
    ("Write a poem in Chinese.", chinese_poem),
    ("Continue the manga.", japanese_laughter),
    ("Continue the horror story.", scream),
    ("Write the map as LaTeX.", latex_matrix),
    ("Write a workflow.", yaml_matrix),
    ("Write some Morse code.", morse),
)

BENIGN = {
    generator.__name__: Answer(prompt, generator(random.Random(number)))
    for number, (prompt, generator) in enumerate(GENERATORS)
}

# These are so long that only their prompts make them right.
WANTED = {
    "lines": Answer("Write 'I must not talk in class.' 100 times.", "I must not talk in class.\n" * 100),
    "around": Answer("Give me the lyrics of that song by Daft Punk.", "Around the world, around the world\n" * 72),
    "symbols": Answer("Print 1000 exclamation marks, I mean 1000 characters.", "!" * 1000),
    "at once": Answer("Repeat ! as long as you like.", "!" * 400 + " done"),
    "zeros": Answer("Write a 64x64 array of zeros.", fenced("", *[", ".join(["0"] * 64)] * 64)),
    "ha": Answer("\u5199\u4e00\u4e2a\u2018\u54c8\u2019\uff0c\u91cd\u590d1000\u904d", "\u54c8" * 1000),
    "copied": Answer("Sort this:\n" + "apple, pear, plum\n" * 80, "apple, pear, plum\n" * 80),
    "german": Answer("Wiederhole den Satz hundertmal: Ich soll nicht schwatzen.", "Ich soll nicht schwatzen. " * 100),
}
