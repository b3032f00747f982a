"""A class, for a reward that has settings or keeps something between calls."""

from start import run


class Affordable:
    """Mention the price if it is low, and keep quiet about it if it is high.

    `price` is a column of the data: every column arrives under its name.
    """

    def __init__(self, limit):
        self.limit = limit
        self.name = f"affordable_{limit}"  # in logs: rewards/affordable_100/mean
        self.signature = f"affordable|limit:{limit}|v:1"  # in results, so that a number can be traced

    def __call__(self, completions, price, **columns):
        return [self.score(text, amount) for text, amount in zip(completions, price, strict=True)]

    def score(self, text, price):
        if not price:
            return None  # no opinion: the sample is left out
        cheap = int(price.removeprefix("$")) <= self.limit
        return float((price in text.split()) == cheap)


if __name__ == "__main__":
    run(Affordable(limit=100), watch=("facts_right",), rl_weight=0.3)
