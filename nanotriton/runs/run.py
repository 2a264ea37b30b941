"""What both training scripts work with: a run's folder, its clock, its executor and its sampler."""

import contextlib
import fcntl
import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import IO, Any

import torch
from tqdm import tqdm

from nanotriton import config
from nanotriton.executor.executor import Executor
from nanotriton.log import FILES, Log, counted, duration
from nanotriton.parallel import distributed, stop
from nanotriton.parallel.checkpoint import Checkpointer
from nanotriton.parallel.world import World
from nanotriton.runs import provenance
from nanotriton.runs.advice import Advice
from nanotriton.runs.pace import Pace
from nanotriton.runs.resume import check_kind, check_settings, read_settings
from nanotriton.sampler.sampler import Sampler
from nanotriton.trackers import check_packages, open_trackers
from nanotriton.transformer import lora
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig
from nanotriton.transformer.tokenizer import Tokenizer
from nanotriton.transformer.weights import WeightFiles, find_folder, load_config, save_model


class Clock:
    """Seconds by part: clock("sample") adds the time since the last call to that part.

    On a GPU it waits for the kernels first.
    """

    def __init__(self, device: torch.device | None = None):
        self.seconds: dict[str, float] = {}
        self.wait = torch.cuda.synchronize if device is not None and device.type == "cuda" else lambda: None
        self.wait()
        self.last = time.perf_counter()

    def __call__(self, part: str) -> None:
        self.wait()
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self.last
        self.last = now


