"""One completion of one prompt: to look at a model before or after it was trained.

    python -m nanotriton.complete MODEL --prompt TEXT | --raw TEXT | --prompt-ids 1,2,3
                                  [--template JSON] [--max-tokens N] [--temperature T] [--seed S]
                                  [--dtype fp32|bf16] [--json]

`--prompt` is what a user says, with the model's chat template around it; `--raw` is continued as it stands.
"""

import argparse
import json

import torch

from nanotriton.config import Parser, die, json_object
from nanotriton.sampler.sampler import Request, Sample, Sampler
from nanotriton.tasks.prompt import ids_of, of_text
from nanotriton.transformer.tokenizer import Tokenizer
from nanotriton.transformer.weights import find_folder, load_model


def _ids(text: str) -> list[int]:
    """The ids in a list such as 1,2,3."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError("expected ids separated by commas, such as 1,2,3") from None


def main(argv: list[str] | None = None) -> None:
    """One completion of one prompt, on the GPU if there is one."""
    args = _arguments(argv)
    try:
        sample, tokenizer = _complete(args)
    except (ValueError, MemoryError) as error:  # ModelError is a ValueError
        die(str(error).removeprefix("request 0: "))  # there is one
    text = None
    if tokenizer:
        text = tokenizer.decode([i for i in sample.ids if i < tokenizer.vocab_size], skip_special_tokens=True)
    if args.json:
        answer = {"ids": sample.ids, "logprobs": sample.logprobs, "text": text}
        print(json.dumps(answer | {"finish_reason": sample.finish_reason}))
    else:
        print(text if tokenizer else ",".join(map(str, sample.ids)))


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line. What is wrong with it is said in one line, with exit status 2."""
    parser = Parser(prog="python -m nanotriton.complete", description=main.__doc__)
    parser.add_argument("model", help="a Hugging Face folder or hub id")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", help="what a user says: the model's chat template goes around it")
    prompt.add_argument("--raw", help="text to continue, as it stands")
    prompt.add_argument("--prompt-ids", type=_ids, help="token ids to continue, such as 1,2,3")
    parser.add_argument(
        "--template",
        default="",
        help="""variables for the chat template, in JSON: '{"enable_thinking": false}'""",
    )
    parser.add_argument("--max-tokens", type=int, default=64, help="longest answer (default: 64)")
    parser.add_argument(
        "--temperature", type=float, default=0.0, help="0, the default, takes the most likely token"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the answer (default: 0)")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], help="default: bf16 on a GPU, fp32 without one")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object: ids, logprobs, text, finish_reason"
    )
    return parser.parse_args(argv)


def _complete(args: argparse.Namespace) -> tuple[Sample, Tokenizer | None]:
    """The sample that was asked for, and what decodes it: None for a model of ids alone."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    default = "bf16" if device == "cuda" else "fp32"
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.dtype or default]
    folder = find_folder(args.model)
    tokenizer, ids = None, args.prompt_ids
    if ids is None or (folder / "tokenizer.json").is_file():  # else there are ids alone, and no text
        tokenizer = Tokenizer(folder, variables=json_object("--template", args.template))
    if args.prompt is not None:
        ids = ids_of(of_text(args.prompt), tokenizer)
    elif args.raw is not None:
        ids = tokenizer.encode(args.raw, add_special_tokens=True)
    model, config = load_model(folder, dtype, device)
    stop = frozenset(config.eos_token_ids) | (tokenizer.eos_ids if tokenizer else frozenset())
    request = Request(
        ids, max_tokens=args.max_tokens, temperature=args.temperature, stop_ids=stop, seeds=[args.seed]
    )
    # ids are continued by ids, as transformers does, also by those of an embedding's padding
    valid = tokenizer.vocab_size if args.prompt_ids is None else None
    with Sampler(model, max_batch=1, valid_vocab=valid) as sampler:
        return sampler.generate([request])[0][0], tokenizer


if __name__ == "__main__":
    main()
