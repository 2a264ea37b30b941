"""Supervised fine-tuning on (PyTorch module, verified Triton kernel) pairs.

    python train_sft.py                                            # a small model from scratch, no GPU
    python train_sft.py --model FOLDER_OR_HUB_ID --data pairs.jsonl
    torchrun --nproc-per-node 4 train_sft.py --model Qwen/Qwen3-8B --data pairs.jsonl --recipe autotriton

`--data` is a JSONL file of {"task": a module's source, "completion": ...}, {"prompt": ..., "completion": ...}
or {"messages": [...]}; empty means pairs from the synthetic grammar. A task is asked as GRPO asks it.
The loss is on the completion only. The run lives in out/NAME/: checkpoints, metrics.jsonl, curves.png,
summary.json, samples.jsonl (of synthetic tasks), and model/, a Hugging Face folder. The same command
continues a run that was stopped.
"""

import nanotriton  # first, because it says what is supported where something is missing  # noqa: F401

# isort: split

from dataclasses import dataclass
from typing import Annotated, Literal

from nanotriton import config
from nanotriton.parallel import stop


@dataclass
class Config(config.Options):
    """The options of a run of SFT."""

    name: str = "sft"  # the run's folder under --out
    out: str = "out"  # where runs live
    fresh: bool = False  # delete what a run of this name left, instead of continuing it
    seed: Annotated[int, ">= 0"] = 0  # of data, weights and samples
    # autotriton: the paper's numbers (lr 1e-5, 3 epochs, 16,384 tokens)
    recipe: Literal["default", "autotriton"] = "default"
    model: str = ""  # Hugging Face folder or hub id to start from; empty: a small Llama from scratch
    template: str = ""  # variables for its chat template, in JSON: '{"enable_thinking": false}'
    # a file with {source} in it: how tasks are put to the model; empty: as nanotriton/tasks/prompt.py does it
    prompt: str = ""
    data: str = ""  # JSONL of {"task", "completion"} and such; empty: synthetic tasks with their solutions
    examples: Annotated[int, ">= 1"] = 12000  # synthetic pairs to draw
    # who wrote their solutions; habits: a teacher that is wrong in 28% of them, always in the same ways
    teacher: Literal["exact", "habits"] = "exact"
    vocab: Annotated[int, ">= 300"] = 1024  # from scratch: tokens of the BPE trained on the spot
    layers: Annotated[int, ">= 1"] = 4  # from scratch: transformer layers
    width: Annotated[int, ">= 32"] = 128  # from scratch: hidden size, a multiple of 32 (the head size)
    steps: Annotated[int, ">= 0"] = 1600  # optimizer steps; 0, as with --model: as many as --epochs says
    epochs: Annotated[float, "> 0"] = 3.0  # passes over the data when --steps is 0
    batch: Annotated[int, ">= 1"] = 16  # sequences an optimizer step, over all ranks; with --model 64
    # fp32 masters; adam8: bf16 parameters and 8-bit moments, an 8B on one GPU
    optimizer: Literal["adamw", "adam8"] = "adamw"
    # rank of the adapters (LoRA) that are trained on all linear layers while the rest stays as it is; 0: no
    # adapters, all weights are trained. Adapters want about 10 times the learning rate
    lora: Annotated[int, ">= 0"] = 0
    lr: Annotated[float, "> 0"] = 4e-3  # peak learning rate; with --model 1e-5
    # share of the steps that the learning rate rises, before a cosine to --min-lr
    warmup: Annotated[float, ">= 0", "<= 1"] = 0.05
    # share of the peak that it never falls below: what is annealed to the end learns less in GRPO;
    # with --model 0
    min_lr: Annotated[float, ">= 0", "<= 1"] = 0.15
    weight_decay: Annotated[float, ">= 0"] = 0.0  # AdamW's, on matrices
    clip: Annotated[float, "> 0"] = 1.0  # largest norm of the gradient
    max_len: Annotated[int, ">= 16"] = 1024  # longer pairs are left out (and counted); with --model 8192
    micro_tokens: Annotated[int, ">= 64"] = 16384  # tokens of one forward and backward pass
    eval_every: Annotated[int, ">= 1"] = 100  # steps between measurements of the held-out loss
    # held-out tasks whose kernels are executed at the end; with --data none
    eval_tasks: Annotated[int, ">= 0"] = 64
    max_tokens: Annotated[int, ">= 1"] = 128  # longest completion sampled there; with --model 2048
    save_every: Annotated[int, ">= 1"] = 20  # steps between checkpoints; with --model 100
    tensorboard: bool = False  # also write TensorBoard's events into the run's folder
    wandb: str = ""  # a project of Weights & Biases to log to as well; WANDB_MODE=offline needs no account

    def validate(self) -> None:
        config.json_object("--template", self.template)
        if self.width % 32:
            raise config.ConfigError(f"--width {self.width}: a multiple of 32 is expected")

    def ignored(self) -> dict[str, str]:
        """{an option that does nothing beside these: why}"""
        found = {}
        if self.data:
            found |= dict.fromkeys(("examples", "teacher"), "with --data")
        if self.data and self.eval_tasks:
            found["eval_tasks"] = "with --data: no task is held out then"
        if self.data or not self.eval_tasks:
            found["max_tokens"] = "where nothing is sampled, as with --data or --eval-tasks 0"
        if self.steps:
            found["epochs"] = f"with --steps {self.steps}: 0 makes it as many steps as --epochs says"
        if self.model:
            return found | dict.fromkeys(("vocab", "layers", "width"), "with --model: its own is taken")
        return found | {"template": "without --model: the small model has no chat template"}


