"""A Triton kernel for a PyTorch module: a model writes candidates, the executor judges, the best is kept.

    python sample.py MODULE.py --model FOLDER_OR_HUB_ID
    python sample.py MODULE.py --endpoint http://localhost:8000/v1 --n 16 --rounds 4 --device cuda

MODULE.py defines an nn.Module, and get_inputs() or example_inputs for its forward (docs/sample.md). It is
your code and is run. --n answers are asked for; each wrong one goes back with what the executor said of it,
--rounds times in all. A table says of each answer what is wrong with it. The best right candidate, by
measured time where there is a GPU, is judged once more on other inputs and written to --out, ready to import.

Exit status: 0 a verified kernel is written; 1 none was found; 2 a mistake of the user's.
"""

import nanotriton  # first, because it says what is supported where something is missing  # noqa: F401

# isort: split

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from nanotriton import config
from nanotriton.parallel import stop


@dataclass
class Config:
    file: str = ""  # the module's file; as the first word it needs no flag
    module: str = ""  # its class; empty: Model, or else the one that no other class of the file uses
    model: str = ""  # Hugging Face folder or hub id of the model that writes
    template: str = ""  # variables for its chat template, in JSON: '{"enable_thinking": false}'
    endpoint: str = ""  # or the base URL of a chat-completions server
    served_model: str = ""  # the model's name there; empty: the first that the server lists
    key_env: str = "OPENAI_API_KEY"  # the environment variable that holds the server's key
    prompt: str = ""  # a prompt of your own in a file, as in training; empty: the one of training
    n: Annotated[int, ">= 1"] = 8  # answers a round
    rounds: Annotated[int, ">= 1"] = 3  # times that all are asked, at most
    temperature: Annotated[float, ">= 0"] = 1.0  # of the answers
    max_tokens: Annotated[int, ">= 1"] = 4096  # longest answer
    seed: Annotated[int, ">= 0"] = 0  # of the answers
    out: str = "best.py"  # where the kernel goes
    device: Literal["cpu", "cuda"] = "cpu"  # where candidates run, and --model; nothing is timed on a CPU
    timeout: Annotated[float, "> 0"] = 10.0  # seconds a candidate may take at each stage

    def validate(self) -> None:
        """ConfigError for options that don't go together."""
        if not self.file:
            raise config.ConfigError("no module is given: python sample.py MODULE.py --model FOLDER")
        if bool(self.model) == bool(self.endpoint):
            raise config.ConfigError("give one of --model FOLDER and --endpoint URL")
        if not self.out.endswith(".py"):
            raise config.ConfigError(f"--out {self.out}: a name that ends in .py is expected")
        if Path(self.out).resolve() == Path(self.file).resolve():
            raise config.ConfigError(f"--out {self.out}: that is the module's own file")
        config.json_object("--template", self.template)
        config.writable(self.out)

    def ignored(self) -> dict[str, str]:
        """{an option that does nothing beside these: why}"""
        return dict.fromkeys(("served_model", "key_env"), "without --endpoint") if self.model else {}


if __name__ == "__main__":
    # before torch is imported, which takes seconds: --help, a mistake and Ctrl-C are answered at once
    stop.leave_at_once()
    words = sys.argv[1:]
    if words and not words[0].startswith("-"):
        words = ["--file", *words]
    options = config.parse(Config, words)

import torch
import triton

from nanotriton.endpoint.client import Client
from nanotriton.executor import Executor
from nanotriton.executor.preflight import POLICY, preflight
from nanotriton.executor.processes import check_card
from nanotriton.log import counted
from nanotriton.parallel.program import launch
from nanotriton.parallel.world import World
from nanotriton.runs.run import check_model
from nanotriton.search import search
from nanotriton.search.search import Attempt
from nanotriton.search.writers import EndpointWriter, ModelWriter, Sampling, Writer
from nanotriton.tasks.module import module_task
from nanotriton.tasks.prompt import read_prompt
from nanotriton.tasks.task import Task


