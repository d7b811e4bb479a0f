"""The input module: a look-up, and a sense of place."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ladle.errors import ConfigError, TokenError
from ladle.nn import Embedding, check_ids
from ladle.nn.positions import Sinusoidal, rotate, turns


def ids(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(list(rows))


def test_shape() -> None:
    assert Embedding(50257, 768)(ids([15496, 11, 466, 345], [1, 2, 3, 4])).shape == (2, 4, 768)


@given(st.lists(st.lists(st.integers(0, 10), min_size=3, max_size=3), min_size=1, max_size=4))
def test_look_up_equals_one_hot_times_the_matrix(rows: list[list[int]]) -> None:
    embed = Embedding(11, 5, positions="none", seed=3)
    hot = torch.nn.functional.one_hot(torch.tensor(rows), 11).float()
    assert torch.equal(embed(torch.tensor(rows)), hot @ embed.wte.weight)


def test_gradient_reaches_only_the_rows_used() -> None:
    embed = Embedding(6, 2, positions="none")
    embed(ids([1, 4, 1])).sum().backward()
    assert embed.wte.weight.grad is not None
    assert embed.wte.weight.grad.tolist() == [[0, 0], [2, 2], [0, 0], [0, 0], [1, 1], [0, 0]]


def test_learned_positions_add_their_rows_counted_or_given() -> None:
    embed = Embedding(10, 4, max_positions=3)
    x = ids([7, 7, 7])
    table = embed.wpe.weight
    assert torch.equal(embed(x)[0], embed.wte.weight[7] + table)
    given_ = embed(x, ids([0, 1, 0]))[0]
    assert torch.equal(given_, embed.wte.weight[7] + table[[0, 1, 0]])


def test_sinusoidal_by_hand() -> None:
    zeros = torch.zeros(1, 2, 4)
    waves = Sinusoidal().add(zeros, torch.tensor([0, 3]))[0]
    want = [[0.0, 1.0, 0.0, 1.0], [math.sin(3), math.cos(3), math.sin(0.03), math.cos(0.03)]]
    assert torch.allclose(waves, torch.tensor(want), atol=1e-6)


def test_sinusoidal_takes_odd_widths_and_any_length() -> None:
    assert Embedding(3, 5, positions="sinusoidal")(torch.zeros(1, 5000, dtype=torch.int64)).shape == (1, 5000, 5)


def test_rotary_adds_nothing_and_turns_by_the_distance() -> None:
    embed = Embedding(10, 8, positions="rotary", head_width=4)
    x = ids([1, 2, 3])
    assert torch.equal(embed(x), embed.wte(x))
    q, k = torch.randn(1, 1, 1, 4), torch.randn(1, 1, 1, 4)

    def product(i: int, j: int) -> float:
        return float((rotate(q, turns(torch.tensor([i]), 2)) * rotate(k, turns(torch.tensor([j]), 2))).sum())

    assert product(5, 3) == pytest.approx(product(12, 10), abs=1e-5)
    assert product(5, 3) != pytest.approx(product(5, 2), abs=1e-3)


def test_rotary_angles_by_hand() -> None:
    turned = rotate(torch.tensor([[[[1.0, 0.0, 0.0, 0.0]]]]), turns(torch.tensor([2]), 2))
    assert torch.allclose(turned[0, 0, 0], torch.tensor([math.cos(2), 0.0, math.sin(2), 0.0]))


def test_rotary_positions_given_per_row() -> None:
    embed = Embedding(10, 8, positions="rotary", head_width=4)
    x = ids([1, 2], [3, 4])
    counted, per_row = embed.angles(x), embed.angles(x, ids([0, 1], [0, 1]))
    assert counted is not None
    assert per_row is not None
    vectors = torch.randn(2, 2, 2, 4)
    assert torch.equal(rotate(vectors, counted), rotate(vectors, per_row))


def test_padded_table_keeps_the_logical_size_apart() -> None:
    plain, padded = Embedding(50257, 4, seed=1), Embedding(50257, 4, pad_vocab_to=64, seed=1)
    assert padded.wte.weight.shape == (50304, 4)
    assert padded.vocab_size == 50257
    assert torch.equal(padded.wte.weight[:50257], plain.wte.weight)
    assert not padded.wte.weight[50257:].any()
    assert torch.equal(padded.wpe.weight, plain.wpe.weight)
    with pytest.raises(TokenError, match=r"id 50257 at row 0, column 1: expected 0 <= id < 50257 \(the vocabulary's size\)"):
        padded(ids([1, 50257]))


@pytest.mark.parametrize("bad", [50257, -1, 2**40])
def test_id_out_of_range_says_which_and_where(bad: int) -> None:
    with pytest.raises(TokenError) as caught:
        Embedding(50257, 2)(ids([0, 1, 2], [3, 4, bad]))
    assert str(caught.value) == (
        f"id {bad} at row 1, column 2: expected 0 <= id < 50257 (the vocabulary's size); "
        "the batch and the model disagree: were they made with the same tokenizer?"
    )


def test_row_longer_than_the_table_names_both_lengths() -> None:
    with pytest.raises(ConfigError, match="a row of 9 tokens does not fit the position table of 8 rows"):
        Embedding(5, 2, max_positions=8)(torch.zeros(1, 9, dtype=torch.int64))


def test_position_outside_the_table() -> None:
    with pytest.raises(ConfigError, match=r"position 8 at row 0, column 1: expected 0 <= position < 8"):
        Embedding(5, 2, max_positions=8)(ids([0, 0]), ids([0, 8]))
    with pytest.raises(ConfigError, match=r"positions: expected the ids' shape \(1, 2\), found \(2,\)"):
        Embedding(5, 2)(ids([0, 0]), torch.tensor([0, 1]))


def test_ids_of_other_kinds() -> None:
    embed = Embedding(300, 2)
    assert torch.equal(embed(ids([1, 299]).to(torch.uint16)), embed(ids([1, 299])))
    with pytest.raises(ConfigError, match=r"ids: expected integers, found torch.float32"):
        embed(torch.zeros(1, 2))
    with pytest.raises(ConfigError, match=r"ids: expected two dimensions \(B, T\), found shape \(3,\)"):
        embed(torch.tensor([1, 2, 3]))


def test_sizes_and_kinds_are_checked() -> None:
    with pytest.raises(ConfigError, match="vocab_size: expected >= 1, found 0"):
        Embedding(0, 2)
    with pytest.raises(ConfigError, match="positions: expected one of learned, sinusoidal, rotary, none, found 'alibi'"):
        Embedding(4, 2, positions="alibi")


def test_check_ids_takes_an_empty_batch() -> None:
    check_ids(torch.zeros(0, 4, dtype=torch.int64), 1)


def test_no_global_random_state_moves_and_the_seed_decides() -> None:
    before = torch.get_rng_state()
    first, again, other = Embedding(9, 3, seed=1), Embedding(9, 3, seed=1), Embedding(9, 3, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.wte.weight, again.wte.weight)
    assert not torch.equal(first.wte.weight, other.wte.weight)
