"""The reference GPT: the published sizes, the published architecture."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import pytest
import torch

from ladle.errors import ConfigError, TokenError
from ladle.nn import GPT, GPT2, GPTConfig

SMALL = GPTConfig(vocab_size=11, block_size=8, layers=2, heads=2, width=8)


def batch(rows: int = 3, length: int = 8, vocab: int = 11) -> torch.Tensor:
    return torch.randint(0, vocab, (rows, length), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(
    ("name", "parameters", "table"),
    [
        ("gpt2", 124_439_808, 38_597_376),
        ("gpt2-medium", 354_823_168, 51_463_168),
        ("gpt2-large", 774_030_080, 64_328_960),
        ("gpt2-xl", 1_557_611_200, 80_411_200),
    ],
)
def test_published_sizes(name: str, parameters: int, table: int) -> None:
    model = GPT(GPT2[name], device="meta")
    assert model.num_parameters() == parameters
    assert model.embed.wte.weight.numel() == table


def test_names_are_gpt2s() -> None:
    names = list(GPT(replace(SMALL, layers=1), device="meta").state_dict())
    assert names == [
        "embed.wte.weight",
        "embed.wpe.weight",
        *(
            f"h.0.{name}"
            for name in [
                "ln_1.weight",
                "ln_1.bias",
                "attn.c_attn.weight",
                "attn.c_attn.bias",
                "attn.c_proj.weight",
                "attn.c_proj.bias",
                "ln_2.weight",
                "ln_2.bias",
                "mlp.c_fc.weight",
                "mlp.c_fc.bias",
                "mlp.c_proj.weight",
                "mlp.c_proj.bias",
            ]
        ),
        "ln_f.weight",
        "ln_f.bias",
    ]


def test_equal_to_the_architecture_written_out() -> None:
    """GPT-2 once more, in plain matrix products over the state dict: no module of ours, no fused attention."""
    model = GPT(SMALL, seed=7).double()
    with torch.no_grad():
        for p in model.parameters():  # weights large enough that every part matters, biases not zero
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()), dtype=p.dtype) * 0.3)
    w = {name: p.detach() for name, p in model.state_dict().items()}
    ids = batch()

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        spread = ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True)
        return (x - x.mean(-1, keepdim=True)) / (spread + 1e-5).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]

    def affine(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def gelu(x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    x = w["embed.wte.weight"][ids] + w["embed.wpe.weight"]
    past = torch.ones(8, 8, dtype=torch.bool).tril()
    for layer in range(2):
        q, k, v = affine(norm(x, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn").split(8, dim=-1)
        heads = []
        for head in (slice(0, 4), slice(4, 8)):
            scores = (q[..., head] @ k[..., head].transpose(1, 2) / 2.0).masked_fill(~past, -math.inf)
            heads.append(scores.softmax(-1) @ v[..., head])
        x = x + affine(torch.cat(heads, -1), f"h.{layer}.attn.c_proj")
        x = x + affine(gelu(affine(norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc")), f"h.{layer}.mlp.c_proj")
    want = norm(x, "ln_f") @ w["embed.wte.weight"].T
    logits, loss = model(ids, ids)
    assert torch.allclose(logits, want, atol=1e-10)
    picked = want.log_softmax(-1).gather(-1, ids[..., None])
    assert loss.item() == pytest.approx(-picked.mean().item(), rel=1e-12)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
def test_no_look_ahead(positions: str) -> None:
    model, ids = GPT(replace(SMALL, positions=positions)), batch()
    changed = ids.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 11
    one, two = model(ids)[0], model(changed)[0]
    assert torch.equal(one[:, :5], two[:, :5])
    assert not torch.allclose(one[:, 5:], two[:, 5:])


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
def test_given_positions_and_mask_equal_the_default_ones(positions: str) -> None:
    model, ids = GPT(replace(SMALL, positions=positions)), batch()
    counted = torch.arange(8).expand(3, 8)
    causal = torch.ones(8, 8, dtype=torch.bool).tril()
    assert torch.allclose(model(ids)[0], model(ids, positions=counted, attn_mask=causal)[0], atol=1e-6)


def test_mask_and_positions_make_two_segments_strangers() -> None:
    """Two documents in one row, each behind its own border, give what each gives alone: the seam packing needs."""
    model, ids = GPT(replace(SMALL, positions="rotary")), batch(rows=1)
    segment = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    mask = (segment[:, None, :, None] == segment[:, None, None, :]) & torch.ones(8, 8, dtype=torch.bool).tril()
    together = model(ids, positions=torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]]), attn_mask=mask)[0]
    alone = torch.cat((model(ids[:, :3])[0], model(ids[:, 3:])[0]), dim=1)
    assert torch.allclose(together, alone, atol=1e-6)


def test_rotary_knows_order_and_none_does_not_at_the_last_place() -> None:
    ids, swapped = torch.tensor([[1, 2, 3]]), torch.tensor([[2, 1, 3]])
    for positions, equal in (("rotary", False), ("none", True)):
        model = GPT(replace(SMALL, positions=positions, layers=1))
        assert torch.allclose(model(ids)[0][:, -1], model(swapped)[0][:, -1], atol=1e-6) is equal


def test_padding_changes_nothing_and_no_padded_id_can_win() -> None:
    plain, padded = GPT(SMALL, seed=3), GPT(replace(SMALL, pad_vocab_to=64), seed=3)
    with torch.no_grad():
        padded.embed.wte.weight[11:] = 100.0  # as loud as it can be
    ids = batch()
    (logits, loss), (wide, wide_loss) = plain(ids, ids), padded(ids, ids)
    assert wide.shape == (3, 8, 11)
    assert torch.allclose(logits, wide, atol=1e-6)
    assert torch.allclose(loss, wide_loss)
    wide_loss.backward()
    assert not padded.embed.wte.weight.grad[11:].any()


def test_initial_weights() -> None:
    model = GPT(GPTConfig(vocab_size=512, block_size=64, layers=8, heads=4, width=128))
    block = model.h[0]
    for weight, width in (
        (model.embed.wte.weight, 0.02),
        (model.embed.wpe.weight, 0.02),
        (block.attn.c_attn.weight, 0.02),
        (block.mlp.c_fc.weight, 0.02),
        (block.attn.c_proj.weight, 0.02 / 4),
        (block.mlp.c_proj.weight, 0.02 / 4),
    ):
        assert weight.std().item() == pytest.approx(width, rel=0.05)
    assert not block.attn.c_attn.bias.any()
    assert bool((block.ln_1.weight == 1).all())
    ids = batch(4, 64, 512)
    assert model(ids, ids.roll(1))[1].item() == pytest.approx(math.log(512), rel=0.05)


def test_seed_decides_and_no_global_state_moves() -> None:
    before = torch.get_rng_state()
    first, again, other = GPT(SMALL, seed=1), GPT(SMALL, seed=1), GPT(SMALL, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)]
    assert all(same)
    assert not torch.equal(first.h[1].mlp.c_fc.weight, other.h[1].mlp.c_fc.weight)


def test_loss_counts_only_what_counts() -> None:
    model, ids = GPT(SMALL), batch()
    targets = ids.roll(-1, 1)
    targets[:, 5:] = -1
    _, mean = model(ids, targets, ignore_index=-1)
    _, total = model(ids, targets, ignore_index=-1, reduction="sum")
    assert total.item() == pytest.approx(15 * mean.item(), rel=1e-6)
    nothing = torch.full_like(ids, -100)
    _, none = model(ids, nothing)
    assert none.item() == 0.0
    none.backward()
    assert all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in model.parameters())


def test_bad_targets_and_ids() -> None:
    model, ids = GPT(SMALL), batch()
    with pytest.raises(TokenError, match=r"target -100 at row 0, column 0: expected 0 <= target < 11"):
        model(ids, torch.full_like(ids, -100), ignore_index=-1)
    wrong = ids.clone()
    wrong[2, 7] = 11
    with pytest.raises(TokenError, match=r"target 11 at row 2, column 7: expected 0 <= target < 11"):
        model(ids, wrong)
    with pytest.raises(TokenError, match=r"id 11 at row 2, column 7: expected 0 <= id < 11"):
        model(wrong)
    with pytest.raises(ConfigError, match=r"targets: expected the ids' shape \(3, 8\), found \(3, 7\)"):
        model(ids, ids[:, :7])
    with pytest.raises(ConfigError, match="reduction: expected 'mean' or 'sum', found 'none'"):
        model(ids, ids, reduction="none")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers: expected >= 1, found 0"),
        ({"width": 10, "heads": 3}, r"width: expected a multiple of heads \(3\), found 10"),
        ({"dropout": 1.0}, "dropout: expected 0 <= dropout < 1, found 1.0"),
        ({"positions": "alibi"}, "positions: expected one of learned, sinusoidal, rotary, none, found 'alibi'"),
        ({"width": 6, "heads": 2, "positions": "rotary"}, "rotary positions need an even width a head, found 6 / 2 heads"),
    ],
)
def test_config_errors(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        replace(SMALL, **change)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_without_biases() -> None:
    assert not [name for name in GPT(replace(SMALL, bias=False), device="meta").state_dict() if name.endswith("bias")]


def test_autocast_keeps_the_loss_in_float32() -> None:
    model, ids = GPT(SMALL), batch()
    with torch.autocast("cpu", torch.bfloat16):
        logits, loss = model(ids, ids)
    assert logits.dtype == torch.bfloat16
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(model(ids, ids)[1].item(), rel=1e-2)


def test_dropout_only_while_training() -> None:
    model, ids = GPT(replace(SMALL, dropout=0.5)), batch()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert not torch.equal(model(ids)[0], model(ids)[0])
        model.eval()
        assert torch.equal(model(ids)[0], model(ids)[0])
