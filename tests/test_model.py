"""The transformer against transformers on random weights, and what the rest of the code relies on."""

import pytest
import torch

from nanotriton.transformer.attention import packed
from nanotriton.transformer.model import Transformer, rope_frequencies
from nanotriton.transformer.model_config import ModelConfig, ModelError

transformers = pytest.importorskip("transformers")

LENGTHS = (30, 1, 57)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
CASES = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-bias": ("Llama", {"attention_bias": True}),
    "llama-mha": ("Llama", {"num_key_value_heads": 4}),
    "llama-llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("Llama", {"rope_parameters": YARN}),
    "llama-linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}},
    ),
    "qwen2": ("Qwen2", {}),
    "qwen3": (
        "Qwen3",
        {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
    ),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 24}),
    "smollm3": (
        "SmolLM3",
        {"no_rope_layers": [1, 0, 1], "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "qwen3-bias": ("Qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
}


def make_hf(name: str, **more):
    kind, extra = CASES[name]
    base = dict(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    config = getattr(transformers, f"{kind}Config")(**base | extra | more)
    torch.manual_seed(0)
    hf = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    # larger than the usual initialisation, so that attention and gates are far from flat
    with torch.no_grad():
        for p in hf.parameters():
            p.copy_(torch.randn_like(p) * 0.2 if p.ndim > 1 else 1 + 0.3 * torch.randn_like(p))
    return hf


def copy_of(hf, **kwargs) -> Transformer:
    model = Transformer(ModelConfig.from_hf(hf.config.to_dict()), **kwargs)
    model.load_state_dict({k: v for k, v in hf.state_dict().items() if k in model.state_dict()})
    return model


def pack(lengths=LENGTHS):
    torch.manual_seed(1)
    cu = torch.tensor([0, *lengths]).cumsum(0).int()
    return torch.randint(0, 97, (int(cu[-1]),)), torch.cat([torch.arange(n) for n in lengths]), cu


def logits(model: Transformer, ids, positions, cu, **kwargs):
    hidden = model(ids, positions, packed(cu, int(cu.diff().max()), **kwargs))
    return hidden.float() @ model.head_weight.float().T


def relative(a, b) -> float:
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("name", CASES)
def test_logits_and_gradients_match_transformers(name):
    hf, (ids, positions, cu) = make_hf(name), pack()
    model = copy_of(hf)
    want = torch.cat([hf(part[None]).logits[0] for part in ids.split(LENGTHS)])
    got = logits(model, ids, positions, cu)
    assert relative(got, want) < 1e-5
    for output in (got, want):
        torch.nn.functional.cross_entropy(output, ids.roll(-1)).backward()
    theirs = dict(hf.named_parameters())
    assert len(theirs) == len(list(model.parameters()))
    for key, param in model.named_parameters():
        # its true gradient is 0 (softmax ignores a shift), so there is only noise
        if not key.endswith("k_proj.bias"):
            assert relative(param.grad, theirs[key].grad) < 1e-4, key


@pytest.mark.parametrize("name", ["llama-yarn", "qwen3"])
def test_packed_equals_one_by_one(name):
    model, (ids, positions, cu) = copy_of(make_hf(name)), pack()
    together = logits(model, ids, positions, cu)
    alone = [
        logits(model, part, torch.arange(len(part)), torch.tensor([0, len(part)]).int())
        for part in ids.split(LENGTHS)
    ]
    assert relative(together, torch.cat(alone)) < 1e-6


def test_no_sequence_sees_another_or_its_own_future():
    model, (ids, positions, cu) = copy_of(make_hf("qwen3")), pack()
    before = logits(model, ids, positions, cu)
    ids[50] = (ids[50] + 1) % 97
    changed = (logits(model, ids, positions, cu) != before).any(-1)
    assert not changed[:50].any() and changed[50:].all()


@pytest.mark.parametrize("name", ["llama-tied", "qwen3"])
def test_checkpointing_changes_nothing(name):
    model, (ids, positions, cu) = copy_of(make_hf(name)), pack()
    grads = []
    for count in (0, 1, 2):
        model.checkpoint_layers = count
        model.zero_grad()
        logits(model, ids, positions, cu).square().mean().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for other in grads[1:]:
        assert all(torch.equal(a, b) for a, b in zip(grads[0], other, strict=True))


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_merged_projections_are_the_same_model(name):
    model, (ids, positions, cu) = copy_of(make_hf(name)), pack()
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    with torch.no_grad():
        want = logits(model, ids, positions, cu)
        model.merge_projections()
        after = dict(model.named_parameters())
        assert all(torch.equal(after[key], p) for key, p in before.items()) and len(after) == len(before)
        assert relative(logits(model, ids, positions, cu), want) < 1e-6
        for p in model.parameters():  # new weights, written where the old ones are
            p.copy_(p * 1.5)
        new = logits(model, ids, positions, cu)
    assert relative(new, want) > 1e-2
    # with gradients, each projection by itself
    assert relative(new, logits(model, ids, positions, cu).detach()) < 1e-6


def test_bf16_compute_keeps_fp32_masters_and_tables():
    hf, (ids, positions, cu) = make_hf("qwen3"), pack()
    exact = logits(copy_of(hf), ids, positions, cu)
    model = copy_of(hf, compute_dtype=torch.bfloat16)
    hidden = model(ids, positions, packed(cu, 57))
    hidden.float().square().mean().backward()
    assert hidden.dtype == torch.bfloat16
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters() if p.grad is not None)
    ours = relative(hidden.float() @ model.head_weight.T, exact)
    theirs = torch.cat([hf.bfloat16()(part[None]).logits[0].float() for part in ids.split(LENGTHS)])
    assert ours < 1.1 * relative(theirs, exact)
    model.to(torch.bfloat16)
    assert model.rope_tables(positions)[0].dtype == model.inv_freq.dtype == torch.float32


def test_head_runs_inside_the_forward():
    model, (ids, positions, cu) = copy_of(make_hf("llama-tied")), pack()
    hidden = model(ids, positions, packed(cu, 57))
    assert torch.equal(
        model(ids, positions, packed(cu, 57), head=lambda h, w: h @ w.T), hidden @ model.head_weight.T
    )
    assert model.head_weight is model.model.embed_tokens.weight


def test_init_weights_is_reproducible():
    a, b, c = (Transformer(ModelConfig(qk_norm=True)).init_weights(seed) for seed in (0, 0, 1))
    state = a.state_dict()
    assert all(torch.equal(state[k], v) for k, v in b.state_dict().items())
    assert not torch.equal(state["lm_head.weight"], c.state_dict()["lm_head.weight"])
    assert abs(state["model.layers.0.mlp.up_proj.weight"].std().item() - 0.02) < 1e-3
    assert abs(state["model.layers.0.mlp.down_proj.weight"].std().item() - 0.02 / 8**0.5) < 1e-3
    assert state["model.layers.0.self_attn.q_norm.weight"].eq(1).all()


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"attention_factor": 1.3},
        {"mscale": 0.7, "mscale_all_dim": 1.1},
        {"truncate": False},
        {"beta_fast": 20, "beta_slow": 2},
    ],
)
def test_yarn_options_match_transformers(extra):
    hf = make_hf("llama-yarn", rope_parameters=YARN | extra).model.rotary_emb
    inv, scale = rope_frequencies(
        ModelConfig.from_hf(make_hf("llama-yarn", rope_parameters=YARN | extra).config.to_dict())
    )
    torch.testing.assert_close(inv, hf.inv_freq, rtol=1e-6, atol=0)
    assert scale == pytest.approx(hf.attention_scaling, rel=1e-6)