def main(cfg: Config, world: World) -> int:
    """Returns the exit status."""
    check_card(cfg.device, timed=cfg.device == "cuda")
    try:
        task = module_task(cfg.file, cfg.module)
    except ValueError as error:
        raise config.ConfigError(str(error)) from None
    opening = read_prompt(cfg.prompt).of(task.source)
    # a mistake in what is named comes out before anything that takes time
    client = None
    if cfg.model:
        check_model(cfg.model)
    else:
        client = Client(cfg.endpoint, cfg.served_model, key_env=cfg.key_env)
    check_task(cfg, task)
    writer = make_writer(cfg, World(device=torch.device(cfg.device)), client)

    print(search.HEAD)
    with make_executor(cfg) as executor:
        attempts = search.search(
            task,
            opening,
            writer,
            executor,
            n=cfg.n,
            rounds=cfg.rounds,
            seed=cfg.seed,
            tell=lambda attempt: print(search.row(attempt), flush=True),
        )
    print(search.counts(attempts))
    best = verified(cfg, task, search.ranked(attempts))
    if best is None:
        print(f"no verified kernel; {cfg.out} is not written")
        return 1
    Path(cfg.out).write_text(search.kernel_file(best, notes(cfg, task, writer, best)), encoding="utf-8")
    found = f"{cfg.out} has the kernel of round {best.round}, answer {best.number}"
    print(f"{found}: from {Path(cfg.out).stem} import ModelNew")
    return 0


def make_executor(cfg: Config, policy: str = "strict") -> Executor:
    """An executor with secret inputs of its own. On a GPU it times what is right."""
    timed = cfg.device == "cuda" and policy == "strict"
    return Executor(cfg.device, "replay", policy=policy, timeout=cfg.timeout, time=timed)


def check_task(cfg: Config, task: Task) -> None:
    """ConfigError if no candidate for this task could be judged. Says what else is odd about it."""
    with make_executor(cfg, POLICY) as executor:
        (found,) = preflight([task], executor)
    if not found.fit:
        raise config.ConfigError(f"{cfg.file} can't be judged: {found.reason}")
    if found.reason:
        print(f"note: {found.reason}")


def make_writer(cfg: Config, world: World, client: Client | None) -> Writer:
    """The model that the options name, loaded; or else the server."""
    variables = config.json_object("--template", cfg.template)
    sampling = Sampling(cfg.temperature, 1.0, cfg.max_tokens, variables)
    if client is None:
        writer = ModelWriter(cfg.model, world.device, world.dtype, sampling)
    else:
        writer = EndpointWriter(client, sampling)
    if not writer.converses:
        print(f"note: {cfg.model} has no chat template, so it is not told what was wrong: it draws anew")
    return writer


def verified(cfg: Config, task: Task, right: list[Attempt]) -> Attempt | None:
    """The first of these that is right once more, on inputs of another secret seed.

    All answers of a search are judged on the same inputs, and their writer was told of some values.
    """
    if not right:
        return None
    with make_executor(cfg) as executor:
        for attempt in right:
            verdict = executor.submit(task, attempt.code).result()
            if verdict.correct:
                return attempt
            place = f"round {attempt.round}, answer {attempt.number}"
            print(f"{place}: judged again it is {verdict.status}: {verdict.message}")
    return None


def notes(cfg: Config, task: Task, writer: Writer, best: Attempt) -> list[str]:
    """The lines of the kernel's file that say where it comes from."""
    where = torch.cuda.get_device_name() if cfg.device == "cuda" else "a CPU"
    asked = counted(cfg.n, "answer")
    return [
        f"Module: {cfg.module or task.name} of {cfg.file}.",
        f"Written by: {writer.name}, round {best.round} of at most {cfg.rounds}, one of {asked}.",
        f"Judged on: {where}, torch {torch.__version__}, triton {triton.__version__}.",
    ]


if __name__ == "__main__":
    sys.exit(launch(main, options))
