"""Written markers are counted, wherever the pieces' borders lie."""

from hypothesis import given
from hypothesis import strategies as st

from ladle.tokens import END_OF_TEXT, MarkerCounter


def count(texts, marker=END_OF_TEXT):
    counter = MarkerCounter(marker)
    for pieces in texts:
        assert list(counter.watch(pieces)) == list(pieces)
    return counter.count


def test_a_marker_across_pieces_is_one():
    assert count([["see <|endof", "text|> here"]]) == 1
    assert count([list("<|endoftext|><|endoftext|>")]) == 2
    assert count([["", "<|endoftext|>", ""]]) == 1


def test_a_marker_across_two_texts_is_none():
    assert count([["see <|endof"], ["text|> here"]]) == 0


@given(
    text=st.text(st.sampled_from("ab"), max_size=30),
    borders=st.lists(st.integers(0, 30), max_size=6),
    marker=st.sampled_from(["a", "aa", "aba", "abab"]),
)
def test_any_borders_give_the_count_of_the_whole(text, borders, marker):
    borders = sorted(borders)
    pieces = [text[start:stop] for start, stop in zip([0, *borders], [*borders, 30], strict=True)]
    assert count([pieces], marker) == text.count(marker)
