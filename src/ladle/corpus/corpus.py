"""A corpus: a folder's splits, opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ladle.corpus.split import Split
from ladle.corpus.summary import Summary
from ladle.errors import ConfigError, LadleError

if TYPE_CHECKING:
    from ladle.tokens import Tokenizer


class Corpus:
    """Splits by name. Files are mapped when they are first read; close() or `with` lets go of them."""

    def __init__(
        self,
        *,
        path: Path,
        manifest: dict[str, Any],
        splits: dict[str, Split],
        fingerprint: Callable[[], str],
        tokenizer: Callable[[], Tokenizer | None],
        broken: Mapping[str, LadleError] | None = None,
        generation: int | None = None,
    ) -> None:
        """broken: splits of a foreign folder that cannot be read, and the error each raises when it is asked for.
        generation: as for `ladle.open`."""
        self.path = path
        self.manifest = manifest
        self.splits = splits
        self.summary: Summary | None = None  # what `prepare` did; None when the corpus was only opened
        self._fingerprint = fingerprint
        self._tokenizer = tokenizer
        self._broken = dict(broken or {})
        self._generation = generation

    def __reduce__(self) -> tuple[Callable[..., Corpus], tuple[Any, ...]]:
        """A corpus pickles as its place, and is opened anew where it arrives."""
        from ladle.corpus.open import reopened

        return reopened, (self.path.absolute(), self._generation, self.fingerprint)

    def __getitem__(self, name: str) -> Split:
        """A split by name. Raises ConfigError naming those there are, or the error that makes it unusable."""
        if name in self._broken:
            raise self._broken[name]
        if name not in self.splits:
            raise ConfigError(f"{self.path}: split: expected one of {', '.join(sorted(self.splits))}, found {name!r}")
        return self.splits[name]

    def __contains__(self, name: object) -> bool:
        return name in self.splits

    def __repr__(self) -> str:
        return f"Corpus({self.path}: {', '.join(f'{s.name} {s.num_tokens}' for s in self.splits.values())})"

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that made it, built when first asked for, or None when unknown."""
        return self._tokenizer()

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything the token streams depend on (hex); "sampled:..." for foreign files."""
        return self._fingerprint()

    def close(self) -> None:
        """Let go of every file. Reading a split afterwards raises ClosedError."""
        for split in self.splits.values():
            split.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
