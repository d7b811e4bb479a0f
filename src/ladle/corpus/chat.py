"""Chats to ids: messages written one after the other, and which of their tokens are learned.

Each message is `<|ROLE|>`, a line feed, its content, and an end: the end of text after what is learned (a line feed where the
tokenizer has none), a line feed after the rest. Each part is encoded by itself, so that the borders are exact to the token. The
contents and the ends of the roles that are trained are learned, nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from ladle.corpus.plan import ROLES
from ladle.errors import TextError

Ids = npt.NDArray[np.uint32]
Learned = npt.NDArray[np.bool_]


class Chat:
    """Writes messages. found: the roles that spoke so far, and whether any of what they said is learned."""

    def __init__(self, train_roles: tuple[str, ...], end_of_text: int | None, encode: Callable[[str], Ids]) -> None:
        """encode: markers of roles and line feeds to ids, each of them once."""
        self.found: dict[str, bool] = {}
        self._encode = cache(encode)
        self._known = {*ROLES, *train_roles}
        self._trained = set(train_roles)
        self._end = None if end_of_text is None else np.array([end_of_text], np.uint32)

    def encode(self, messages: object, where: str, encode_content: Callable[[str, str], Ids]) -> tuple[Ids, Learned, bytes]:
        """(ids, whether each is learned, the messages in canonical JSON). No messages give no ids.

        where: for messages, the record and its field. encode_content: a text, and where it stands, to its ids. Raises TextError
        naming the message.
        """
        if not isinstance(messages, list):
            raise TextError(f"{where}: expected a list of messages, found {type(messages).__name__}")
        ids, learned = [np.zeros(0, np.uint32)], [np.zeros(0, np.bool_)]
        for number, message in enumerate(messages):
            at = f"{where}[{number}]"
            role, content = self._checked(message, at)
            trained = role in self._trained
            self.found[role] = trained
            marker, body = self._encode(f"<|{role}|>\n"), encode_content(content, f"{at}: content")
            end = self._end if trained and self._end is not None else self._encode("\n")
            ids += marker, body, end
            learned += np.zeros(len(marker), np.bool_), np.full(len(body) + len(end), trained)
        known = json.dumps(messages, sort_keys=True, ensure_ascii=False).encode("utf-8", "surrogatepass")
        return np.concatenate(ids), np.concatenate(learned), known

    def check_trained(self) -> None:
        """Raise TextError if nobody who was to be learned ever spoke: every target would be masked."""
        if self.found and not any(self.found.values()):
            found = ", ".join(sorted(self.found))
            raise TextError(f"train_roles: expected messages of {', '.join(sorted(self._trained))}, found only those of {found}")

    def _checked(self, message: object, at: str) -> tuple[str, str]:
        """Its role and its content. Raises TextError."""
        if not isinstance(message, dict) or not {"role", "content"} <= set(message):
            found = (", ".join(map(repr, message)) or "none") if isinstance(message, dict) else type(message).__name__
            raise TextError(f"{at}: expected an object with 'role' and 'content', found {found[:200]}")
        role, content = message["role"], message["content"]
        for key, value in (("role", role), ("content", content)):
            if not isinstance(value, str):
                raise TextError(f"{at}: {key}: expected text, found {type(value).__name__}")
        if role not in self._known:
            raise TextError(
                f"{at}: role: expected one of {', '.join(sorted(self._known))}, found {role[:80]!r}; name it in train_roles to "
                f"learn it"
            )
        return role, content
