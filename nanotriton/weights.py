"""A Hugging Face folder into a model and a model into a folder that transformers and vLLM load.

    model, config = load_model("Qwen/Qwen3-8B", torch.bfloat16, "cuda")
    save_model(model, "out", tokenizer_files=tokenizer.files)

Files are memory-mapped and read a tensor at a time, so that host memory stays at a few tensors above the page
cache.
Under FSDP, build the model on the meta device, shard it, `to_empty`, then `fill`: each rank reads only its
rows.
"""

import itertools
import json
import mmap
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from nanotriton import lora
from nanotriton.config import reason
from nanotriton.model import ModelConfig, ModelError, Transformer

INDEX = "model.safetensors.index.json"
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
    """A local folder as it is; `owner/name` is downloaded from the Hugging Face hub, with a progress bar, or
    taken
    from its cache. ModelError if there is neither."""
    path = Path(name).expanduser()
    if path.is_dir():
        if not os.access(path, os.R_OK | os.X_OK):
            raise ModelError(f"{path}: cannot read: Permission denied")
        return path
    is_id = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", str(name)) and not path.parent.is_dir()
    if path.exists() or not is_id:
        raise ModelError(
            f"{name}: {'not a folder' if path.exists() else 'no such folder'}; a Hugging Face folder or a hub id, owner/name, is expected"  # noqa: E501
        )
    from huggingface_hub import snapshot_download  # imported late: it is slow, and only downloads need it

    try:
        return Path(snapshot_download(str(name), allow_patterns=DOWNLOAD))
    except Exception as error:  # offline, unknown id, gated, disk full: many types, one meaning
        reason = " ".join(str(error).split())[:200]
        raise ModelError(
            f"{name}: no such folder, and the hub didn't give it: {type(error).__name__}: {reason}"
        ) from None


