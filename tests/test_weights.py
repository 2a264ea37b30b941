"""Hugging Face folders: both ways with transformers, shards, FSDP rows, and one clear line for everything broken."""

import functools
import json
import os
import resource
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from nanotriton.parallel import distributed
from nanotriton.parallel.program import users
from nanotriton.parallel.world import World
from nanotriton.transformer import weights
from nanotriton.transformer.attention import packed
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.model_config import ModelConfig, ModelError
from nanotriton.transformer.tensor_files import shard_rows
from nanotriton.transformer.tokenizer import Tokenizer
from nanotriton.transformer.weights import fill, load_config, load_model, save_model
from tests.ports import free_port

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHAPE = dict(
    vocab_size=90,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    eos_token_ids=(3, 5),
    bos_token_id=1,
    pad_token_id=0,
)
CONFIGS = {
    "llama": ModelConfig(**SHAPE, rope_scaling=LLAMA3, rope_theta=500000.0),
    "tied": ModelConfig(**SHAPE, tie_word_embeddings=True, attention_bias=True),
    "qwen2": ModelConfig("qwen2", **SHAPE, attention_bias=True),
    "mistral": ModelConfig("mistral", **SHAPE),
    "smollm3": ModelConfig("smollm3", **SHAPE, no_rope_layers=(1, 0, 1)[: SHAPE["num_hidden_layers"]]),
    "qwen3": ModelConfig("qwen3", **SHAPE, head_dim=16, qk_norm=True, generation_config={"temperature": 0.6}),
}


def random_model(name: str = "llama") -> Transformer:
    model = Transformer(CONFIGS[name]).init_weights(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.1)
    return model


def logits(model: Transformer, ids):
    with torch.no_grad():
        n = len(ids)
        return (
            model(ids, torch.arange(n), packed(torch.tensor([0, n]).int(), n)).float()
            @ model.head_weight.float().T
        )


@pytest.mark.parametrize("name", CONFIGS)
def test_saved_folders_load_in_transformers_and_again_here(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    model, ids = random_model(name), torch.arange(0, 90, 7)
    save_model(model, tmp_path / "a", shard_bytes=10_000)
    hf = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "a", dtype=torch.float32)
    want = logits(model, ids)
    with torch.no_grad():
        torch.testing.assert_close(hf(ids[None]).logits[0], want, rtol=1e-5, atol=1e-5)
    assert hf.generation_config.eos_token_id == [3, 5]
    again, config = load_model(tmp_path / "a")
    assert torch.equal(logits(again, ids), want) and config == load_config(tmp_path / "a")
    save_model(again, tmp_path / "b", shard_bytes=10_000)
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert len(files) > 4 and not any(f.endswith(".tmp") for f in files)
    assert files == sorted(p.name for p in (tmp_path / "b").iterdir())
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file
    hf.save_pretrained(tmp_path / "c", max_shard_size="20KB")  # and what transformers writes is read here
    assert torch.equal(logits(load_model(tmp_path / "c")[0], ids), want)


def test_bf16_is_saved_and_read_as_asked(tmp_path):
    model = random_model()
    save_model(model, tmp_path, dtype=torch.bfloat16)
    assert all(t.dtype == torch.bfloat16 for t in load_file(tmp_path / "model.safetensors").values())
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"
    master, _ = load_model(tmp_path, torch.float32)
    assert (
        all(p.dtype == torch.float32 for p in master.parameters()) and master.compute_dtype == torch.float32
    )
    for a, b in zip(master.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b.bfloat16().float())
    half, _ = load_model(tmp_path, torch.bfloat16)
    assert all(p.dtype == torch.bfloat16 for p in half.parameters()) and half.compute_dtype == torch.bfloat16


