"""SemiOfflineTrainer: one trainer for every method, on transformers.Trainer."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DynamoBackend, gather_object
from torch import Tensor, nn
from transformers import TrainerCallback, set_seed

from semioffline.algorithm.randomness import Randomness
from semioffline.algorithm.tensors import Batch, HostCopy, StepOutput
from semioffline.config import MethodConfig, StaticTarget
from semioffline.cuda.update import replay_updates
from semioffline.data.examples import Collator, Examples, LikeLengths, as_dataset
from semioffline.data.lengths import text_limits
from semioffline.data.order import Epochs, Repeated, Sequential, Shuffled
from semioffline.errors import UserError, told_in_one_line
from semioffline.evaluation.decode import generate_ids
from semioffline.evaluation.metrics import Metric, best_metric, measure
from semioffline.evaluation.results import Evaluation
from semioffline.evaluation.signs import signs
from semioffline.methods.shared.base import BaseMethod
from semioffline.methods.shared.registry import config_class, load_method
from semioffline.policy.decoding import Decoding
from semioffline.policy.loading import disable_dropout
from semioffline.policy.policy import Policy
from semioffline.scoring.reward_set import RewardSet
from semioffline.scoring.scorer import make_scorer
from semioffline.storage.files import find_damage, whole_folder
from semioffline.training.balance import Balance
from semioffline.training.callbacks import arrange, find_console
from semioffline.training.checkpoints import SafeCheckpoints
from semioffline.training.initial_outputs import measure_start
from semioffline.training.model_card import write_card
from semioffline.training.own_rates import set_own_rates
from semioffline.training.rollouts import Rollouts
from semioffline.training.run_folder import RunFolder
from semioffline.training.run_log import RunLog, as_numbers, write_samples
from semioffline.validation import show


class NonFiniteLoss(UserError):
    """The error that stops training if the loss is NaN or infinite."""


class SemiOfflineTrainer(SafeCheckpoints):
    """Trains a text-generation model with one method of this library. It is a `transformers.Trainer`.

    Args:
        model: Name on the Hub, folder, PreTrainedModel, PeftModel or Policy.
        reward_funcs: Name, callable, sequence-classification model, or a list of them.
        args: The settings. Their class selects the method.
        train_dataset: prompt, completion; optional references, candidates, candidate_rewards; columns for rewards.
        eval_dataset: The same columns, for evaluation during training.
        processing_class: The tokenizer, if model is an object.
        reward_processing_classes: Tokenizers of rewards that are model objects.
        callbacks: As in `transformers.Trainer`, like optimizers.
        peft_config: Adds an adapter, such as LoRA, to the model.
        method: Your own method object, instead of the one that args selects.
    """

    args: MethodConfig
    train_dataset: Any
    eval_dataset: Any

    def __init__(
        self,
        model: str | nn.Module,
        reward_funcs: Any = None,
        args: MethodConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple = (None, None),
        peft_config: Any = None,
        method: BaseMethod | None = None,
    ):
        args = config_class("semi_offline")(output_dir="semioffline-output") if args is None else args
        self.method = load_method(args, method)
        set_seed(args.seed)  # an adapter's weights are drawn when it is added
        self.policy = Policy.of(model, processing_class, peft_config=peft_config, share_prompt=args.share_prompt)
        if args.disable_dropout:
            disable_dropout(self.policy)
        _check_devices_and_data(args, eval_dataset)
        self.limits = text_limits(self.policy, args)
        self._epochs, self.run_log = Epochs(), RunLog()
        self.console = find_console(callbacks)
        own = self.method.static_target, self.method.needs_candidates, self.method.mask_where
        train_dataset = self.prepare(train_dataset, args, *own)
        eval_dataset = self.prepare(eval_dataset, args)
        with told_in_one_line(ValueError, ImportError, RuntimeError):  # a logger that is not installed, for one
            super().__init__(
                model=self.policy,
                args=args,
                data_collator=Collator(self.policy.tokens.pad_id),  # type: ignore[arg-type]
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=self.policy.tokens.tokenizer,
                callbacks=arrange(self, args, callbacks, self.run_log, self._epochs, self.console),
                optimizers=optimizers,
            )
        if not args.verbose:
            self.console.follow(self)
        if self.method.needs_reward and (reward_funcs is None or reward_funcs == []):
            raise UserError(
                f"the method {args.method} needs a reward: pass reward_funcs (--reward on the command line)"
            )
        rewards = [] if reward_funcs is None else reward_funcs
        self.reward_set = RewardSet(
            rewards, args.reward_weights, reward_processing_classes, args.device, args.reward_timeout
        )
        self.reward_set.context.follow(lambda: self.state)
        self.scorer = make_scorer(self.policy, self.reward_set, args, self.method.needs_reward)
        self._set_up_acceleration()
        args.metric_for_best_model = best_metric(args, self.reward_set, self.eval_dataset)
        if self.train_dataset is not None:
            self.method.prepare(self.policy, self.train_dataset)
        self.rollouts = Rollouts(self.method.repeats) if self.method.repeats else None
        ratio = self.method.rl_ratio
        self.balance = None if ratio is None else Balance(ratio)
        self.step_metrics: dict[str, list[float | Tensor]] = defaultdict(list)
        """Metrics of the steps since the last log."""
        self.run_folder = RunFolder(self)

    def _set_up_acceleration(self) -> None:
        """Set up torch_compile for single layers, because the shapes of the whole policy change with every batch."""
        args = self.args
        self.policy.trunk.pad_to_multiple_of(args.pad_to_multiple_of)
        self.accelerator.state.dynamo_plugin.backend = DynamoBackend.NO
        if args.torch_compile:
            options = {"backend": args.torch_compile_backend, "mode": args.torch_compile_mode}
            self.policy.trunk.compile_layers(**{n: value for n, value in options.items() if value is not None})
        if args.cuda_graphs:
            if args.device.type != "cuda" or args.world_size > 1:
                raise UserError(
                    f"cuda_graphs needs one CUDA device and one process, not {args.device} x {args.world_size}"
                )
            self.policy.use_cuda_graphs()
            self.policy.generator.replay_decoding(must=False)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        made = self.optimizer is None
        with told_in_one_line(ValueError, ImportError, before=f"optim={show(self.args.optim)}: "):
            optimizer = super().create_optimizer(*args, **kwargs)
        if made:
            set_own_rates(optimizer, self.method.own_rates())
        if made and self.args.cuda_graphs and self.accelerator.scaler is None:
            replay_updates(self.policy.trunk, optimizer, self.accelerator)
        return optimizer

    def prepare(
        self,
        dataset: Any,
        args: MethodConfig | None = None,
        static_target: StaticTarget = "ground_truth",
        with_candidates: bool = False,
        mask_where: str | None = None,
    ) -> Any:
        """Check and tokenise a dataset with the settings of this run."""
        args = self.args if args is None else args
        if dataset is None or isinstance(dataset, Examples):
            return dataset
        if isinstance(dataset, dict):
            own = static_target, with_candidates, mask_where
            return {name: self.prepare(part, args, *own) for name, part in dataset.items()}
        return Examples(
            as_dataset(dataset),
            self.policy,
            *self.limits,
            args.truncation_side,
            static_target,
            args.shows_bars,
            with_candidates,
            mask_where,
        )

    # ---- one step ----

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list, Any]:
        """Return the micro-batches of one optimizer step, and its target tokens and rows over all processes."""
        if self.state.global_step >= self.state.max_steps or self.control.should_training_stop:  # resumed after its end
            return [], None
        batches = list(islice(epoch_iterator, num_batches))
        tokens = sum(int(batch.target.keep_mask.sum()) for batch in batches)
        counts = [tokens, sum(len(batch) for batch in batches)]
        if self.args.world_size == 1:
            return batches, counts
        return batches, self.accelerator.reduce(torch.tensor(counts, device=device), "sum")

    def get_train_dataloader(self) -> Any:
        """Return the data loader. Batches stay on the host, where masks are drawn; `training_step` copies them."""
        loader = super().get_train_dataloader()
        loader.device = None
        return loader

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Compute the loss of one micro-batch, divided by the counts of the whole step, and run backward. The loss is
        multiplied by the number of processes, because gradients are averaged over them. The host waits only for tokens
        that it scores, for top_p below 1, and for the loss."""
        if not (model.training and self.policy.model.training):
            model.train()
        batch: Batch = inputs
        if self.args.cuda_graphs:
            self.policy.trunk.forget_step()
        if not self.method.batch_on_host:
            batch = inputs.to(self.args.device, non_blocking=True)
        randomness = Randomness(self.args.seed, self.state.global_step)
        measured = self.balance if self.balance is not None and self.balance.measures else None
        squares: dict[str, Tensor] = {}
        recorded = squares if measured is not None or self._log_is_due() else None
        with self.compute_loss_context_manager(), self.policy.through(model), self.policy.watch(recorded):
            if self.rollouts is not None:
                roll_out = partial(self.method.roll_out, self.policy, score=self.scorer, randomness=randomness)
                batch = self.rollouts.attach(batch, randomness.step, roll_out)
            output = self.method.step(self.policy, batch, self.scorer, randomness)
            if self.balance is not None:
                output = self.balance.weigh(output)
            parts = output.parts(num_items_in_batch)
            loss = output.total(parts)
        self.policy.meter.add_inputs(len(batch))
        loss_before = HostCopy(loss)
        kwargs = {"scale_wrt_gas": False} if self.is_deepspeed_enabled else {}
        self.accelerator.backward(loss * self.args.world_size, **kwargs)
        parts = output.parts(num_items_in_batch, known=True)
        loss = output.total(parts) if any(term.value for term in output.terms) else loss.detach()
        self._check_finite(loss_before, loss, batch)
        self._note(output, parts, squares)
        if measured is not None:
            measured.see(squares, self.args.device)
            if self.accelerator.sync_gradients:
                measured.end_step(partial(self.accelerator.reduce, reduction="sum"))
        return loss * self.args.world_size

    def _check_finite(self, loss_before: HostCopy, loss: Tensor, batch: Batch) -> None:
        """Stop if the loss is not finite. In loss_before, late terms are 0, or NaN if their logits are."""
        if not math.isfinite(loss_before.wait().item()):
            rows = ", ".join(map(str, batch.index.tolist()))
            where = f"at step {self.state.global_step} (rows {rows})"
            raise NonFiniteLoss(
                f"the loss is {loss.item()} {where}: lower the learning rate or rl_weight, or look at the rows"
            )

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: Transformers would estimate it from input_ids, but the meter counts what was really run."""
        return 0

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        strategy, seed = self.args.train_sampling_strategy, self.args.seed
        if strategy != "group_by_length" and self.method.repeats < 2:
            return super()._get_train_sampler(train_dataset)
        examples = (train_dataset or self.train_dataset).examples
        together = self.args.train_batch_size * self.args.gradient_accumulation_steps
        order: Any = (Sequential if strategy == "sequential" else Shuffled)(len(examples), seed)
        if strategy == "group_by_length":
            lengths = [len(example.source.ids) + len(example.target.ids) for example in examples]
            order = LikeLengths(lengths, together, seed)
        if self.method.repeats > 1:
            order = Repeated(order, len(examples), together * self.args.world_size, self.method.repeats)
        return self._epochs.follow(order)

    # ---- log ----

    def _note(self, output: StepOutput, parts: dict[str, Tensor], squares: dict[str, Tensor]) -> None:
        # the log averages over micro-batches and processes, the loss is their sum
        shares = self.args.world_size * self.current_gradient_accumulation_steps
        for name, value in (output.all_metrics() | {f"loss/{n}": part * shares for n, part in parts.items()}).items():
            self.step_metrics[name].append(value)
        for name, square in squares.items():
            self.step_metrics[f"grad/{name}"].append(square.sqrt())
        if self._log_is_due() and self.accelerator.is_main_process:
            step = self.state.global_step + 1
            extra, to_print = self.reward_set.context.extra, self.args.num_completions_to_print
            write_samples(Path(str(self.args.output_dir)), step, output, to_print, extra)

    def _log_is_due(self) -> bool:
        """Return whether a log is due after this step."""
        step = self.state.global_step + 1
        every = self.state.logging_steps if self.args.logging_strategy == "steps" else 0
        return bool(every and (step % every == 0 or (step == 1 and self.args.logging_first_step)))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            real = {n: [v for v in as_numbers(values) if not math.isnan(v)] for n, values in self.step_metrics.items()}
            means = {name: sum(values) / len(values) for name, values in real.items() if values}
            means |= {f"cost/{name}": value for name, value in self.policy.meter.per_input().items()}
            gathered = gather_object([means]) if self.args.world_size > 1 else [means]
            names = dict.fromkeys(name for part in gathered for name in part)
            shares = {name: [part[name] for part in gathered if name in part] for name in names}
            logs = logs | {name: sum(values) / len(values) for name, values in shares.items()}
            logs |= self.reward_set.context.take_metrics()
            self.step_metrics.clear()
            if not any("loss" in line for line in self.state.log_history):  # the first line of the run
                logs |= self.train_dataset.truncation.shares() | self.at_start
        super().log(logs, start_time)

    # ---- evaluation ----

    def evaluate(  # type: ignore[override]
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Generate outputs and score them: rewards, eval_metrics, length, repetition and distinct words."""
        examples = self.eval_dataset if eval_dataset is None else self.prepare(eval_dataset)
        if examples is None:
            raise UserError("evaluation needs an eval_dataset")
        if isinstance(examples, dict):
            parts = [self.evaluate(part, None, f"{metric_key_prefix}_{name}") for name, part in examples.items()]
            return {key: value for part in parts for key, value in part.items()}
        started = time.perf_counter()
        evaluation = self.evaluate_outputs(examples)
        means = evaluation.means()
        if self.reward_set.functions:
            pairs = zip(self.reward_set.weights, self.reward_set.functions, strict=True)
            means["reward"] = sum(weight * means[name] for weight, name in pairs)
        means |= signs(evaluation, examples, self.reward_set)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in means.items()}
        metrics[f"{metric_key_prefix}_runtime"] = time.perf_counter() - started
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def evaluate_outputs(self, examples: Examples) -> Evaluation:
        """Generate outputs and score each. Each process decodes its share, and gets all predictions."""
        rank, world = self.args.process_index, self.args.world_size
        decoding = Decoding.for_evaluation(self.args, self.limits[1])
        part = slice(rank, None, world)
        with self.policy.meter.paused(), self.accelerator.autocast():
            ids = generate_ids(
                self.policy, examples, decoding, self.args.per_device_eval_batch_size, self.args.shows_bars, part
            )
        if world > 1:
            shares = gather_object([ids])
            ids = [shares[n % world][n // world] for n in range(len(examples))]
        known = {*self.reward_set.functions, *self.reward_set.sources}
        metrics = [metric for metric in self.args.eval_metrics if metric not in known]
        every: list[Metric] = [*self.reward_set.functions.values(), *metrics]
        batches, limit = math.ceil(len(examples) / self.args.per_device_train_batch_size), self.args.reward_timeout
        limit = limit and limit * batches
        return measure(self.policy.tokens.decode(ids), examples, every, decoding, ids, self.args.device, limit)

    # ---- checkpoints ----

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train. `resume_from_checkpoint=True` continues from the last complete checkpoint, if there is one."""
        self.scorer.start_workers()
        self.run_folder.begin()
        self.policy.meter.counts.clear()  # of an earlier stage with the same policy
        try:
            done = super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self.console.close()
        self.run_folder.finish()
        return done

    def measure_start(self) -> dict[str, float]:
        return measure_start(self)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """Save the plain model and tokenizer, which load without this library."""
        folder = Path(output_dir or str(self.args.output_dir))
        with nullcontext(folder) if self.staging else whole_folder(folder) as part:
            self.policy.save(part, state_dict)
            self.method.save(part)
            write_card(part, self)
            if self.balance is not None:
                self.balance.save(part)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:  # `push_to_hub` calls it
        write_card(Path(str(self.args.output_dir)), self)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, self.policy.model if model is None else model)
        self.method.load(Path(resume_from_checkpoint))
        if self.balance is not None:
            self.balance.load(Path(resume_from_checkpoint))

    def _load_best_model(self) -> None:
        best = Path(str(self.state.best_model_checkpoint))
        if damage := find_damage(best):
            raise UserError(f"{damage}, and it is the best checkpoint: set --load_best_model_at_end false")
        self._load_from_checkpoint(str(best))


def _check_devices_and_data(args: MethodConfig, eval_dataset: object) -> None:
    if args.n_gpu > 1:
        raise UserError(
            f"{args.n_gpu} GPUs in one process: start with `accelerate launch`, or set CUDA_VISIBLE_DEVICES=0"
        )
    if eval_dataset is None and args.eval_strategy != "no":
        raise UserError(f"eval_strategy={show(args.eval_strategy)} needs an eval_dataset (a validation split)")
