"""`eyas bench load` on a small model: every row is there, rates follow from times, and the files are named once."""

import pytest
from tests.bench.test_commands import bench


@pytest.mark.slow
def test_load(capsys, model_folder):
    lines, report = bench(capsys, "load", model_folder, "--repeats", 2)
    assert lines[1].startswith("SIMULATED") and report["simulated"] is True
    paths = [*model_folder.glob("*.safetensors"), *(model_folder / "eagle3").glob("*.safetensors")]
    assert report["file_bytes"] == sum(path.stat().st_size for path in paths)
    assert 0 < report["loaded_bytes"] < report["file_bytes"]  # packed experts stay in their file
    assert report["first_load_s"] > 0 and report["host_peak_bytes"] >= 0
    figures = report["figures"]
    ways = [("load", None), ("read", 8), ("read", 1)]
    assert [(f["cache"], f["what"], f["threads"]) for f in figures] == [
        (cache, *way) for cache in ("cold", "warm") for way in ways
    ]
    for figure in figures:
        assert figure["seconds"]["n"] == 2 and 0 < figure["gb_s"]["min"] <= figure["gb_s"]["max"]
        assert ("load_against_it" in figure) == (figure["what"] == "read")
    assert sum("read, 8 at once" in line for line in lines) == 2