def read_json(path: Path) -> dict:
    """The JSON object in a file; ModelError if it is missing or isn't one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
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
    folder = find_folder(name)
    generation = folder / "generation_config.json"
    raw = read_json(folder / "config.json")
    try:
        return ModelConfig.from_hf(raw, read_json(generation) if generation.is_file() else None)
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from None


# ------------------------------------------------------------------------------------------
# reading
class WeightFiles:
    """The tensors of a folder's safetensors files, opened but not read.

    shapes: name -> shape; dtype: that of the last one. `read(name, start, stop)` gives rows start to stop
    (default all), memory-mapped on the CPU.
    Raises ModelError for no weights, a file that the index names and isn't there, a truncated file, one
    tensor in
    two files, a dtype that is no float.
    """

    def __init__(self, folder: Path):
        self.where: dict[str, object] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in self._files(folder):
            try:
                file = safe_open(path, framework="pt", device="cpu")
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path}: not a whole safetensors file: {error}") from None
            for name in file.keys():  # noqa: SIM118, it isn't a dict
                if name in self.where:
                    raise ModelError(f"{path}: tensor {name} is in another file too")
                view = file.get_slice(name)
                if view.get_dtype() not in FLOATS:
                    raise ModelError(f"{path}: {name} is {view.get_dtype()}; supported: {', '.join(FLOATS)}")
                self.where[name], self.shapes[name] = file, tuple(view.get_shape())
                self.dtype = FLOATS[view.get_dtype()]

    @staticmethod
    def _files(folder: Path) -> list[Path]:
        index = folder / INDEX
        if index.is_file():
            files = read_json(index).get("weight_map")
            if not isinstance(files, dict):
                raise ModelError(f"{index}: no weight_map")
            paths = [folder / name for name in sorted(set(files.values()))]
            for path in paths:
                if not path.is_file():
                    raise ModelError(f"{index} names {path.name}, which is missing")
            return paths
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise ModelError(f"{folder}: no .safetensors file")
        return paths

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> Tensor:
        file = self.where[name]
        return file.get_tensor(name) if start is None else file.get_slice(name)[start:stop]


def shard_rows(rows: int, rank: int, world: int) -> tuple[int, int]:
    """The rows that `rank` of `world` holds under FSDP2's Shard(0): torch.chunk's rule. shard_rows(5, 1, 2)
    == (3, 5)."""
    size = -(-rows // world)
    return min(rank * size, rows), min((rank + 1) * size, rows)


def fill(model: Transformer, name: str | Path) -> None:
    """Copy a folder's tensors into the model's parameters, converting dtype: every tensor used once, every
    parameter
    filled once, or ModelError. A DTensor parameter (FSDP2, sharded over rows) gets its own rows only."""
    folder = find_folder(name)
    files = WeightFiles(folder)
    params = lora.base_parameters(model)
    model.config.dtype = model.config.dtype or files.dtype  # save_model() writes the same
    # a constant, in old folders
    names = {key for key in files.shapes if not key.endswith("rotary_emb.inv_freq")}
    if model.config.tie_word_embeddings and "lm_head.weight" in names:
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
            raise ModelError(f"{folder}: tensor {min(found)}{more} {'are' if more else 'is'} {problem}")
    for key, param in params.items():
        if tuple(param.shape) != files.shapes[key]:
            raise ModelError(
                f"{folder}: {key} has shape {list(files.shapes[key])}, config.json says {list(param.shape)}"
            )

    @torch.no_grad()  # in every thread: the mode is per thread
    def copy(key: str) -> None:
        param = params[key]
        target, rows = param.data, ()
        if isinstance(param, DTensor):
            target = param.to_local()
            if param.placements[0].is_shard():
                rows = shard_rows(
                    param.shape[0], param.device_mesh.get_local_rank(), param.device_mesh.size()
                )
        source = files.read(key, *rows)
        if target.is_cuda:
            # Touch every page here, where all threads wait for the disk at once: a CUDA copy would wait for
            # each page
            # with the driver locked. Then over in the file's dtype: fewer bytes, and converting is the
            # device's work.
            source.flatten().view(torch.uint8)[:: mmap.PAGESIZE].sum()
            source = source.to(target.device)
        target.copy_(source)

    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(copy, params))


def load_model(
    name: str | Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> tuple[Transformer, ModelConfig]:
    """(model, config) from a folder or hub id: parameters and compute in `dtype`, on `device`. ModelError if
    it can't."""
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
    """Write config.json, generation_config.json, the weights and copies of the tokenizer's files (given one
    by one, or
    as the folder that has them). More than `shard_bytes` of weights become several files and an index.

    The weights have `dtype`. By default that is the dtype of the folder that the model was read from,
    whatever it was
    trained in, or as held if it was made here.

    Under FSDP every rank calls it: shards are gathered a file at a time, and rank 0 writes. Files get their
    names
    only when all are written, so that a kill before leaves the previous ones whole.
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
    whole = lora.whole_weights(model, dtype)  # in the order of the plan
    for file, names in plan.items():
        tensors = {}
        for name, full in itertools.islice(whole, len(names)):
            if writer:
                tensors[name] = full.to("cpu", dtype).contiguous()
            del full
        if writer:
            save_file(tensors, folder / f"{file}.tmp", metadata={"format": "pt"})
            (folder / f"{file}.tmp").chmod(0o644)  # safetensors makes files that only their owner reads
    if not writer:
        return
    for file, value in files.items():
        (folder / f"{file}.tmp").write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    for path in tokenizer_files:
        shutil.copyfile(path, folder / f"{path.name}.tmp")
    names = [*plan, *files, *(path.name for path in tokenizer_files)]
    for name in names:
        os.replace(folder / f"{name}.tmp", folder / name)
    for stale in {*folder.glob("model*.safetensors"), *folder.glob(INDEX)} - {
        folder / name for name in names
    }:
        stale.unlink()  # of an earlier save with more shards


def _plan_shards(params: dict[str, Tensor], dtype: torch.dtype, limit: int) -> dict[str, list[str]]:
    """File name -> parameter names, in model order, each file under `limit` bytes (one larger tensor is a
    file)."""
    shards, sizes = [[]], Counter()
    for name, param in params.items():
        size = param.numel() * dtype.itemsize
        if shards[-1] and sizes[len(shards)] + size > limit:
            shards.append([])
        shards[-1].append(name)
        sizes[len(shards)] += size
    if len(shards) == 1:
        return {"model.safetensors": shards[0]}
    return {f"model-{i:05d}-of-{len(shards):05d}.safetensors": names for i, names in enumerate(shards, 1)}


def _generation_config(config: ModelConfig) -> dict:
    ids = {"bos_token_id": config.bos_token_id, "pad_token_id": config.pad_token_id}
    ids = {key: value for key, value in ids.items() if value is not None}
    eos = {"eos_token_id": list(config.eos_token_ids)} if config.eos_token_ids else {}
    return ids | config.generation_config | eos
