"""Make data/train.csv: notes of a repair shop, each with the title that somebody gave it. All of it is made up.

    python examples/own_data/make_rows.py data 500

Four of ten titles leave something out, as people's titles do: a model that is only fine-tuned learns that, too.
"""

import csv
import random
import sys
from pathlib import Path

DEVICES = ["pump", "lathe", "crane", "oven", "printer", "compressor", "mixer", "forklift", "conveyor", "boiler"]
PLACES = ["hall 1", "hall 2", "hall 3", "the yard", "the kitchen", "the lab", "the cellar", "the office", "the shop"]
FAULTS = ["worn bearing", "loose cable", "leaking valve", "broken switch", "blocked filter", "cracked belt", "dead fan"]
ACTIONS = ["replaced", "cleaned", "tightened", "repaired", "ordered"]
PEOPLE = ["Aylin", "Ben", "Chidi", "Dana", "Emre", "Farah", "Goran", "Hana"]
SIGNS = ["was loud", "smelled of smoke", "stopped twice", "would not start", "ran too hot", "lost oil"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
NOTES = [
    "{day}, {hour} o'clock. The {device} in {place} {sign}. {person} looked at it and found a {fault}. It was {action}."
    " Cost: {cost} euros.",
    "{person} called on {day}: the {device} in {place} {sign}, {hour} people could not work. The reason was a {fault}, "
    "which was {action} for {cost} euros.",
    "A {fault} was {action} on {day}. It was in the {device} in {place}, which {sign} since {hour} o'clock. "
    "{person} wrote {cost} euros on the bill.",
]
TITLES = ["{device} in {place}: {fault}, {action}", "{fault} of the {device} in {place}", "{device}, {place}: {fault}"]
POOR_TITLES = ["{device} {sign}", "repair on {day}", "{fault}", "{person} at the {device}"]


def make_row(rng: random.Random) -> dict[str, str]:
    facts = {"device": rng.choice(DEVICES), "place": rng.choice(PLACES), "fault": rng.choice(FAULTS)}
    rest = {"action": rng.choice(ACTIONS), "person": rng.choice(PEOPLE), "sign": rng.choice(SIGNS)}
    rest |= {"day": rng.choice(DAYS), "hour": str(rng.randint(6, 18)), "cost": str(rng.randint(2, 90) * 10)}
    title = rng.choice(POOR_TITLES if rng.random() < 0.4 else TITLES)
    note = rng.choice(NOTES).format(**facts, **rest)
    return {"prompt": note, "completion": title.format(**facts, **rest)} | facts


def main(folder: str, rows: int) -> None:
    rng = random.Random(0)
    made = [make_row(rng) for _ in range(rows)]
    Path(folder).mkdir(parents=True, exist_ok=True)
    with open(Path(folder) / "train.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(made[0]))
        writer.writeheader()
        writer.writerows(made)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
