"""One GRPO step beside one of TRL's GRPOTrainer, in one process: samples a second and peak memory.

    python -m bench.speed.grpo_step --out results/grpo_step.json
    python -m bench.speed.grpo_step --engines trl ours
    python -m bench.speed.grpo_step --shape tiny --prompts 2 --prompt 8 --tokens 8 --micro 4

Both have random weights of one shape, the same prompts, 8 samples of each, all as long as they may be, and
one optimizer step on all samples. "ahead" is ours with --ahead, which samples the next step's prompts while
this step's samples are judged. All are judged by our executor, on the same candidates: those of
bench.speed.stand_ins, as random weights write none. So a step is: sample, judge, forward, backward, update.

TRL samples with transformers' continuous batching (--rollouts generate: with its plain generate), and trains
bf16 weights, as it casts them for that. Ours are fp32 masters, with a bf16 copy to sample from. --micro says
how many samples one forward and backward of TRL has; ours has as many tokens. TRL's default recomputes
activations (--trl-recompute); with a 0.6B there is no need.

Peak memory is of the whole card, the executor's processes included, looked at every 20 ms. On a CPU it is of
this process alone. TRL is not among the requirements: pip install trl
"""

import functools
import gc
import itertools
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from bench.results import command, environment, write_json
from bench.speed import training
from bench.speed.stand_ins import GROUP, StandInExecutor, StandInTokenizer, tasks_and_pairs
from bench.speed.training import MODELS
from nanotriton import config
from nanotriton.parallel import distributed
from nanotriton.parallel.program import program
from nanotriton.parallel.world import World
from nanotriton.reward.reward import reward
from nanotriton.runs.run import make_executor
from nanotriton.tasks.task import Task
from nanotriton.transformer.model_config import ModelConfig

CPU_CACHE = {"num_blocks": 64, "max_batch_tokens": 256}
LOOK = 0.02  # seconds between two looks at the memory


@dataclass
class Config:
    # in this order
    engines: list[Literal["ours", "ahead", "trl"]] = field(default_factory=lambda: ["ours", "ahead", "trl"])
    shape: Literal["tiny", "0.6b"] = "0.6b"  # Qwen3's, or one for a CPU
    prompts: Annotated[int, ">= 1"] = 64  # a step; 8 samples of each
    prompt: Annotated[int, ">= 1"] = 512  # tokens of a prompt
    tokens: Annotated[int, ">= 1"] = 512  # tokens of a sample
    micro: Annotated[int, ">= 1"] = 16  # samples of one forward and backward
    rollouts: Literal["continuous", "generate"] = "continuous"  # how TRL samples
    trl_recompute: bool = False  # TRL's gradient checkpointing, its own default
    warmup: Annotated[int, ">= 1"] = 1  # steps that are not timed
    steps: Annotated[int, ">= 1"] = 2  # steps that are
    out: str = ""  # a JSON file to write

    @property
    def samples(self) -> int:
        """Of a step."""
        return self.prompts * GROUP

    def validate(self) -> None:
        if self.samples % self.micro:
            raise config.ConfigError(
                f"--micro {self.micro}: a divisor of the {self.samples} samples is expected"
            )


# ---- what is measured ----


def in_use(world: World) -> int:
    """Bytes in use now: of the card, or of this process."""
    if world.device.type == "cuda":
        free, total = torch.cuda.mem_get_info()
        return total - free
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


class Peak(threading.Thread):
    """The most bytes that were in use since the last `reset`."""

    def __init__(self, world: World):
        super().__init__(daemon=True)
        self.world = world
        self.bytes = 0
        self.over = threading.Event()

    def reset(self) -> None:
        self.bytes = in_use(self.world)

    def run(self) -> None:
        while not self.over.wait(LOOK):
            self.bytes = max(self.bytes, in_use(self.world))

    def __enter__(self) -> "Peak":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.join()


class Steps:
    """The seconds of each step, and the peak of the timed ones."""

    def __init__(self, engine: str, cfg: Config, world: World, peak: Peak):
        self.engine, self.cfg, self.peak = engine, cfg, peak
        self.wait = torch.cuda.synchronize if world.device.type == "cuda" else lambda: None
        self.seconds: list[float] = []

    def begin(self) -> None:
        self.wait()
        if len(self.seconds) == self.cfg.warmup:
            self.peak.reset()
        self.start = time.perf_counter()

    def end(self) -> None:
        self.wait()
        self.seconds.append(time.perf_counter() - self.start)
        many = self.cfg.warmup + self.cfg.steps
        print(f"{self.engine}: step {len(self.seconds)}/{many} {self.seconds[-1]:.1f} s", flush=True)

    def row(self) -> dict[str, Any]:
        timed = self.seconds[self.cfg.warmup :]
        step = sum(timed) / len(timed)
        return {
            "first_step_s": self.seconds[0],
            "step_s": step,
            "samples_s": self.cfg.samples / step,
            "tokens_s": self.cfg.samples * self.cfg.tokens / step,
            "peak_gb": self.peak.bytes / 1e9,
        }


# ---- ours ----