HF_JSON = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
}


def test_config_reads_both_generations_of_rope_fields():
    rope = {k: v for k, v in LLAMA3.items() if k != "rope_theta"}
    old = ModelConfig.from_hf(HF_JSON | {"rope_theta": 500000.0, "rope_scaling": {**rope, "type": "llama3"}})
    new = ModelConfig.from_hf(HF_JSON | {"rope_parameters": LLAMA3})
    assert rope_frequencies(old)[0].tolist() == rope_frequencies(new)[0].tolist()
    assert ModelConfig.from_hf(HF_JSON | {"rope_scaling": None}).rope_scaling is None
    assert (
        ModelConfig.from_hf(HF_JSON | {"rope_scaling": {"type": "linear", "factor": 2.0}}).rope_scaling[
            "factor"
        ]
        == 2.0
    )


def test_config_eos_is_a_union():
    config = ModelConfig.from_hf(HF_JSON | {"eos_token_id": [5, 3]}, {"eos_token_id": [7, 5]})
    assert config.eos_token_ids == (5, 3, 7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported; supported: llama, qwen2, qwen3"),
        ({"model_type": None}, "lacks model_type"),
        ({"hidden_size": None, "vocab_size": None}, "lacks vocab_size, hidden_size"),
        ({"model_type": "qwen2"}, "lacks num_key_value_heads"),
        ({"vocab_size": "many"}, "vocab_size must be a positive integer, not 'many'"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "not a multiple"),
        ({"head_dim": 15}, "head_dim must be an even number from 2 to 256, not 15"),
        ({"head_dim": 320}, "head_dim must be an even number from 2 to 256, not 320"),
        (
            {"hidden_size": 4096, "num_attention_heads": 8},
            "head_dim must be an even number from 2 to 256, not 512",
        ),
        ({"head_dim": 64.0}, "not 64.0"),
        (
            {"rope_scaling": {"rope_type": "longrope"}},
            "rope type 'longrope' is not supported; supported: default, linear",
        ),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope type yarn needs a number for factor"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attn_factor": 0.8, "mscale_typo": 2}},
            "rope type yarn with attn_factor, mscale_typo is not supported; supported: factor, original_max",
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 32}},
            "rope type linear with beta_fast",
        ),
        ({"rope_scaling": {"rope_type": "default", "factor": 2.0}}, "rope type default with factor"),
        ({"logit_scale": 0.0625}, "logit_scale 0.0625 is not supported"),
        ({"residual_multiplier": 0.22}, "residual_multiplier 0.22 is not supported"),
        ({"logits_scaling": 8.0}, "logits_scaling"),
        ({"scale_emb": 12}, "scale_emb"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"query_pre_attn_scalar": 256}, "query_pre_attn_scalar"),
        (
            {"model_type": "mistral", "num_key_value_heads": 4},
            "sliding-window",
        ),  # transformers' default: 4,096
        (
            {"model_type": "smollm3", "num_key_value_heads": 4, "no_rope_layers": [1, 0, 1]},
            "no_rope_layers has 3 layers",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"sliding_window": 4096}, "sliding-window attention is not supported"),
        (
            {
                "model_type": "qwen2",
                "num_key_value_heads": 4,
                "sliding_window": 8,
                "use_sliding_window": True,
            },
            "sliding-window",
        ),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"model_type": "qwen3_moe"}, "mixture-of-experts models are not supported"),
        ({"num_local_experts": 8}, "mixture-of-experts"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"mlp_bias": True}, "mlp_bias 'True' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_what_is_not_built_is_named(change, message):
    with pytest.raises(ModelError, match=message) as error:
        ModelConfig.from_hf({k: v for k, v in (HF_JSON | change).items() if v is not None})
    assert "\n" not in str(error.value)


