"""The report page: its size, and how long a browser needs until it answers; and what writing it costs.

Two reports: that of a run folder of `semioffline demo` (--demo), and one of 5,000 rows and 200 logged steps that this
script makes. A page answers when its scripts have run and a frame was painted: seconds since the navigation began, the
median of --repeats fresh pages in Chromium. Writing is in seconds of CPU time, and for the demo as a share of the time
of both its stages. Exits with 1 if a limit is exceeded: 3 MB and 1.5 s, 15 MB and 4 s, 3 % of the demo.

    semioffline demo --output_dir runs/demo
    python -m benchmarks.report_page --demo runs/demo --output docs/results/report.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.synthetic_run import write_run
from semioffline.experiments.provenance import commit
from semioffline.report.page import write_report
from semioffline.training.run_folder import versions

ANSWERS = (
    """() => new Promise((resolve) => requestAnimationFrame(() => setTimeout(() => resolve(performance.now()))))"""
)


@dataclass(frozen=True)
class Measured:
    """One report."""

    name: str
    megabytes: float
    most_megabytes: float
    seconds_until_interactive: float
    most_seconds: float
    seconds_of_each: list[float]
    writing_cpu_seconds: float
    writing_share: float | None = None
    """Of the seconds of the demo's two stages."""

    @property
    def is_within_limits(self) -> bool:
        share = self.writing_share is None or self.writing_share <= 0.03
        return share and self.megabytes <= self.most_megabytes and self.seconds_until_interactive <= self.most_seconds


def measure(name: str, folder: Path, page: Path, repeats: int, limits: tuple[float, float]) -> Measured:
    write_report([folder], page)  # loads modules, which a command that trains has loaded
    started = time.process_time()
    write_report([folder], page)
    writing = time.process_time() - started
    each = [seconds_until_interactive(page) for _ in range(repeats)]
    path = folder / "result.json"
    models: dict[str, Any] = json.loads(path.read_text())["models"] if path.exists() else {}  # of a job
    trained = sum(model["seconds"] for model in models.values())
    size = page.stat().st_size / 1e6
    share = writing / trained if trained else None
    return Measured(name, size, limits[0], median(each), limits[1], each, writing, share)


def seconds_until_interactive(page: Path) -> float:
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        opened.goto(page.resolve().as_uri(), wait_until="domcontentloaded")
        opened.wait_for_selector("html[data-ready]", state="attached")
        milliseconds = opened.evaluate(ANSWERS)
        assert opened.locator(".output").count() == 20
        browser.close()
    return milliseconds / 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, required=True, help="run folder of `semioffline demo`")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        large = write_run(folder / "large", rows=5000, before=200, steps=200, num_samples=64, prompt_words=100,
                          output_words=25)  # fmt: skip
        found = [
            measure("demo", args.demo, folder / "demo.html", args.repeats, (3, 1.5)),
            measure("5,000 rows, 200 logged steps", large, folder / "large.html", args.repeats, (15, 4)),
        ]
    result = {
        "kind": "report",
        "about": {"command": "python -m benchmarks.report_page --demo runs/demo", "commit": commit(),
                  "versions": versions(system=False)},
        "pages": [asdict(each) for each in found],
    }  # fmt: skip
    for each in found:
        print(f"{each.name}: {each.megabytes:.2f} MB, {each.seconds_until_interactive:.2f} s until it answers, "
              f"written in {each.writing_cpu_seconds:.2f} s of CPU time")  # fmt: skip
    if args.output is not None:
        args.output.write_text(json.dumps(result, indent=1))
    return 0 if all(each.is_within_limits for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
