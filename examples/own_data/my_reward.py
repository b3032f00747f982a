"""What a good title of a repair is: it names the device, the place and the fault, in at most ten words."""


def good_title(completions, device, place, fault, **columns):
    rewards = []
    for title, *facts in zip(completions, device, place, fault, strict=True):
        named = sum(fact in title.lower() for fact in facts) / len(facts)
        too_long = max(0, len(title.split()) - 10)
        rewards.append(max(0.0, named - 0.1 * too_long))
    return rewards
