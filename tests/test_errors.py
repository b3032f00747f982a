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


def test_names_of_other_libraries_are_understood():
    """TRL's and Transformers' names, and those of their examples."""
    assert "Did you mean 'num_samples'?" in str(unknown("option", "num_generations", ["num_samples", "num_beams"]))
    assert "Did you mean 'avg'?" in str(unknown("method", "grpo", ["avg", "gold"]))
    assert "Did you mean 'max_completion_length'?" in str(unknown("x", "max_target_length", ["max_completion_length"]))
    assert "'avg'" not in str(unknown("recipe", "grpo", ["samsum", "nqg"]))  # not where there is no such name
