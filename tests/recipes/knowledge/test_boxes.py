"""Boxes by name: what people type, what exists, and what is said of the rest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.base.errors import UserError
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.knowledge.tables import knowledge

KNOWN = [(hardware, count) for hardware in knowledge().hardware.values() for count in hardware.counts]


@pytest.mark.parametrize(
    ("text", "name", "nodes", "gpus", "architecture", "capability"),
    [
        ("spark", "spark", 1, 1, "aarch64", "12.1"),
        ("GB10", "spark", 1, 1, "aarch64", "12.1"),
        ("dgx spark", "spark", 1, 1, "aarch64", "12.1"),
        ("2xspark", "2xspark", 2, 1, "aarch64", "12.1"),
        ("2 x DGX-Spark", "2xspark", 2, 1, "aarch64", "12.1"),
        ("h100", "h100", 1, 1, "x86_64", "9.0"),
        ("1xh200", "h200", 1, 1, "x86_64", "9.0"),
        ("8xh800", "8xh800", 1, 8, "x86_64", "9.0"),
        ("8xB200", "8xb200", 1, 8, "x86_64", "10.0"),
        ("gb200", "gb200", 1, 1, "aarch64", "10.0"),
        ("4xgb200", "4xgb200", 1, 4, "aarch64", "10.0"),
        ("8xgb200", "8xgb200", 2, 4, "aarch64", "10.0"),
        (" RTX Pro 6000 ", "rtx-pro-6000", 1, 1, "x86_64", "12.0"),
        ("rtx-pro-6000-max-q", "rtx-pro-6000", 1, 1, "x86_64", "12.0"),
        ("rtx-pro-6000-server", "rtx-pro-6000-server", 1, 1, "x86_64", "12.0"),
        ("5090", "rtx-5090", 1, 1, "x86_64", "12.0"),
    ],
)
def test_boxes_that_people_name(text, name, nodes, gpus, architecture, capability):
    box = parse_box(text)
    assert (box.name, box.nodes, box.gpus, box.architecture) == (name, nodes, gpus, architecture)
    assert box.hardware.compute_capability == capability
    assert box.num_gpus == nodes * gpus
    assert not box.is_probed


@given(st.sampled_from(KNOWN), st.data())
def test_every_count_of_every_name(known, data):
    hardware, count = known
    called = data.draw(st.sampled_from([hardware.name, *hardware.aliases]))
    text = data.draw(st.sampled_from([called, called.upper(), called.replace("-", " ")]))
    box = parse_box(f"{count}x{text}")
    assert (box.hardware, box.num_gpus) == (hardware, count)
    assert parse_box(box.name) == box


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sparc", "unknown hardware 'sparc' (did you mean 'spark'?)"),
        ("2 spark", "unknown hardware '2-spark' (did you mean 'spark'?)"),
        ("2xh10", "unknown hardware 'h10' (did you mean 'h100'?)"),
        ("3xspark", "there is no box of 3 x spark; there are spark, 2xspark"),
        ("0xh100", "there is no box of 0 x h100; there are h100, 2xh100, 4xh100, 8xh100"),
        ("16xb200", "there is no box of 16 x b200; there are b200, 2xb200, 4xb200, 8xb200"),
    ],
)
def test_boxes_that_do_not_exist(text, message):
    with pytest.raises(UserError) as caught:
        parse_box(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["", " ", "2x", "toaster"])
def test_what_names_nothing_gets_the_list_in_one_line(text):
    with pytest.raises(UserError, match="known: spark, rtx-pro-6000") as caught:
        parse_box(text)
    assert "\n" not in str(caught.value)
