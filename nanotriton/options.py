"""The options of train_grpo.py that a first reader can leave alone.

They are those of the loss, the judge, the reward and the measurements.

Each class is a group of flags: train_grpo.Config has one field for it, config.py makes a flag of every field
in it, and the code that reads it takes the whole object. The classes live apart from that code because a
command line is answered before torch is imported, and the code imports torch.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from nanotriton.config import ConfigError, Options


@dataclass
class LossOptions(Options):
    """The loss (nanotriton/grpo.py)"""

    # the ratio is clipped to [1 - low, 1 + high]; none: the bounds of the loss's own paper
    clip_low: Annotated[float | None, "> 0"] = None
    # dapo: 0.2 and 0.28 (clip-higher), grpo and dr_grpo: 0.2, cispo: 1 and 4, gspo: 3e-4 and 4e-4
    clip_high: Annotated[float | None, "> 0"] = None
    # at a negative advantage the loss is at most this times it (PPO's dual clip); none: no such bound
    dual_clip: Annotated[float | None, "> 1"] = None
    # sampler against trainer: the clip corrects, or importance weights do
    mismatch: Literal["bypass", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = (
        "bypass"
    )
    # bounds of those weights: beyond them a weight is truncated, or its token or sequence is masked
    mismatch_low: Annotated[float, ">= 0"] = 0.0
    mismatch_high: Annotated[float, "> 0"] = 2.0  # the upper one
    # weight of the KL term to the model at the start; with --model 0
    kl: Annotated[float, ">= 0"] = 0.1
    # estimator of that term: GRPO's k3, k3 times the live ratio (DeepSeek-V3.2), or k2
    kl_estimator: Literal["k2", "k3", "k3_ratio"] = "k3_ratio"
    entropy_bonus: Annotated[float, ">= 0"] = 0.0  # weight of the entropy, which is then made larger

    def validate(self, loss: str) -> None:
        """ConfigError for options that don't go together."""
        if self.mismatch_low > self.mismatch_high:
            raise ConfigError(
                f"--mismatch-low {self.mismatch_low}: over --mismatch-high {self.mismatch_high}"
            )
        if self.dual_clip is not None and loss == "cispo":
            raise ConfigError("--dual-clip: not with --loss cispo, whose ratio is bounded anyway")

    def ignored(self) -> dict[str, str]:
        """{an option that does nothing beside these: why}"""
        found = {}
        if self.mismatch == "bypass":
            found |= dict.fromkeys(("mismatch_low", "mismatch_high"), "with --mismatch bypass")
        if not self.kl:
            found["kl_estimator"] = "with --kl 0"
        return found


@dataclass
class SmallModelOptions(Options):
    """The small model that train_sft.py makes when there is no --model"""

    sft_steps: Annotated[int, ">= 1"] = 1600  # optimizer steps of its training (train_sft.py's --steps)
    sft_examples: Annotated[int, ">= 1"] = 12000  # pairs that it trains on (train_sft.py's --examples)
    # who wrote them (train_sft.py's --teacher): one that is often wrong leaves GRPO something to mend
    sft_teacher: Literal["exact", "habits"] = "habits"


@dataclass
class JudgeOptions(Options):
    """The judge (nanotriton/executor/)"""

    policy: Literal["strict", "kernelbench", "autotriton", "none"] = "strict"  # what counts as Triton
    mode: Literal["replay", "process"] = "replay"  # how candidates are run
    timeout: Annotated[float, "> 0"] = 10.0  # seconds a candidate may take at each stage
    # time correct candidates, for a --reward that reads verdict.speedup (replay on a GPU); --speed implies it
    time: bool = False


@dataclass
class RewardOptions(Options):
    """The reward (nanotriton/reward/reward.py)"""

    # a Python file with reward(verdict, completion, task) (docs/rewards.md); empty: 1 for a candidate that is
    # Triton and correct, and the next two options
    reward: str = ""
    # credit of a candidate that fails in its values only; one that fails earlier gets less
    partial: Annotated[float, ">= 0", "< 1"] = 0.0
    # bonus of a correct candidate that is 4 times as fast as PyTorch, by the logarithm down to none at a
    # sixteenth of its speed; over 0: candidates are timed (replay on a GPU)
    speed: Annotated[float, ">= 0"] = 0.0
    # a control: rewards are permuted within the batch, and success must not rise
    shuffle_rewards: bool = False

    def validate(self) -> None:
        """ConfigError for options that don't go together."""
        if self.reward and self.partial:
            raise ConfigError("--partial: not with --reward, whose file decides what is paid")
        if self.reward and self.speed:
            raise ConfigError(
                "--speed: not with --reward, whose file decides what is paid; "
                "--time has candidates timed for it"
            )


@dataclass
class TraceOptions(Options):
    """Measurements and checkpoints"""

    # judge every task of --tasks and --heldout with its own Model first, and leave out those that can't be
    # judged; without it they are found out when they are sampled
    preflight: bool = True
    # a folder of tasks for the held-out measurements; empty: synthetic ones, and none with --tasks
    heldout: str = ""
    # held-out test tasks before and after (2 samples each, and a greedy one)
    eval_tasks: Annotated[int, ">= 0"] = 256
    eval_every: Annotated[int, ">= 1"] = 40  # steps between measurements on the dev set
    save_every: Annotated[int, ">= 1"] = 1  # steps between checkpoints; with --model 10
    tensorboard: bool = False  # also write TensorBoard's events into the run's folder
    wandb: str = ""  # a project of Weights & Biases to log to as well; WANDB_MODE=offline needs no account
