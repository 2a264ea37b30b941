"""Time and host memory of loading an 8B-shaped folder onto a GPU.

    python -m bench.speed.load --folder /tmp/random-8b --out results/load.json

A random folder of Qwen3-8B's shape (16.4 GB in bf16) is written unless it is there. It is dropped from the
page cache and read raw, to see what the disk gives; dropped again and loaded (cold); and loaded once more
(warm). A loading runs in a process of its own, which watches its anonymous memory: what it holds beyond
mapped files.
"""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.results import command, environment, write_json
from bench.speed.sampling import QWEN3, SHAPES
from nanotriton import config
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig
from nanotriton.transformer.weights import load_model, save_model

SHAPE = ModelConfig(**QWEN3, **SHAPES["8b"])
CHUNK = 64 << 20  # bytes of a raw read


@dataclass
class Config:
    folder: str = "/tmp/random-8b"  # made if it isn't there
    device: str = "cuda"  # where to load to
    dtype: str = "bf16"  # fp32 or bf16
    layers: int = 36  # fewer make a smaller folder, to try the script
    out: str = "results/load.json"  # where the numbers go
    only_load: bool = False  # the child process: load once and print one JSON object


def memory(key: str) -> float:
    """A line of /proc/self/status, such as RssAnon or RssFile, in GB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024 / 1e9
    raise KeyError(key)


def load_once(cfg: Config) -> dict[str, float]:
    """Load the folder in this process -> its seconds and memory."""
    torch.zeros(1, device=cfg.device)  # the CUDA context is no part of loading
    before = memory("RssAnon")
    peaks = {"RssAnon": 0.0, "RssFile": 0.0}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            for key in peaks:
                peaks[key] = max(peaks[key], memory(key))

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    model, _ = load_model(cfg.folder, {"fp32": torch.float32, "bf16": torch.bfloat16}[cfg.dtype], cfg.device)
    if cfg.device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    total = sum(p.double().sum().item() for p in model.parameters())
    return {
        "seconds": round(seconds, 2),
        "host_gb_before": round(before, 2),
        "host_gb_peak": round(peaks["RssAnon"], 2),
        "host_gb_above": round(peaks["RssAnon"] - before, 2),
        "mapped_gb_peak": round(peaks["RssFile"], 2),
        "checksum": total,  # must be the same cold and warm
    }


def files(folder: str) -> list[Path]:
    """The files of weights."""
    return sorted(Path(folder).glob("*.safetensors"))


def drop(folder: str) -> None:
    """Drop the folder's weights from the page cache."""
    for path in files(folder):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def raw_read(folder: str) -> float:
    """Seconds to read the folder's weights through, one file after the other."""
    start, buffer = time.perf_counter(), bytearray(CHUNK)
    for path in files(folder):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - start


def write_folder(cfg: Config) -> None:
    """Make the folder with random weights."""
    SHAPE.num_hidden_layers = cfg.layers
    with torch.device("meta"):
        model = Transformer(SHAPE).to(torch.bfloat16)
    model.to_empty(device=cfg.device)
    for param in model.parameters():
        param.data.normal_(0, 0.02)
    save_model(model, cfg.folder)


def load_apart(cfg: Config, state: str, size: float) -> dict[str, float]:
    """What `load_once` finds in a process of its own. It is printed too.

    state: cold or warm. size: of the folder, in GB.
    """
    options = [f"--{k}={getattr(cfg, k)}" for k in ("folder", "device", "dtype")]
    words = [sys.executable, "-m", "bench.speed.load", "--only-load", *options]
    child = subprocess.run(words, capture_output=True, text=True, check=False)
    if child.returncode:
        raise SystemExit(child.stderr)
    run = json.loads(child.stdout)
    print(
        f"{state}: {run['seconds']:.1f} s, {size / run['seconds']:.2f} GB/s, "
        f"{run['host_gb_above']:.2f} GB of host memory above the mapped files",
        flush=True,
    )
    return run


def main(cfg: Config) -> None:
    if not files(cfg.folder):
        write_folder(cfg)
        if cfg.device == "cuda":
            torch.cuda.empty_cache()
    size = sum(path.stat().st_size for path in files(cfg.folder)) / 1e9
    drop(cfg.folder)
    raw = raw_read(cfg.folder)
    drop(cfg.folder)
    cold = load_apart(cfg, "cold", size)
    warm = load_apart(cfg, "warm", size)
    print(f"folder {size:.1f} GB; read raw from disk in {raw:.1f} s, {size / raw:.2f} GB/s")
    if cold["checksum"] != warm["checksum"]:
        raise SystemExit("the two loadings differ")
    report = {
        "command": command("bench.speed.load"),
        **environment(),
        "device": cfg.device,
        "dtype": cfg.dtype,
        "folder_gb": round(size, 2),
        "raw_read_seconds": round(raw, 2),
        "cold": cold,
        "warm": warm,
    }
    write_json(cfg.out, report)


if __name__ == "__main__":
    cfg = config.parse(Config)
    if cfg.only_load:
        print(json.dumps(load_once(cfg)))
    else:
        main(cfg)