class Run(Log):
    """A run's folder: its config, files and checkpoints. The same command on the same folder continues it."""

    grown = False  # it ended before, and is now to go on for longer

    def __init__(self, cfg: Any, world: World, stage: str, grows: str = "steps"):
        """Take the folder, and find out whether a run in it is continued.

        stage: the name of its rows in metrics.jsonl. grows: the option that may be larger when a run is
        continued. ConfigError if the folder can't be this run's.
        """
        folder = Path(cfg.out) / cfg.name
        path = folder / "config.json"
        settings = {k: v for k, v in config.flat(cfg).items() if k not in ("name", "out", "fresh")}
        check_packages(settings)
        was = read_settings(path)
        began = (was or {}).pop("began", None)
        otherwise = self.way_out(folder, cfg, was)
        self.settings, self.grows, self.otherwise = settings, grows, otherwise
        world.barrier()  # every rank has looked
        self.agree(world, lambda: self.take(folder, cfg))
        super().__init__(folder, world.is_main)
        # without metrics, or before a first step, nothing was learned yet: a mistake may have been mended
        self.continued = path.exists() and (folder / "metrics.jsonl").exists()
        self.world, self.stage = world, stage
        if self.continued:
            self.check_continued(cfg, was)
        if not self.continued:
            began = None
        began = world.gather(began or datetime.now().isoformat(timespec="seconds"))[0]
        self.began = datetime.fromisoformat(began)  # when the run was started first
        world.barrier()
        if world.is_main:
            self.keep_start(cfg, began)
        self.checkpoints = Checkpointer(folder / "checkpoints", world, keep=2)
        self.spent, self.started = 0.0, time.perf_counter()
        self.done = self.saved = 0  # steps
        self.mark: dict[str, int] = {}  # sizes of the files after the last step
        self.pace = Pace(settings["eval_every"], settings.get("minutes", 0.0))
        self.advice = Advice()

    def check_continued(self, cfg: Any, was: dict) -> None:
        """ConfigError where the run in the folder, whose settings `was` has, can't go on as `cfg` says.

        One that has done no step starts over instead.
        """
        check_kind(self.folder, was, self.settings, self.otherwise)
        try:
            self.grown = check_settings(
                self.folder, was, self.settings, type(cfg), self.grows, self.otherwise
            )
            self.agree(self.world, lambda: provenance.check_inputs(self.folder, cfg, self.otherwise))
        except config.ConfigError:
            if self.world.gather(has_steps(self.folder, self.stage))[0]:
                raise
            self.start_over()

    def keep_start(self, cfg: Any, began: str) -> None:
        """Write down, on the main rank, what runs here: settings, inputs, versions. began: its first time."""
        if not self.continued:
            provenance.keep_inputs(self.folder, cfg)
        if note := provenance.keep_start(self.folder, self.world.world_size):
            self.say(note)
        if self.grown:
            (self.folder / "summary.json").unlink(missing_ok=True)
        kept = self.settings | {"began": began}
        # not self.say: a run that holds itself would hold its lock when nobody uses it any more
        self.trackers = open_trackers(self.folder, kept, tqdm.write)
        (self.folder / "config.json").write_text(json.dumps(kept, indent=2) + "\n")

    def start_over(self) -> None:
        """Forget what was measured before a first step: nothing was learned with the options of then."""
        self.continued = False
        self.say(f"{self.folder}: no step was done yet, so it begins anew with what is asked for now")
        for name in (*FILES, "tasks.jsonl"):
            if self.main:
                (self.folder / name).unlink(missing_ok=True)

    @staticmethod
    def way_out(folder: Path, cfg: Any, was: dict | None) -> str:
        """What a user can do who can't continue the run in this folder, whose settings `was` has.

        ConfigError for a --name that is none, and where a file that isn't the run's, or that an option names,
        would be deleted or written over.
        """
        if cfg.name in ("", ".", "..") or Path(cfg.name).name != cfg.name:
            raise config.ConfigError(f"--name {cfg.name!r}: the name of a folder under --out is expected")
        if cfg.fresh and folder.is_dir() and any(folder.iterdir()) and "save_every" not in (was or {}):
            raise config.ConfigError(
                f"--fresh: {folder} holds no run of this script, so it isn't deleted; "
                "give another --name or --out"
            )
        inside = provenance.read_from(folder, cfg)
        if inside and cfg.fresh:
            raise config.ConfigError(f"--fresh would delete {inside[0]}: give another --name")
        for option in inside:
            if option.startswith("--model "):
                raise config.ConfigError(
                    f"{option} lies in {folder}, where this run would write its own: give another --name"
                )
        return "another --name" if inside else "another --name, or --fresh"

    @staticmethod
    def agree(world: World, look: Callable[[], str]) -> None:
        """ConfigError on every rank if the main one, which alone looks, finds an obstacle."""
        if trouble := world.gather(look() if world.is_main else "")[0]:
            raise config.ConfigError(trouble)

    def take(self, folder: Path, cfg: Any) -> str:
        """Make the folder, be the only process that writes there, and with --fresh empty it.

        Returns a line about the obstacle, or "".
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.lock = lock(folder / ".lock")
            if cfg.fresh:
                clear(folder)
        except BlockingIOError:
            return f"{folder} belongs to a run that is still going: wait for its end, or give another --name"
        except OSError as error:
            return f"--out {cfg.out}: cannot write in {folder}: {config.reason(error)}"
        return ""

    def tokenizer(self, folder: str, template: str) -> Tokenizer:
        """The tokenizer of a model. `template`: --template, variables for its chat template in JSON.

        A template that prints the date is told the one on which the run began, so that a run that is stopped
        and continued on another day has the same prompts.
        """
        tokenizer = Tokenizer(folder, self.began, config.json_object("--template", template))
        if not tokenizer.has_chat_template and not tokenizer.reads_source:
            self.say(
                f"warning: {folder} has no chat template: prompts are the bare instruction, without roles; "
                "an instruct model with its template answers better"
            )
        return tokenizer

    def finished(self, alone: bool = True) -> bool:
        """Whether this run ended before: its summary is there. Says so, and what would continue it.

        alone: it is no part of another run, whose options would mean something else.
        """
        path = self.folder / "summary.json"
        if not path.exists():
            return False
        done = json.loads(path.read_text())["steps"]
        model = self.folder / "model"
        line = f"{self.folder} is finished after {counted(done, 'step')}: its model is {model}"
        if alone:
            out_of_time = self.settings.get("minutes") and done < self.settings["steps"]
            longer = "minutes" if out_of_time else self.grows
            line += f", {path.name} has its numbers; a larger --{longer} continues it; "
            line += f"for a new run give {self.otherwise}"
        self.say(line)
        return True

    def resume(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Load the newest checkpoint, if there is one, and cut the files back to it -> the finished steps."""
        found = self.checkpoints.load_latest(model, optimizer)
        step, state = found if found else (0, {"position": {}, "seconds": 0.0})
        self.measured = self.world.gather(self.rewind(state["position"], step))[0]
        self.spent, self.started = state["seconds"], time.perf_counter()
        self.done = self.saved = step
        self.pace.start()
        self.mark = self.position()
        if step:
            self.say(f"continuing {self.folder} after step {step}")
        else:
            self.say(f"{self.folder}: it begins; interrupted, the same command continues it")
        return step

    def found(self, kind: str, step: int) -> dict[str, Any]:
        """The numbers of a measurement (see evaluated) that a stopped run made where it continues, or {}."""
        if (self.measured.get("stage"), self.measured.get("step")) != (f"{self.stage}/{kind}", step):
            return {}
        return {k: v for k, v in self.measured.items() if k not in ("stage", "step", "seconds")}

    def seconds(self) -> float:
        """Wall time of this stage, over all the times it was started."""
        return self.spent + time.perf_counter() - self.started

    def over(self, minutes: float) -> bool:
        """Whether so many minutes are over, the same on every rank; never, if there is no limit (0)."""
        return bool(minutes) and self.world.gather(self.seconds() >= 60 * minutes)[0]

    def save(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write a checkpoint of the last step.

        On a GPU a thread does so while the run goes on; step() then makes it the newest.
        """
        state = {"position": self.mark, "seconds": self.seconds()}
        background = self.world.device.type == "cuda"
        self.checkpoints.save(self.done, model, optimizer, state, background=background)
        self.saved = self.done

    @contextlib.contextmanager
    def training(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Around the steps: SIGINT and SIGTERM end them with a checkpoint of the last that was finished."""
        try:
            with stop.deferred():
                yield
        except stop.Interrupted as signal:
            if self.done > self.saved:
                self.save(model, optimizer)
            self.checkpoints.finish()
            kept = f"step {self.done} is saved" if self.done else "no step was finished"
            self.say(f"{self.folder}: ended by {signal}, {kept}; the same command continues")
            signal.told = True
            raise

    def end_step(
        self, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, due: bool
    ) -> None:
        """So many steps are done, and reported. due: it is time for a checkpoint.

        Raises Interrupted on every rank if a signal came to one.
        """
        self.done, self.mark = step, self.position()
        if due:
            self.save(model, optimizer)
        stop.check(self.world)

    def step(self, stage: str, step: int, of: int, *args: Any, note: str = "", **numbers: Any) -> None:
        """A step, or a measurement; the console also tells how long the steps that are left will take."""
        if stage == self.stage:
            self.pace.step()
            note = f"eta {duration(self.pace.left(step, of, self.seconds()))}  {note}".rstrip()
        else:
            self.pace.measured()
        super().step(stage, step, of, *args, note=note, **numbers)
        self.checkpoints.finish(wait=False)

    def samples(self, rows: Iterable[dict]) -> None:
        """The rows of every rank, rank by rank, to samples.jsonl. All ranks call it together."""
        super().samples(chain(*self.world.to_main(list(rows))))

    def evaluated(self, kind: str, step: int, of: int, **numbers: Any) -> None:
        """A held-out measurement ("eval" on the dev set, "test") after `step` steps."""
        shown = [name for name, value in numbers.items() if isinstance(value, float)]
        self.step(f"{self.stage}/{kind}", step, of, {}, shown, **numbers)

    def export(self, model: Transformer, tokenizer: Tokenizer, base: str) -> None:
        """Write model/, a Hugging Face folder, when the last checkpoint is on the disk.

        If adapters were trained, adapter/ has them alone. base: the folder or hub id that the run began from.
        """
        self.checkpoints.finish()
        # Whoever samples from the folder must stop where the model was taught to end.
        known = model.config.eos_token_ids
        model.config.eos_token_ids = (*known, *sorted(tokenizer.eos_ids - set(known)))
        save_model(model, self.folder / "model", tokenizer.files)
        if lora.adapted(model):
            lora.save_adapter(model, self.folder / "adapter", base, self.world.is_main)


def lock(path: Path) -> IO:
    """Hold this file until the process ends, in whatever way; BlockingIOError if another process holds it.

    A disk that knows no locks keeps nobody out.
    """
    file = open(path, "a")  # noqa: SIM115
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # another one comes from a disk that knows no locks
        if isinstance(error, BlockingIOError):
            raise
    return file


def has_steps(folder: Path, stage: str) -> bool:
    """Whether a run has trained: a checkpoint, a summary or a row of this stage in metrics.jsonl is there."""
    if (folder / "summary.json").exists() or any((folder / "checkpoints").glob("step-*")):
        return True
    try:
        rows = [json.loads(line) for line in Log(folder, main=False).lines("metrics.jsonl", 0)]
    except ValueError:
        return True  # nobody knows what it was
    return any(row.get("stage") == stage for row in rows)


def clear(folder: Path) -> None:
    """Delete all but the lock."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()


def check_model(name: str) -> None:
    """ModelError where --model can't be used. Call it before --fresh deletes anything."""
    load_config(name)
    Tokenizer(name)
    WeightFiles(find_folder(name))


def check_timed(world: World, mode: str, flag: str) -> None:
    """ConfigError where candidates can't be timed, as a flag asks. Call it before anything else is done."""
    if world.device.type != "cuda" or mode != "replay":
        raise config.ConfigError(f"{flag} needs a GPU and --mode replay: nowhere else are candidates timed")


def make_executor(
    world: World,
    seed: int,
    mode: str = "replay",
    policy: str = "strict",
    timeout: float = 10.0,
    timed: bool = False,
) -> Executor:
    """One executor a rank, with its share of the cores: rewards scale with the ranks and no server is needed.

    Its draws follow the seed, so that runs repeat. timed: correct candidates and their references are timed
    too (see check_timed).
    """
    return Executor(
        device=str(world.device),
        mode=mode,
        policy=policy,
        timeout=timeout,
        time=timed,
        seed=seed,
    )


def make_sampler(
    model_config: ModelConfig,
    world: World,
    tokenizer: Tokenizer,
    shared: Transformer | None = None,
    later: int = 0,
    kv_gib: float = 0.0,
) -> Sampler:
    """A sampler with weights of its own: CUDA graphs need fixed addresses, and FSDP moves parameters.

    `shared` is a model that stays where it is (adam8's): the sampler then reads the very parameters that are
    trained. Otherwise its weights come with sync_weights(). `later`: bytes of the GPU that training will take
    and keep (distributed.moments_to_come). The KV memory is `kv_gib` GiB; at 0, 70% of the free bytes without
    those: the rest is for the executor's processes and the graphs.
    """
    if shared is None:
        with torch.device("meta"):
            shared = Transformer(model_config, world.dtype).to(world.dtype).requires_grad_(False)
        shared.to_empty(device=world.device)
    if kv_gib:
        return Sampler(shared, valid_vocab=tokenizer.vocab_size, kv_gib=kv_gib)
    fraction = None
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info(world.device)[0]
        fraction = 0.7 * max(1 - later / free, 0.0)
    return Sampler(shared, valid_vocab=tokenizer.vocab_size, kv_fraction=fraction)


def sync_weights(sampler: Sampler, model: Transformer, world: World) -> None:
    """Copy the trained weights, gathered and cast, to the sampler, unless it shares them.

    Keys and values of the old weights are gone already: no page of the cache outlives a rollout.
    """
    if sampler.model is not model:
        sampler.update_weights(distributed.full_params(model, world.dtype))
