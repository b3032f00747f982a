"""The error for a name that does not exist."""

from semioffline.errors import MOST_NAMES, unknown


def test_few_names_are_all_shown():
    assert str(unknown("task", "adz", ["ads", "e2e"])) == "unknown task 'adz'. Did you mean 'ads'? Known: ads, e2e."


def test_of_many_names_the_nearest_are_shown():
    """A line that a person can read: trainers have two hundred options."""
    names = [f"option_{n}" for n in range(MOST_NAMES)] + ["learning_rate"]
    message = str(unknown("option", "lerning_rate", names))
    assert message.startswith("unknown option 'lerning_rate'. Did you mean 'learning_rate'? Known: ")
    assert message.endswith(f" and {MOST_NAMES + 1 - 8} more.")
    assert message.count(",") == 7