# The defaults above are for the small model; these for a pretrained one, and AutoTriton's (arXiv 2507.05687,
# section 4.1).
PRETRAINED = dict(
    steps=0, epochs=3.0, batch=64, lr=1e-5, min_lr=0.0, max_len=8192, max_tokens=2048, save_every=100
)
AUTOTRITON = PRETRAINED | dict(max_len=16384, warmup=0.1)
Config.presets = {"model": {"*": PRETRAINED}, "recipe": {"autotriton": AUTOTRITON}}

if __name__ == "__main__":
    # before torch is imported, which takes seconds: --help, a mistake and Ctrl-C are answered at once
    stop.leave_at_once()
    options = config.parse(Config)

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nanotriton import schedule
from nanotriton.data import pack, score
from nanotriton.heldout import heldout
from nanotriton.log import counted, took
from nanotriton.parallel import distributed
from nanotriton.parallel.program import program
from nanotriton.parallel.world import World, idle_cores
from nanotriton.rules.extract import extract_candidate
from nanotriton.runs.run import Clock, Run, check_model, make_executor, make_sampler, sync_weights
from nanotriton.tasks import synthetic
from nanotriton.tasks.bpe import train_tokenizer
from nanotriton.tasks.pairs import read_pairs
from nanotriton.tasks.prompt import Prompt, build_completion, pair_of, read_prompt
from nanotriton.tasks.task import Task
from nanotriton.tasks.teacher import taught
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig, ModelError
from nanotriton.transformer.tokenizer import Tokenizer
from nanotriton.transformer.weights import save_model

WANTED = "```python block with a ModelNew"  # in an answer
Text = tuple[Prompt, str]  # a prompt and its completion
Pair = tuple[list[int], list[int]]  # ids of a prompt and of its completion, end token included


def main(cfg: Config, world: World, alone: bool = True) -> str:
    """Train, measure on held-out tasks, and return the folder of the model. alone: see Run.finished()."""
    distributed.check_optimizer(cfg.optimizer, world, cfg.lora)
    prompt = read_prompt(cfg.prompt)  # a mistake in what was named comes out before --fresh deletes anything
    if cfg.data:
        read_pairs(cfg.data)
    if cfg.model:
        check_model(cfg.model)
    run = Run(cfg, world, "sft", grows="steps" if cfg.steps else "epochs")
    if run.finished(alone):
        return str(run.folder / "model")
    if not cfg.data:
        run.say(f"{run.folder}: drawing {counted(cfg.examples, 'training pair')}")
    texts, held_texts, dev = data_sets(cfg, prompt)
    source = cfg.model or scratch_model(cfg, run, texts)
    tokenizer = run.tokenizer(source, cfg.template)
    pairs, held = encode_sets(texts, held_texts, cfg, tokenizer, run)
    run.say(f"loading {source}")
    model, _ = distributed.load(source, world, cfg.optimizer, cfg.micro_tokens, rank=cfg.lora, seed=cfg.seed)
    optimizer = distributed.adamw(model, cfg.lr, cfg.weight_decay)
    steps = cfg.steps or math.ceil(cfg.epochs * len(pairs) / cfg.batch)

    start = run.resume(model, optimizer)
    with run.training(model, optimizer):
        for step in range(start, steps):
            if step % cfg.eval_every == 0 and not run.found("eval", step):
                run.evaluated("eval", step, steps, eval_loss=mean_loss(model, held, cfg, world, tokenizer))
            clock = Clock()
            batch = [pairs[i] for i in schedule.indices(step, cfg.batch, len(pairs), cfg.seed)]
            lr = schedule.learning_rate(step, steps, cfg.lr, cfg.warmup, cfg.min_lr)
            distributed.set_lr(optimizer, lr)
            with idle_cores(world):
                loss, norm = sft_step(batch, model, optimizer, cfg, world, tokenizer)
            clock("train")
            numbers = {"loss": loss, "norm": norm, "lr": lr}
            run.step("sft", step + 1, steps, clock.seconds, numbers.keys(), **numbers)
            due = (step + 1) % cfg.save_every == 0 or step + 1 == steps
            run.end_step(step + 1, model, optimizer, due)

    # saved before it is measured: an evaluation that dies costs no training
    run.export(model, tokenizer, source)
    result = run.found("eval", steps)
    if not result:
        result = {"eval_loss": mean_loss(model, held, cfg, world, tokenizer)}
        if dev:
            result |= success(run, cfg, model, tokenizer, dev, steps, prompt)
        run.evaluated("eval", steps, steps, **result)
    run.plot()
    run.summary(steps=steps, **result, seconds=round(run.seconds(), 1), seed=cfg.seed)
    run.say(f"{run.folder} is done in {took(run.seconds())}: its model is {run.folder / 'model'}")
    return str(run.folder / "model")