def test_an_export_has_the_dtype_of_the_folder_that_came_in(tmp_path):
    """Whatever it was trained in: fp32 masters of a bf16 model are written in bf16, bf16 parameters of an fp32 one in fp32."""
    for name, dtype in (("half", torch.bfloat16), ("single", torch.float32), ("sixteen", torch.float16)):
        save_model(random_model(), tmp_path / name, dtype=dtype)
        for optimizer in ("adamw", "adam8"):
            model, _ = distributed.load(tmp_path / name, World(), optimizer)
            save_model(model, tmp_path / "out")
            assert {t.dtype for t in load_file(tmp_path / "out" / "model.safetensors").values()} == {dtype}
            assert json.loads((tmp_path / "out/config.json").read_text())["torch_dtype"] == str(dtype)[6:]
        raw = json.loads((tmp_path / name / "config.json").read_text())
        raw.pop("torch_dtype")  # a config that doesn't say: the files do
        (tmp_path / name / "config.json").write_text(json.dumps(raw))
        model, _ = load_model(tmp_path / name)
        assert model.config.dtype == dtype
    assert random_model().config.dtype is None


def test_a_smaller_save_leaves_no_stale_shard(tmp_path):
    save_model(random_model(), tmp_path, shard_bytes=10_000)
    (tmp_path / "notes.txt").write_text("mine")
    save_model(random_model(), tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "notes.txt",
    ]


def test_shards_without_an_index(tmp_path):
    save_model(random_model(), tmp_path, shard_bytes=10_000)
    (tmp_path / weights.INDEX).unlink()
    assert torch.equal(load_model(tmp_path)[0].head_weight, random_model().head_weight)


def test_tokenizer_files_travel(tmp_path):
    from test_tokenizer import CHATML, write_byte_level

    source = write_byte_level(tmp_path / "tokenizer", chat_template=CHATML, eos_token="<|im_end|>")
    model = Transformer(ModelConfig(**SHAPE | {"vocab_size": 300})).init_weights(0)
    for given, folder in ((Tokenizer(source).files, tmp_path / "a"), (str(source), tmp_path / "b")):
        save_model(model, folder, tokenizer_files=given)
        assert Tokenizer(folder).eos_ids == {2, 3, 5} and Tokenizer(folder).has_chat_template
    save_model(model, folder, tokenizer_files=folder)  # onto itself
    assert Tokenizer(folder).chat([{"role": "user", "content": "x"}])


def test_generation_config_is_kept(tmp_path):
    save_model(random_model("qwen3"), tmp_path)
    saved = json.loads((tmp_path / "generation_config.json").read_text())
    assert saved == {"bos_token_id": 1, "pad_token_id": 0, "temperature": 0.6, "eos_token_id": [3, 5]}


def test_rows_of_a_rank_are_fsdps(tmp_path):
    for rows in (1, 5, 7, 8, 90):
        for world in (1, 2, 3, 4, 8):
            parts = [
                torch.arange(rows)[slice(*shard_rows(rows, rank, world))].tolist() for rank in range(world)
            ]
            want = [c.tolist() for c in torch.arange(rows).chunk(world)]
            assert parts == want + [[]] * (world - len(want))
    model = random_model()
    save_model(model, tmp_path, shard_bytes=10_000)
    files = weights.WeightFiles(tmp_path)
    assert files.shapes == {key: p.shape for key, p in model.named_parameters()}
    for key, param in model.named_parameters():
        rows = [shard_rows(len(param), rank, 2) for rank in (0, 1)]
        assert torch.equal(torch.cat([files.read(key, *of_rank) for of_rank in rows]), param)


def test_only_this_ranks_rows_are_read(tmp_path, monkeypatch):
    model = random_model()
    save_model(model, tmp_path)
    asked = {}
    read = weights.WeightFiles.read

    def noted(self, name, *rows):
        asked[name] = rows
        return read(self, name, *rows)

    monkeypatch.setattr(weights.WeightFiles, "read", noted)
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)  # of which only rank 1 exists
    try:
        sharded = random_model()
        fully_shard(sharded, mesh=init_device_mesh("cpu", (4,)))
        fill(sharded, tmp_path)
        for key, param in sharded.named_parameters():
            start, stop = shard_rows(len(param), 1, 4)
            assert asked[key] == (start, stop)
            assert torch.equal(param.to_local(), model.get_parameter(key)[start:stop])
    finally:
        dist.destroy_process_group()


FSDP = """
import sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from nanotriton.transformer.model import Transformer
from nanotriton.transformer.weights import fill, load_config, save_model
dist.init_process_group("gloo")
with torch.device("meta"):
    model = Transformer(load_config(sys.argv[1]))
mesh = init_device_mesh("cpu", (2,))
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
model.to_empty(device="cpu")
fill(model, sys.argv[1])
save_model(model, sys.argv[2], shard_bytes=10_000)
dist.destroy_process_group()
"""


