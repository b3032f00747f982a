"""A reward is a function: lists in, one number for each sample out."""

from start import run

BRAND = {"discover", "elegant", "order"}


def brand_words(completions, **columns):
    """The share of the brand's words that the advertisement uses."""
    return [len(BRAND & set(text.split())) / len(BRAND) for text in completions]


if __name__ == "__main__":
    run(brand_words)
