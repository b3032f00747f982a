"""Several rewards with weights: clicks alone, at six times the usual RL weight, cost the facts; mixed in, they stay."""

from start import run

REWARDS = {"click_rate": 1.0, "facts_right": 1.0, "repetition_penalty": 1.0, "length_penalty:12-20": 1.0}

if __name__ == "__main__":
    run(list(REWARDS), reward_weights=list(REWARDS.values()), rl_weight=3.0)
