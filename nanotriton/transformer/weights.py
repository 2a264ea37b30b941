"""A Hugging Face folder into a model and a model into a folder that transformers and vLLM load.

    model, config = load_model("Qwen/Qwen3-8B", torch.bfloat16, "cuda")
    save_model(model, "out", tokenizer_files=tokenizer.files)

Files are memory-mapped and read a tensor at a time, so that host memory stays at a few tensors above the
page cache. Under FSDP, build the model on the meta device, shard it, `to_empty`, then `fill`: each rank reads
only its rows.
"""

import itertools
import json
import mmap
import os
import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor

from nanotriton.config import reason
from nanotriton.transformer import lora
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig, ModelError
from nanotriton.transformer.tensor_files import shard_rows, write_tensors

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)\.safetensors")
FOREIGN = (".", "adapter", "consolidated")  # how names begin of files that are no weights of a whole model
DOWNLOAD = ["*.safetensors", "*.json", "*.jinja", "merges.txt", "tokenizer.model"]
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SHARD_BYTES = 5 * 10**9
READERS = 8  # threads: a mapped file comes in by page faults, and each waits for the disk


# ------------------------------------------------------------------------------------------
# folders
def find_folder(name: str | Path) -> Path:
    """A local folder as it is. ModelError if there is neither a folder nor such a model on the hub.

    `owner/name` is downloaded from the Hugging Face hub, with a progress bar, or taken from its cache.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        if not os.access(path, os.R_OK | os.X_OK):
            raise ModelError(f"{path}: cannot read: Permission denied")
        check_no_run(path)
        return path
    is_id = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", str(name)) and not path.parent.is_dir()
    if path.exists() or not is_id:
        problem = "not a folder" if path.exists() else "no such folder"
        raise ModelError(f"{name}: {problem}; a Hugging Face folder or a hub id, owner/name, is expected")
    from huggingface_hub import snapshot_download  # imported late: it is slow, and only downloads need it

    try:
        return Path(snapshot_download(str(name), allow_patterns=DOWNLOAD))
    except Exception as error:  # offline, unknown id, gated, disk full: many types, one meaning
        told = textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ...")
        raise ModelError(f"{name}: no such folder, and the hub didn't give it: {told}") from None


def check_no_run(folder: Path) -> None:
    """ModelError for a folder of train_grpo.py or train_sft.py in which a model is looked for, and is not."""
    config = folder / "config.json"
    if not config.is_file() and (folder / "state.json").is_file():
        raise ModelError(f"{folder}: this is a checkpoint, for its run alone; a run's model is in its model/")
    settings = read_json(config) if config.is_file() else {}
    if "save_every" in settings and "model_type" not in settings:
        model = folder / "model"
        its = f"its model is {model}" if model.is_dir() else "it has no model yet: a run writes it at its end"
        raise ModelError(f"{folder}: this is the folder of a run; {its}")


def read_json(path: Path) -> dict:
    """The JSON object in a file; ModelError if it is missing or isn't one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ModelError(f"{path.parent}: no {path.name}") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot read: {reason(error)}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object")
    return value


def find_tokenizer_files(folder: str | Path) -> list[Path]:
    """The files of a folder that make up its tokenizer."""
    return [path for name in TOKENIZER_FILES if (path := Path(folder) / name).is_file()]


def load_config(name: str | Path) -> ModelConfig:
    """The shape of the model in a folder, or of a hub id. ModelError if it can't be built."""
    folder = find_folder(name)
    generation = folder / "generation_config.json"
    raw = read_json(folder / "config.json")
    try:
        return ModelConfig.from_hf(raw, read_json(generation) if generation.is_file() else None)
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from None