def sft_step(
    batch: list[Pair], model: Transformer, optimizer, cfg: Config, world: World, tokenizer: Tokenizer
) -> tuple[float, float]:
    """One optimizer step on the pairs of all ranks -> (loss in nats a token, norm before it is clipped)."""
    # counted over every rank and microbatch before the first backward, so that neither changes the gradient
    normalizer = sum(len(completion) for _, completion in batch)
    loss = torch.zeros((), device=world.device)
    for logp in scores(model, world.share(batch), cfg, world, tokenizer):
        part = -logp.sum() / normalizer
        part.backward()
        loss += part.detach()
    norm = distributed.clip_grad_norm(model, cfg.clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return world.all_sum(loss).item(), float(norm)


def scores(
    model: Transformer, pairs: list[Pair], cfg: Config, world: World, tokenizer: Tokenizer
) -> Iterator[Tensor]:
    """Log-probabilities [N] of the completions' tokens, a microbatch at a time.

    Every rank has the same number of microbatches.
    """
    lengths = [len(prompt) + len(completion) for prompt, completion in pairs]
    micro_batches = distributed.balance(lengths, cfg.micro_tokens, world)
    for part in distributed.accumulate(model, micro_batches):
        # a rank with nothing left still takes part: FSDP's collectives need every rank in every pass
        batch = pack([pairs[k] for k in part] or [([0], [0])]).to(world.device)
        logp, _ = score(model, batch, valid_vocab=tokenizer.vocab_size)
        yield logp if part else logp * 0


@torch.no_grad()
def mean_loss(
    model: Transformer, pairs: list[Pair], cfg: Config, world: World, tokenizer: Tokenizer
) -> float:
    """Cross-entropy of the completions, nats a token, over all ranks."""
    total = -sum(logp.sum() for logp in scores(model, world.share(pairs), cfg, world, tokenizer))
    return world.all_sum(total).item() / sum(len(completion) for _, completion in pairs)


def success(
    run: Run,
    cfg: Config,
    model: Transformer,
    tokenizer: Tokenizer,
    tasks: list[Task],
    step: int,
    prompt: Prompt,
) -> dict[str, Any]:
    """Success on held-out tasks, whose kernels are sampled and executed, after so many steps."""
    shared = model if cfg.optimizer == "adam8" else None
    with (
        # closed here, as train_grpo.py, which may have called this, makes a sampler of its own
        make_sampler(model.config, run.world, tokenizer, shared) as sampler,
        make_executor(run.world, cfg.seed) as executor,
    ):
        sync_weights(sampler, model, run.world)
        return heldout(
            run,
            tasks,
            step=step,
            split="dev",
            sampler=sampler,
            executor=executor,
            tokenizer=tokenizer,
            max_tokens=cfg.max_tokens,
            seed=cfg.seed,
            prompt=prompt,
        )


def scratch_model(cfg: Config, run: Run, texts: list[Text]) -> str:
    """Train a tokenizer on `texts`, initialise a small Llama, and leave both as a Hugging Face folder."""
    folder = run.folder / "scratch"
    # a run that goes on has both, and its checkpoints are of them
    if run.main and not (run.folder / "metrics.jsonl").exists():
        run.say(f"training a tokenizer of {cfg.vocab} tokens on them")
        read = [text for prompt, completion in texts for text in (prompt.bare, completion)]
        train_tokenizer(read, cfg.vocab, str(folder))
        tokenizer = Tokenizer(str(folder))
        model = Transformer(
            ModelConfig(
                model_type="llama",
                vocab_size=tokenizer.vocab_size,
                hidden_size=cfg.width,
                intermediate_size=cfg.width * 3,
                num_hidden_layers=cfg.layers,
                num_attention_heads=cfg.width // 32,
                max_position_embeddings=cfg.max_len,
                tie_word_embeddings=True,
                eos_token_ids=tuple(sorted(tokenizer.eos_ids)),
            )
        )
        save_model(model.init_weights(cfg.seed), folder)
    run.world.barrier()
    return str(folder)


def data_sets(cfg: Config, prompt: Prompt) -> tuple[list[Text], list[Text], list[Task]]:
    """(training pairs, held-out pairs, held-out tasks to execute). prompt: how a task is put to the model."""
    if cfg.data:
        pairs = read_pairs(cfg.data, prompt)
        held = max(len(pairs) // 50, 1)
        return pairs[:-held] or pairs, pairs[-held:], []
    train = synthetic.generate("sft", cfg.examples, cfg.seed)
    if cfg.teacher == "habits":
        train = [taught(task) for task in train]
    dev = synthetic.generate("dev", max(cfg.eval_tasks, 64), cfg.seed)
    return texts_of(train, prompt), texts_of(dev, prompt), dev[: cfg.eval_tasks]


def texts_of(tasks: list[Task], prompt: Prompt) -> list[Text]:
    """Each task as it is asked, and its solution as it is answered."""
    return [(prompt.of(task.source), build_completion(task)) for task in tasks]


def encode_sets(
    texts: list[Text], held_texts: list[Text], cfg: Config, tokenizer: Tokenizer, run: Run
) -> tuple[list[Pair], list[Pair]]:
    """(pairs to train on, held-out pairs), none of them too long. If all held-out ones are, a training pair
    is held out instead.
    """
    pairs, held = encode(texts, cfg, tokenizer, run), encode(held_texts, cfg, tokenizer)
    return (pairs, held) if held else (pairs[:-1] or pairs, pairs[-1:])


def encode(texts: list[Text], cfg: Config, tokenizer: Tokenizer, run: Run | None = None) -> list[Pair]:
    """Texts -> ids; a completion ends with the token that ends an answer.

    Pairs longer than --max-len are left out. run: of the pairs to train on, which it counts.
    """
    end = tokenizer.end_id
    pairs = []
    for number, (prompt, completion) in enumerate(texts, 1):
        try:
            asked, answer = pair_of(prompt, completion, tokenizer)
            pairs.append((asked, [*answer, end]))
        except ModelError as error:  # the roles of its messages, say, which the template does not take
            raise config.ConfigError(f"pair {number}: {error}") from None
    kept = [(p, c) for p, c in pairs if len(p) + len(c) <= cfg.max_len]
    if run and not kept:
        raise config.ConfigError(f"--max-len {cfg.max_len}: all of {counted(len(pairs), 'pair')} too long")
    if run:
        if not any(extract_candidate(completion) for _, completion in texts):
            run.say(
                f"note: no completion of {cfg.data} has a {WANTED}: GRPO and benchmarks find no kernel then"
            )
        prompt, completion = (sum(map(len, side)) / len(kept) for side in zip(*kept))  # mean tokens
        long = len(pairs) - len(kept)
        run.say(
            f"{counted(len(kept), 'pair')}: on average a prompt has {prompt:.0f} tokens and a completion "
            f"{completion:.0f}" + (f"; {long} longer than --max-len are left out" if long else "")
        )
    return kept


# ---- for train_grpo.py, where there is no --model


def small_model(grpo: Any, world: World) -> str:
    """Make the model that a GRPO run starts from, or find it made -> its folder. grpo: train_grpo.Config."""
    try:
        return main(small_config(grpo), world, alone=False)
    except config.ConfigError as error:
        told = str(error)
        for option in ("steps", "examples", "teacher"):
            told = told.replace(f"--{option}", f"--sft-{option}")
        raise config.ConfigError(told) from None


def small_config(grpo: Any) -> Config:
    """The SFT run inside a GRPO run's folder, out/NAME/sft. It measures on no more tasks than that run."""
    return Config(
        name="sft",
        out=str(Path(grpo.out) / grpo.name),
        seed=grpo.seed,
        steps=grpo.small.sft_steps,
        examples=grpo.small.sft_examples,
        teacher=grpo.small.sft_teacher,
        eval_tasks=min(grpo.trace.eval_tasks, Config.eval_tasks),
        max_tokens=min(grpo.max_tokens, Config.max_tokens),
        prompt=grpo.prompt,
        tensorboard=grpo.trace.tensorboard,
        wandb=grpo.trace.wandb,
    )


if __name__ == "__main__":
    program(main, options)