def test_fsdp_ranks_fill_their_rows_and_save_the_whole(tmp_path):
    save_model(random_model("qwen3"), tmp_path / "a", shard_bytes=10_000)
    command = [sys.executable, "-c", FSDP, str(tmp_path / "a"), str(tmp_path / "b")]
    env = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    ranks = [
        subprocess.Popen(command, env={**env, "RANK": str(r)}, stderr=subprocess.PIPE, text=True)
        for r in (0, 1)
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=120)
        assert rank.returncode == 0, errors[-2000:]
    for file in sorted((tmp_path / "a").iterdir()):
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name


def edit_json(name, **changes):
    def edit(folder):
        value = json.loads((folder / name).read_text())
        value |= changes
        (folder / name).write_text(json.dumps({k: v for k, v in value.items() if v is not None}))

    return edit


def edit_tensors(change):
    def edit(folder):
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return edit


def cut(folder):
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def index_names_a_missing_file(folder):
    resharded(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def twice(folder):
    resharded(folder)
    (folder / weights.INDEX).unlink()
    for path in folder.glob("model-*.safetensors"):
        append(path, {"lm_head.weight": torch.zeros(90, 32)})


def resharded(folder, *, keep: bool = False) -> dict[str, str]:
    """A folder with model.safetensors gets two shards and an index, which is returned."""
    tensors = load_file(folder / "model.safetensors")
    where = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(sorted(tensors))}
    for file in set(where.values()):
        part = {name: t for name, t in tensors.items() if where[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    (folder / weights.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    if not keep:
        (folder / "model.safetensors").unlink()
    return where


def append(path, more: dict[str, torch.Tensor]) -> None:
    save_file(load_file(path) | more, path, metadata={"format": "pt"})


def edit_index(**changes):
    def edit(folder):
        index = {"weight_map": resharded(folder) | changes}
        (folder / weights.INDEX).write_text(json.dumps(index))

    return edit


def shard_is_lost(folder):
    resharded(folder)
    (folder / weights.INDEX).unlink()
    (folder / "model-00001-of-00002.safetensors").unlink()


def renamed(*names):
    def edit(folder):
        data = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").unlink()
        for name in names:
            (folder / name).write_bytes(data)

    return edit


BROKEN = {
    "no config": (lambda f: (f / "config.json").unlink(), "no config.json"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), "cannot read"),
    "missing key": (edit_json("config.json", hidden_size=None), "config.json lacks hidden_size"),
    "model type": (
        edit_json("config.json", model_type="mamba"),
        "'mamba' is not supported; supported: llama, qwen2, qwen3",
    ),
    "rope type": (
        edit_json("config.json", rope_scaling={"rope_type": "su"}),
        "rope type 'su' is not supported; supported:",
    ),
    "sliding window": (edit_json("config.json", sliding_window=128), "sliding-window"),
    "moe": (edit_json("config.json", model_type="qwen3_moe"), "mixture-of-experts"),
    "missing tensor": (
        edit_tensors(lambda t: t.pop("model.norm.weight")),
        "tensor model.norm.weight is missing",
    ),
    "extra tensor": (
        edit_tensors(lambda t: t.update(a=torch.zeros(1), b=torch.zeros(1))),
        "tensor a and 1 more are not part",
    ),
    "wrong shape": (
        edit_json("config.json", vocab_size=91),
        r"has shape \[90, 32\], config.json says \[91, 32\]",
    ),
    "integers": (
        edit_tensors(lambda t: t.update({"model.norm.weight": torch.zeros(32, dtype=torch.int8)})),
        "is I8; supp",
    ),
    "truncated": (cut, "not a whole safetensors file"),
    "index": (index_names_a_missing_file, "names model-00002-of-00002.safetensors, which is missing"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no .safetensors file"),
    "words before all names": (
        edit_tensors(lambda t: [t.update({f"_orig_mod.{name}": t.pop(name)}) for name in list(t)]),
        "tensor lm_head.weight and 20 more are missing; it has _orig_mod.lm_head.weight",
    ),
    "end ids": (
        edit_json("generation_config.json", eos_token_id=[3, "5"]),
        r"eos_token_id is \[3, '5'\]; an id or",
    ),
    "in two files": (twice, "tensor lm_head.weight is in another file too"),
    "null in the index": (edit_index(**{"lm_head.weight": None}), "lm_head.weight is in null; the name of a"),
    "a path in the index": (
        edit_index(**{"lm_head.weight": "../x.safetensors"}),
        "the name of a file is exp",
    ),
    "the index is wrong": (
        edit_index(**{"lm_head.weight": "model-00002-of-00002.safetensors"}),
        "lm_head.weight is in model-00002-of-00002.safetensors, which has no such tensor",
    ),
    "an empty index": (lambda f: [resharded(f), (f / weights.INDEX).write_text("{}")], "no weight_map"),
    "a lost shard": (shard_is_lost, "model-00001-of-00002.safetensors is missing"),
    "two sets": (lambda f: resharded(f, keep=True), "holds weights twice: in model.safetensors, and in the"),
    "an adapter alone": (
        renamed("adapter_model.safetensors", "._x.safetensors"),
        "no .safetensors file of a whole model, only ._x.safetensors, adapter_model.safetensors",
    ),
    "consolidated alone": (renamed("consolidated.safetensors"), "of a whole model, only consolidated"),
    "several": (renamed("a.safetensors", "b.safetensors"), "which of a.safetensors, b.safetensors holds the"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_folders_are_one_clear_line(tmp_path, name):
    save_model(random_model(), tmp_path)
    break_it, message = BROKEN[name]
    break_it(tmp_path)
    with pytest.raises(ModelError, match=message) as error:
        load_model(tmp_path)
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


def loads(folder) -> bool:
    """Whether the folder's weights are random_model()'s, and transformers says so too."""
    transformers = pytest.importorskip("transformers")
    hf = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    ours, _ = load_model(folder)
    want = random_model().state_dict()
    return all(
        torch.equal(ours.state_dict()[name], t) and torch.equal(hf[name], t) for name, t in want.items()
    )


STRAYS = ["adapter_model.safetensors", "consolidated.safetensors", "._model.safetensors", "old.safetensors"]


@pytest.mark.parametrize("sharded", [False, True])
def test_files_beside_the_weights_do_no_harm(tmp_path, sharded):
    save_model(random_model(), tmp_path)
    if sharded:
        resharded(tmp_path)
    for name in STRAYS:
        save_file({"lm_head.weight": torch.zeros(90, 32)}, tmp_path / name, metadata={"format": "pt"})
    (tmp_path / "._model.safetensors").write_bytes(b"Mac OS X")  # AppleDouble
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "model.safetensors").write_bytes(b"cut")
    assert loads(tmp_path)


def test_the_index_decides_between_two_copies(tmp_path):
    """A shard that was used again holds what the index gives to another one, or to nobody."""
    save_model(random_model(), tmp_path)
    where = resharded(tmp_path)
    for file in set(where.values()):
        stale = {
            name: torch.zeros_like(t)
            for name, t in random_model().state_dict().items()
            if where[name] != file
        }
        stale["model.layers.9.old.weight"] = torch.zeros(3, dtype=torch.int8)
        append(tmp_path / file, stale)
    ours = load_model(tmp_path)[0].state_dict()
    assert all(torch.equal(ours[name], t) for name, t in random_model().state_dict().items())


def test_what_the_index_forgot_is_taken_if_there_is_one(tmp_path):
    save_model(random_model(), tmp_path)
    where = resharded(tmp_path)
    where.pop("lm_head.weight")
    (tmp_path / weights.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    assert loads(tmp_path)
    for file in set(where.values()):
        append(tmp_path / file, {"lm_head.weight": torch.zeros(90, 32)})
    with pytest.raises(ModelError, match=r"tensor lm_head.weight is missing"):
        load_model(tmp_path)


def test_an_old_index_beside_a_new_single_file(tmp_path):
    """Its shards are gone: the single file is the model. While they are there, one of the two is old."""
    save_model(random_model(), tmp_path)
    for file in set(resharded(tmp_path, keep=True).values()):
        (tmp_path / file).unlink()
    assert loads(tmp_path)


def test_a_tied_model_saved_with_its_head(tmp_path):
    save_model(random_model("tied"), tmp_path)
    edit_tensors(lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))(tmp_path)
    load_model(tmp_path)
    edit_tensors(lambda t: t["lm_head.weight"].add_(1))(tmp_path)
    with pytest.raises(ModelError, match=r"lm_head.weight differs from the embedding"):
        load_model(tmp_path)


def test_old_folders_with_rope_buffers(tmp_path):
    save_model(random_model(), tmp_path)
    edit_tensors(lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))(
        tmp_path
    )
    ours = load_model(tmp_path)[0].state_dict()
    assert all(torch.equal(ours[name], t) for name, t in random_model().state_dict().items())


def test_names_that_are_no_folder(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    for name, message in (
        ("/no/such", "no such folder"),
        ("nothing", "no such folder"),
        ("file", "not a folder"),
        ("runs/gone", "no such folder; a Hugging Face folder or a hub id, owner/name, is expected$"),
        ("./a/b", "no such folder; a Hugging"),
    ):
        with pytest.raises(ModelError, match=message):
            load_model(name)


def test_hub_id_without_a_network(tmp_path, monkeypatch):
    from huggingface_hub import constants, snapshot_download

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", functools.partial(snapshot_download, cache_dir=tmp_path)
    )
    with pytest.raises(
        weights.ModelError, match=r"^some-owner/some-model: no such folder, and the hub didn't give it: "
    ) as error:
        weights.find_folder("some-owner/some-model")
    assert "\n" not in str(error.value)


def test_hub_id_is_downloaded(tmp_path, monkeypatch):
    import huggingface_hub

    save_model(random_model(), tmp_path)
    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *a, **kw: asked.append((a, kw)) or str(tmp_path)
    )
    model, _ = load_model("some-owner/some-model")
    assert torch.equal(model.head_weight, random_model().head_weight)
    assert asked == [(("some-owner/some-model",), {"allow_patterns": weights.DOWNLOAD})]


def test_files_are_mapped_not_read(tmp_path):
    """What `read` returns is the page cache: a change of the file on disk shows through."""
    save_model(random_model(), tmp_path)
    tensor = weights.WeightFiles(tmp_path).read("model.norm.weight")
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        offset = os.path.getsize(tmp_path / "model.safetensors")
        header = int.from_bytes((tmp_path / "model.safetensors").read_bytes()[:8], "little")
        meta = json.loads((tmp_path / "model.safetensors").read_bytes()[8 : 8 + header])
        offset = 8 + header + meta["model.norm.weight"]["data_offsets"][0]
        assert file.get_tensor("model.norm.weight").shape == tensor.shape
    with open(tmp_path / "model.safetensors", "r+b") as file:
        file.seek(offset)
        file.write(torch.full((1,), 42.0).numpy().tobytes())
    assert tensor[0] == 42.0


@pytest.mark.skipif(
    "NANOTRITON_SMOLLM2" not in os.environ, reason="NANOTRITON_SMOLLM2 names no SmolLM2 folder"
)
def test_smollm2_says_paris():
    folder = os.environ["NANOTRITON_SMOLLM2"]
    model, config = load_model(folder)
    tokenizer = Tokenizer(folder)
    ids = tokenizer.encode(tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}]))
    for _ in range(9):
        ids.append(int(logits(model, torch.tensor(ids))[-1].argmax()))
    assert tokenizer.decode(ids).endswith("The capital of France is Paris.<|im_end|>\n")
    assert config.eos_token_ids == (2,)


def test_fill_converts_and_keeps_parameters(tmp_path):
    save_model(random_model(), tmp_path, dtype=torch.float16)
    model = Transformer(CONFIGS["llama"]).init_weights(1)
    before = {key: p.data_ptr() for key, p in model.named_parameters()}
    fill(model, tmp_path)
    assert {key: p.data_ptr() for key, p in model.named_parameters()} == before
    assert torch.equal(model.head_weight, random_model().head_weight.half().float())


def test_a_disk_that_is_full_is_told_by_the_file_and_the_reason(tmp_path):
    """safetensors' own writer raises what names no file, and is no OSError."""
    model, limits = random_model(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(OSError, match="too large") as error:
            save_model(model, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert users(error.value).startswith(f"{tmp_path}/model.safetensors.tmp can't be written: File too large")