# ------------------------------------------------------------------------------------------
# which files
def find_weights(folder: Path) -> tuple[list[Path], dict[str, Path]]:
    """(the files of a folder that hold its weights, the file of each tensor as the index says).

    As transformers chooses: model.safetensors by itself, else what the index names. Beyond that, shards
    without an index, or a single file of another name. Hidden files, adapters and Mistral's consolidated ones
    are nobody's weights. Raises ModelError, also where two whole sets are there: one of them is old.
    """
    single, index = folder / WEIGHTS, folder / INDEX
    indexed = read_index(index) if index.is_file() else {}
    named = sorted(set(indexed.values()))
    missing = [path for path in named if not path.is_file()]
    if single.is_file():
        if others := [path.name for path in named if path != single and not missing]:
            raise ModelError(
                f"{folder} holds weights twice: in {WEIGHTS}, and in the files that {INDEX} names "
                f"({', '.join(others[:3])}): move away the ones that are not meant"
            )
        return [single], {}
    if missing:
        raise ModelError(f"{index} names {missing[0].name}, which is missing")
    if named:
        return named, indexed
    return without_index(folder), {}


def read_index(path: Path) -> dict[str, Path]:
    """The file of each tensor. ModelError if the index is none."""
    names = read_json(path).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelError(f"{path}: no weight_map")
    for tensor, name in names.items():
        if not isinstance(name, str) or Path(name).is_absolute() or ".." in Path(name).parts:
            raise ModelError(f"{path}: {tensor} is in {json.dumps(name)}; the name of a file is expected")
    return {tensor: path.parent / name for tensor, name in names.items()}


def without_index(folder: Path) -> list[Path]:
    """All shards of a set, or the only file that can be the weights."""
    found = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith(FOREIGN))
    shards = {path.name: SHARD.fullmatch(path.name) for path in found}
    sets = {(match[1], match[3]) for match in shards.values() if match}
    if len(sets) == 1:
        ((prefix, count),) = sets
        files = [
            folder / f"{prefix}-{i:0{len(count)}d}-of-{count}.safetensors" for i in range(1, int(count) + 1)
        ]
        if missing := [path.name for path in files if not path.is_file()]:
            raise ModelError(f"{folder}: {missing[0]} is missing")
        return files
    if not found:
        others = sorted(path.name for path in folder.glob("*.safetensors"))
        besides = f" of a whole model, only {', '.join(others[:3])}" if others else ""
        raise ModelError(f"{folder}: no .safetensors file{besides}")
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:4])
        raise ModelError(f"{folder}: which of {names} holds the weights? {WEIGHTS} or {INDEX} would say")
    return found


# ------------------------------------------------------------------------------------------
# reading
class WeightFiles:
    """The tensors of a folder's safetensors files, opened but not read.

    shapes: name -> shape; dtype: that of the last one. `read(name, start, stop)` gives rows start to stop
    (default all), memory-mapped on the CPU. unlisted: tensors in the files that the index does not name.
    Raises ModelError for no weights, a file that the index names and isn't there, a truncated file, a tensor
    that isn't where the index says, one in two files of a set without an index, a dtype that is no float.
    """

    def __init__(self, folder: Path):
        self.where: dict[str, object] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.unlisted: set[str] = set()
        files, indexed = find_weights(folder)
        for path in files:
            try:
                file = safe_open(path, framework="pt", device="cpu")
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path}: not a whole safetensors file: {error}") from None
            for name in file.keys():  # noqa: SIM118, it isn't a dict
                if indexed and name not in indexed:
                    self._unlisted(name, file)
                elif not indexed or indexed[name] == path:
                    self._take(name, file, path)
        for name, path in indexed.items():
            if name not in self.where:
                raise ModelError(f"{folder / INDEX}: {name} is in {path.name}, which has no such tensor")

    def _take(self, name: str, file, path: Path) -> None:
        if name in self.where:
            raise ModelError(f"{path}: tensor {name} is in another file too")
        view = file.get_slice(name)
        if view.get_dtype() not in FLOATS:
            raise ModelError(f"{path}: {name} is {view.get_dtype()}; supported: {', '.join(FLOATS)}")
        self.where[name], self.shapes[name] = file, tuple(view.get_shape())
        self.dtype = FLOATS[view.get_dtype()]

    def _unlisted(self, name: str, file) -> None:
        """Take a tensor that the index forgot. One in two files could be an old one: it counts as missing."""
        if name in self.unlisted:
            self.where.pop(name, None)
            self.shapes.pop(name, None)
        elif file.get_slice(name).get_dtype() in FLOATS:
            self.where[name], self.shapes[name] = file, tuple(file.get_slice(name).get_shape())
        self.unlisted.add(name)

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> Tensor:
        file = self.where[name]
        return file.get_tensor(name) if start is None else file.get_slice(name)[start:stop]


