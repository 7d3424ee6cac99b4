"""Decodes tokens of byte-level tokenizers (GPT-2, Llama 3, Qwen, …), each of which is some bytes of a UTF-8 text.

The texts are those of the tokenizer's own `decode_batch`, in a quarter of the time of one of its threads; these make a
string of every token, and slow each other down.
"""

from collections.abc import Sequence
from typing import Any, Optional
from weakref import WeakKeyDictionary

from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

_LETTERS = {letter: byte for byte, letter in bytes_to_unicode().items()}
"""The byte for which a letter stands in a vocabulary."""


class ByteLevelDecoder:
    """The texts of a tokenizer's tokens, without special tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, added: dict[int, tuple[str, bool]]) -> None:
        """`added` are the tokens that were added to the vocabulary, and whether each is special."""
        self.added, self._tokenizer = added, tokenizer.backend_tokenizer
        self._special = {content for content, special in added.values() if special}
        self._bytes: list[bytes | None] = []  # by token; None = not yet known. A dict would take twice as long.

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast) -> Optional["ByteLevelDecoder"]:
        """The one of a tokenizer, which remembers the tokens it has seen; None if it is not byte-level."""
        backend: Any = tokenizer.backend_tokenizer
        if type(backend.decoder) is not ByteLevel:
            return None
        added = {index: (token.content, token.special) for index, token in backend.get_added_tokens_decoder().items()}
        decoder = _DECODERS.get(tokenizer)
        if decoder is None or decoder.added != added:
            decoder = _DECODERS[tokenizer] = cls(tokenizer, added)
        return decoder

    def decode(self, token_ids: Sequence[int]) -> str:
        """Their text; bytes that are no UTF-8 become replacement characters."""
        known = self._bytes
        try:
            text = b"".join([known[token] for token in token_ids])  # type: ignore[misc]  # None is a TypeError
        except (IndexError, TypeError):
            known += [None] * (max(token_ids) + 1 - len(known))
            for token in set(token_ids):
                if known[token] is None:
                    known[token] = self._bytes_of(token)
            return self.decode(token_ids)
        return text.decode(errors="replace")

    def _bytes_of(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None or token in self._special:
            return b""
        if all(letter in _LETTERS for letter in token):
            return bytes(_LETTERS[letter] for letter in token)
        return token.encode()  # one that was added, as it is


_DECODERS = WeakKeyDictionary[PreTrainedTokenizerFast, ByteLevelDecoder]()
