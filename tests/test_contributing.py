"""The map for newcomers is true."""

import re
import sys
from pathlib import Path

from tests.integration.toy import build_rows, save_model

import semioffline
from semioffline.cli import main

PAGE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
STEPS = re.findall(r"(?m)^\d+\. `([\w.]+)`$", PAGE)
PACKAGE = Path(semioffline.__file__).parent


def test_one_row_takes_the_path_that_is_written_down(tmp_path):
    """Every function of the list is called, and for the first time in this order, up to what one call does inside
    another. The list has at most 45 calls in 25 modules."""
    for split in ("train", "validation"):
        build_rows(8).to_json(tmp_path / f"{split}.jsonl")
    flags = ["--data_dir", str(tmp_path), "--model", str(save_model(tmp_path / "model")), "--device", "cpu"]
    flags += ["--reward", "rouge", "--max_steps", "1", "--num_samples", "2", "--logging_steps", "1"]
    flags += ["--max_prompt_length", "24", "--max_completion_length", "28", "--output_dir", str(tmp_path / "run")]
    called: dict[str, int] = {}
    checking: list[str] = []  # a new policy and the initial outputs have batches of their own: not the row of the list

    def note(frame, event, argument):
        own = frame.f_code.co_qualname in ("check_model", "write_initial_outputs", "check_mask_token")
        if own and event in ("call", "return"):
            checking[:] = [event] if event == "call" else []
        if event == "call" and not checking and frame.f_code.co_filename.startswith(str(PACKAGE)):
            module = ".".join(Path(frame.f_code.co_filename).relative_to(PACKAGE).with_suffix("").parts)
            called.setdefault(f"{module}.{frame.f_code.co_qualname}", len(called))

    sys.setprofile(note)
    try:
        assert main(["train", "semi_offline", *flags]) == 0
    finally:
        sys.setprofile(None)
    assert [step for step in STEPS if step not in called] == []
    assert sorted(STEPS, key=called.__getitem__) == STEPS
    assert 30 < len(STEPS) <= 45
    assert len({module_of(step) for step in STEPS}) <= 25


def module_of(step: str) -> str:
    parts = step.split(".")
    ends = [n for n in range(1, len(parts)) if PACKAGE.joinpath(*parts[:n]).with_suffix(".py").exists()]
    return ".".join(parts[: ends[-1]])


def test_the_map_names_every_package():
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    named = set(re.findall(r"(?m)^\| `(\w+)/` \|", PAGE))
    assert named == packages
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert all(f"`{name}.py`" in PAGE for name in modules)