def fill(model: Transformer, name: str | Path) -> None:
    """Copy a folder's tensors into the model's parameters, converted to their dtype.

    Every tensor is used once and every parameter filled once, or it is a ModelError. A DTensor parameter
    (FSDP2, sharded over rows) gets its own rows only.
    """
    folder = find_folder(name)
    files = WeightFiles(folder)
    params = lora.base_parameters(model)
    model.config.dtype = model.config.dtype or files.dtype  # save_model() writes the same
    check_names(folder, files, params, tied=model.config.tie_word_embeddings)
    for key, param in params.items():
        if tuple(param.shape) != files.shapes[key]:
            raise ModelError(
                f"{folder}: {key} has shape {list(files.shapes[key])}, config.json says {list(param.shape)}"
            )
    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(lambda key: fill_parameter(params[key], key, files), params))


def check_names(folder: Path, files: WeightFiles, params: dict[str, Tensor], tied: bool) -> None:
    """ModelError where the files lack a parameter, or have a tensor that is none. tied: lm_head is."""
    # a constant, in old folders
    names = {key for key in files.shapes if not key.endswith("rotary_emb.inv_freq")}
    names -= files.unlisted - params.keys()
    if tied and "lm_head.weight" in names:
        names.remove("lm_head.weight")  # tied and yet saved: it has to be what it is tied to
        if not torch.equal(files.read("lm_head.weight"), files.read("model.embed_tokens.weight")):
            raise ModelError(
                f"{folder}: tie_word_embeddings is true, but lm_head.weight differs from the embedding"
            )
    for problem, found in (
        ("missing", params.keys() - names),
        ("not part of this model", names - params.keys()),
    ):
        if found:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            hint = instead(min(found), names) if problem == "missing" else ""
            raise ModelError(f"{folder}: tensor {min(found)}{more} {'are' if more else 'is'} {problem}{hint}")


@torch.no_grad()  # here, as the mode is per thread
def fill_parameter(param: Tensor, key: str, files: WeightFiles) -> None:
    """Read a tensor, or this rank's rows of it, into a parameter."""
    target, rows = param.data, ()
    if isinstance(param, DTensor):
        target = param.to_local()
        if param.placements[0].is_shard():
            mesh = param.device_mesh
            rows = shard_rows(param.shape[0], mesh.get_local_rank(), mesh.size())
    source = files.read(key, *rows)
    if target.is_cuda:
        # Touch every page here, where all threads wait for the disk at once: a CUDA copy would wait for each
        # page with the driver locked. Then over in the file's dtype: that is fewer bytes, and converting is
        # the device's work.
        source.flatten().view(torch.uint8)[:: mmap.PAGESIZE].sum()
        source = source.to(target.device)
    target.copy_(source)


def instead(missing: str, names: set[str]) -> str:
    """The end of a message: how the folder writes a name. PEFT and torch.compile put words before it."""
    found = min((name for name in names if name.endswith(f".{missing}")), default="")
    return f"; it has {found}" if found else ""