def ours(cfg: Config, world: World, peak: Peak, ahead: bool = False) -> dict[str, Any]:
    """Steps of train_grpo.grpo_step. ahead: each step samples for the next one, the last too."""
    import train_grpo

    settings = training.Config(
        what="grpo",
        shape=cfg.shape,
        samples=cfg.samples,
        tokens=cfg.tokens,
        prompt=cfg.prompt,
        micro_tokens=max(64, cfg.micro * (cfg.prompt + cfg.tokens)),
        warmup=cfg.warmup,
        steps=cfg.steps + ahead,
    )
    model = training.make_model(settings, world, "adamw", settings.micro_tokens, copies=1)
    optimizer = distributed.adamw(model, 1e-6)
    steps = Steps("ahead" if ahead else "ours", cfg, world, peak)
    parts: dict[str, float] = {}
    with make_executor(world, 0) as executor:
        trainer = training.grpo_parts(settings, world, model, optimizer, executor, False, ahead=ahead)
        with trainer.sampler:
            for step in range(cfg.warmup + cfg.steps):
                steps.begin()
                done = train_grpo.grpo_step(step, trainer)
                steps.end()
                if step >= cfg.warmup:
                    for name, seconds in done.clock.seconds.items():
                        parts[f"{name}_s"] = parts.get(f"{name}_s", 0.0) + seconds / cfg.steps
    return {"weights": "fp32 masters" if world.device.type == "cuda" else "fp32"} | steps.row() | parts


# ---- TRL ----


def words(vocab_size: int) -> Any:
    """transformers' tokenizer whose token i is the word w<i>."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(WordLevel({f"w{i}": i for i in range(vocab_size)}, unk_token="w0"))
    made.pre_tokenizer = WhitespaceSplit()
    ends = {"eos_token": f"w{vocab_size - 1}", "pad_token": f"w{vocab_size - 2}"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **ends)


@torch.no_grad()
def transformers_model(cfg: Config, world: World) -> torch.nn.Module:
    """transformers' model of the shape, with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = ModelConfig(**MODELS[cfg.shape]).to_hf(world.dtype)
    with torch.device(world.device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**raw), dtype=world.dtype)
    for parameter in model.parameters():
        parameter.normal_(0.0, 0.02) if parameter.ndim == 2 else parameter.fill_(1.0)
    return model


def judged(judge: StandInExecutor, tasks: dict[str, Task]) -> Callable[..., list[float | None]]:
    """TRL's reward function: the executor's verdict on what stands for each sample."""
    batches = itertools.count()

    def verdicts(completions: list, task: list[str], **columns: Any) -> list[float | None]:
        # as nanotriton.reward.adapters does it
        torch.cuda.empty_cache()
        draw = f"batch {next(batches)}"
        futures = [judge.submit(tasks[name], "", draw) for name in task]
        return [reward(future.result()) for future in futures]

    return verdicts


def trl(cfg: Config, world: World, peak: Peak) -> dict[str, Any]:
    """Steps of TRL's GRPOTrainer."""
    import pyarrow
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    cuda = world.device.type == "cuda"
    many = cfg.warmup + cfg.steps
    tasks, pairs = tasks_and_pairs(many, cfg.prompts, "gpu" if cuda else "cpu")
    vocab_size = MODELS[cfg.shape]["vocab_size"]
    tokenizer = StandInTokenizer(vocab_size, cfg.prompt)  # the prompts of ours
    rows = [
        {"prompt": " ".join(f"w{i}" for i in tokenizer.encode(task.source)), "task": task.name}
        for task in tasks
    ]
    steps = Steps("trl", cfg, world, peak)

    class Timed(TrainerCallback):
        def on_step_begin(self, *_, **__) -> None:
            steps.begin()

        def on_step_end(self, *_, **__) -> None:
            steps.end()

    with make_executor(world, 0) as executor, tempfile.TemporaryDirectory() as scratch:
        arguments = GRPOConfig(
            output_dir=scratch,
            per_device_train_batch_size=cfg.micro,
            gradient_accumulation_steps=cfg.samples // cfg.micro,
            num_generations=GROUP,
            max_completion_length=cfg.tokens,
            generation_kwargs={"eos_token_id": -1, "max_new_tokens": cfg.tokens},  # none ends early
            use_transformers_continuous_batching=cfg.rollouts == "continuous",
            # TRL's choice is made for a GPU; on a CPU it would take gigabytes
            transformers_continuous_batching_config=None if cuda else CPU_CACHE,
            gradient_checkpointing=cfg.trl_recompute,
            max_steps=many,
            shuffle_dataset=False,
            learning_rate=1e-6,
            beta=0.0,
            bf16=cuda,
            use_cpu=not cuda,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            transformers_model(cfg, world),
            reward_funcs=judged(StandInExecutor(executor, pairs), {task.name: task for task in tasks}),
            args=arguments,
            train_dataset=Dataset(pyarrow.Table.from_pylist(rows), fingerprint="prompts"),
            processing_class=words(vocab_size),
            callbacks=[Timed()],
        )
        trainer.train()
    about = {"weights": "bf16" if cuda else "fp32", "rollouts": cfg.rollouts, "recompute": cfg.trl_recompute}
    return about | {name: version(name) for name in ("trl", "transformers")} | steps.row()


def main(cfg: Config, world: World) -> dict[str, Any]:
    if world.world_size > 1:
        raise config.ConfigError("bench.speed.grpo_step is for one process")
    rows = []
    with Peak(world) as peak:
        for engine in cfg.engines:
            measure = {"ours": ours, "ahead": functools.partial(ours, ahead=True), "trl": trl}[engine]
            row = {"engine": engine} | measure(cfg, world, peak)
            row = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
            rows.append(row)
            print(row, flush=True)
            gc.collect()  # the trainers' objects refer to each other
            if world.device.type == "cuda":
                torch.cuda.empty_cache()
    work = {k: getattr(cfg, k) for k in ("shape", "prompts", "prompt", "tokens", "micro")}
    report = environment() | {
        "command": command("bench.speed.grpo_step"),
        **work,
        "group": GROUP,
        "rows": rows,
    }
    if cfg.out:
        write_json(cfg.out, report)
    return report


if __name__ == "__main__":
    program(main, config.parse(Config))
