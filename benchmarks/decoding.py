"""How long generated texts take, beside what they took before: with a copy of the keys and values for each head that
shares them, and with a sort of the whole vocabulary for top_p.

    python benchmarks/decoding.py --model MODEL --rows candidates.jsonl [--cuda-graphs]

Prints seconds for one batch, sampled and greedy, and the tokens of its longest text.
"""

import argparse
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from semioffline.algorithm import sampling
from semioffline.data.examples import Collator, Examples
from semioffline.data.options import ModelOptions
from semioffline.policy import generation
from semioffline.policy.decoding import Decoding
from semioffline.tasks.reading.rows import load_rows

KEYS, NUCLEUS = generation.shared_keys, sampling._nucleus


def sort(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    return NUCLEUS(probabilities, top_p, probabilities.shape[1])


VARIANTS: dict[str, tuple[Any, Any]] = {
    "first, unused": (KEYS, NUCLEUS),
    "as it is": (KEYS, NUCLEUS),
    "copies for each head": (nullcontext, NUCLEUS),
    "a sort of the vocabulary": (KEYS, sort),
    "as it is, again": (KEYS, NUCLEUS),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", type=Path, required=True, help="a file with prompt and completion")
    parser.add_argument("--inputs", type=int, default=256)
    parser.add_argument("--samples", type=int, default=4, help="of each input")
    parser.add_argument(
        "--lengths", type=int, nargs=2, default=(448, 80), help="most tokens of a prompt, and of a text"
    )
    parser.add_argument("--cuda-graphs", action="store_true")
    args = parser.parse_args()
    options = ModelOptions(args.model)
    device = torch.device(options.checked_device())
    policy = options.load().to(device)
    if args.cuda_graphs:
        policy.generator.replay_decoding()
    rows = load_rows(args.rows).select(range(args.inputs))
    examples = Examples(rows, policy, *args.lengths, truncation_side="left")
    source = Collator(policy.tokens.pad_id)([examples[n] for n in range(args.inputs)]).source
    longest = args.lengths[1]
    sampled = Decoding(do_sample=True, top_p=0.95, max_new_tokens=longest, num_return_sequences=args.samples)
    numbers = torch.rand(args.inputs * args.samples, longest, generator=torch.Generator().manual_seed(0))
    for name, (keys, nucleus) in VARIANTS.items():
        generation.shared_keys, sampling._nucleus = keys, nucleus  # type: ignore[assignment]
        for kind, decoding, uniforms in (
            ("sampled", sampled, numbers),
            ("greedy", Decoding(max_new_tokens=longest), None),
        ):
            started = time.perf_counter()
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                texts = policy.generate(source, decoding, uniforms=uniforms)  # as lists: the device is waited for
            seconds = time.perf_counter() - started
            print(f"{name}, {kind}: {seconds:.2f} s, {max(map(len, texts))} tokens", flush=True)


if __name__ == "__main__":
    main()