def load_model(
    name: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> tuple[Transformer, ModelConfig]:
    """(model, config) of a folder or hub id: parameters and compute in `dtype`, on `device`.

    ModelError if it can't be loaded.
    """
    folder = find_folder(name)
    config = load_config(folder)
    with torch.device("meta"):
        model = Transformer(config, compute_dtype=dtype)
    model.to(dtype).to_empty(device=device)
    fill(model, folder)
    return model, config


# ------------------------------------------------------------------------------------------
# writing
def save_model(
    model: Transformer,
    folder: str | Path,
    tokenizer_files: str | Path | Iterable[Path] = (),
    dtype: torch.dtype | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write config.json, generation_config.json, the weights and copies of the tokenizer's files.

    tokenizer_files: one by one, or the folder that has them. dtype: of the weights. None: the dtype of the
    folder that the model was read from, whatever it was trained in, or as held if it was made here. More than
    `shard_bytes` of weights become several files and an index.

    Under FSDP every rank calls it: shards are gathered a file at a time, and rank 0 writes. Files get their
    names only when all are written, so that a kill before leaves the previous ones whole.
    """
    folder = Path(folder)
    if isinstance(tokenizer_files, str | Path):
        tokenizer_files = find_tokenizer_files(tokenizer_files)
    tokenizer_files = [Path(path) for path in tokenizer_files]
    writer = not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
    params = lora.base_parameters(model)
    dtype = dtype or model.config.dtype or next(iter(params.values())).dtype
    plan = _plan_shards(params, dtype, shard_bytes)
    files = {
        "config.json": model.config.to_hf(dtype),
        "generation_config.json": _generation_config(model.config),
    }
    if len(plan) > 1:
        total = sum(p.numel() * dtype.itemsize for p in params.values())
        weight_map = {name: file for file, names in plan.items() for name in names}
        files[INDEX] = {"metadata": {"total_size": total}, "weight_map": weight_map}
    if writer:
        folder.mkdir(parents=True, exist_ok=True)
    _write_weights(model, folder, plan, dtype, writer)
    if not writer:
        return
    for file, value in files.items():
        (folder / f"{file}.tmp").write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    for path in tokenizer_files:
        shutil.copyfile(path, folder / f"{path.name}.tmp")
    _put_in_place(folder, [*plan, *files, *(path.name for path in tokenizer_files)])


def _write_weights(
    model: Transformer, folder: Path, plan: dict[str, list[str]], dtype: torch.dtype, writer: bool
) -> None:
    """Gather the weights a file at a time, and write each file, under a name that ends with .tmp.

    All ranks call it together. writer: this one writes.
    """
    whole = lora.whole_weights(model, dtype)  # in the order of the plan
    for file, names in plan.items():
        tensors = {}
        for name, full in itertools.islice(whole, len(names)):
            if writer:
                tensors[name] = full.to("cpu", dtype).contiguous()
            del full
        if writer:
            write_tensors(folder / f"{file}.tmp", tensors)


def _put_in_place(folder: Path, names: list[str]) -> None:
    """Give the .tmp files their names, and delete the weights of an earlier save with more shards."""
    for name in names:
        os.replace(folder / f"{name}.tmp", folder / name)
    there = {*folder.glob("model*.safetensors"), *folder.glob(INDEX)}
    for stale in there - {folder / name for name in names}:
        stale.unlink()


def _plan_shards(params: dict[str, Tensor], dtype: torch.dtype, limit: int) -> dict[str, list[str]]:
    """File name -> parameter names, in the model's order.

    Each file has at most `limit` bytes, unless a single tensor is larger.
    """
    shards, sizes = [[]], Counter()
    for name, param in params.items():
        size = param.numel() * dtype.itemsize
        if shards[-1] and sizes[len(shards)] + size > limit:
            shards.append([])
        shards[-1].append(name)
        sizes[len(shards)] += size
    if len(shards) == 1:
        return {WEIGHTS: shards[0]}
    return {f"model-{i:05d}-of-{len(shards):05d}.safetensors": names for i, names in enumerate(shards, 1)}


def _generation_config(config: ModelConfig) -> dict:
    """What generation_config.json has: the one that was read, and the ids that a config knows."""
    ids = {"bos_token_id": config.bos_token_id, "pad_token_id": config.pad_token_id}
    ids = {key: value for key, value in ids.items() if value is not None}
    eos = {"eos_token_id": list(config.eos_token_ids)} if config.eos_token_ids else {}
    return ids | config.generation_config | eos