def test_scales_of_one_and_a_mistral_without_a_window_are_fine():
    neutral = {
        "logit_scale": 1.0,
        "residual_multiplier": None,
        "embedding_multiplier": 1,
        "rope_scaling": None,
    }
    assert ModelConfig.from_hf(HF_JSON | neutral).model_type == "llama"
    mistral = {"model_type": "mistral", "num_key_value_heads": 4, "sliding_window": None}
    config = ModelConfig.from_hf(HF_JSON | mistral)
    assert config.to_hf(torch.bfloat16)["sliding_window"] is None  # written, or transformers would take 4,096


def test_every_fourth_layer_of_smollm3_has_no_rope_unless_it_says_otherwise():
    raw = HF_JSON | {"model_type": "smollm3", "num_key_value_heads": 4, "num_hidden_layers": 8}
    assert ModelConfig.from_hf(raw).no_rope_layers == (1, 1, 1, 0, 1, 1, 1, 0)
    assert ModelConfig.from_hf(raw | {"no_rope_layer_interval": 2}).no_rope_layers == (1, 0) * 4
    assert ModelConfig.from_hf(raw).tie_word_embeddings  # transformers' default there
    assert ModelConfig.from_hf(raw | {"model_type": "qwen2"}).no_rope_layers == ()


def test_qwen2_with_an_unused_sliding_window_is_fine():
    unused = {
        "model_type": "qwen2",
        "num_key_value_heads": 2,
        "sliding_window": 4096,
        "use_sliding_window": False,
    }
    assert ModelConfig.from_hf(HF_JSON | unused).attention_bias
