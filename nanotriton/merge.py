"""Merge adapters into a model: what was trained with --lora, as weights that any program loads.

    python -m nanotriton.merge BASE ADAPTER [ADAPTER ...] --out FOLDER

BASE is a Hugging Face folder or hub id. An adapter is a folder in PEFT's format, as a run with --lora leaves
it in adapter/. They are merged in the order given, and after each the weights have BASE's dtype again, as in
a GRPO run that began from the model/ of an SFT run.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors import safe_open

from nanotriton import config
from nanotriton.transformer.lora import PREFIX, merged
from nanotriton.transformer.model import Linear, Transformer
from nanotriton.transformer.model_config import ModelError
from nanotriton.transformer.weights import find_folder, load_config, load_model, save_model


@torch.no_grad()
def merge_adapter(model: Transformer, folder: Path) -> None:
    """Add an adapter of PEFT's format to the weights of a plain model. ModelError if it doesn't fit."""
    try:
        settings = json.loads((folder / "adapter_config.json").read_text())
        scale = settings["lora_alpha"] / settings["r"]
        file = safe_open(folder / "adapter_model.safetensors", "pt")
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{folder}: not an adapter in PEFT's format: {config.reason(error)}") from None
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Linear)}
    with file:
        tensors = list(file.keys())
        names = {name.removeprefix(PREFIX).rpartition(".lora_")[0] for name in tensors}
        if unknown := sorted(names - layers.keys()):
            raise ModelError(f"{folder}: this model has no linear layer {unknown[0]}")
        for name in sorted(names):
            a, b = (file.get_tensor(f"{PREFIX}{name}.{part}.weight") for part in ("lora_A", "lora_B"))
            weight = layers[name].weight
            if (b.shape[0], a.shape[1]) != weight.shape or a.shape[0] != b.shape[1]:
                raise ModelError(
                    f"{folder}: the adapter of {name} is for a weight of {[b.shape[0], a.shape[1]]}, "
                    f"the model's is {list(weight.shape)}"
                )
            weight.copy_(merged(weight, a.to(weight.device), b.to(weight.device), weight.dtype, scale))


def base_of(adapter: Path) -> str:
    """The model that an adapter says it was trained on, or ""."""
    try:
        return str(json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def main(argv: list[str] | None = None) -> None:
    parser = config.Parser(
        prog="python -m nanotriton.merge", description="Merge adapters into a model.", allow_abbrev=False
    )
    parser.add_argument("base", help="a Hugging Face folder or hub id")
    parser.add_argument("adapters", nargs="+", type=Path, help="folders in PEFT's format, in order")
    parser.add_argument("--out", required=True, type=Path, help="the folder to write")
    args = parser.parse_args(argv)
    try:
        folder = find_folder(args.base)
        if args.out.resolve() == folder.resolve():
            raise ModelError(f"--out {args.out}: that is the base itself; give another folder")
        named = base_of(args.adapters[0])
        if named and Path(named).resolve() not in (folder.resolve(), Path(args.base).resolve()):
            print(f"note: {args.adapters[0]} says that it was trained on {named}", file=sys.stderr)
        model, _ = load_model(folder, load_config(folder).dtype or torch.float32)
        for adapter in args.adapters:
            merge_adapter(model, adapter)
        save_model(model, args.out, folder)
    except ModelError as error:
        config.die(error)
    except OSError as error:
        config.die(f"--out {args.out}: cannot write there: {config.reason(error)}")
    print(f"{args.out}: {args.base} with {len(args.adapters)} adapter(s) merged")


if __name__ == "__main__":
    main()
