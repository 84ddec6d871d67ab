"""Tokenisation: the tiny policy's byte-level BPE, and chat turns as token ids for any tokenizer with a chat template.

A conversation grows by appending ids; what was sampled is never tokenised again. Text of an environment or a user is
encoded with special tokens disabled, so an observation that spells `<|end|>` cannot end a turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from jinja2 import TemplateError
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentbench_rl.types import AgentRLError

SPECIAL_TOKENS = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
_BYTES = 256
#: GPT-2's pre-tokeniser with single digits: "cabinet 12" is "cabinet", " 1", "2", so numbers share their pieces;
#: a mark such as " [SEP]", of which pages are full, can become one token.
_WORDS = r" ?\[\p{Lu}+\]| ?\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_MARK = "agentrl-placeholder-{}-text"
_Piece = str | int


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer with chat tokens; the same texts in the same order give the same bytes.

    The result has at most `vocabulary` tokens (fewer where the texts hold no more pairs).
    Raises AgentRLError when `vocabulary` cannot hold the bytes and the special tokens.
    """
    least = _BYTES + len(SPECIAL_TOKENS)
    if vocabulary < least:
        raise AgentRLError(
            f"vocabulary {vocabulary} is too small: bytes and special tokens alone need {least}; set vocabulary to more"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_WORDS), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    wrap: Any = PreTrainedTokenizerFast
    return wrap(  # type: ignore[no-any-return]
        tokenizer_object=tokenizer,
        pad_token=SPECIAL_TOKENS[0],
        eos_token=SPECIAL_TOKENS[1],
        additional_special_tokens=list(SPECIAL_TOKENS[2:]),
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


_CACHED_TEXTS = 1 << 16


class ChatCodec:
    """Chat turns to token ids and back for a tokenizer with a chat template.

    `end_id` is the token that ends an assistant turn in the template.
    Raises AgentRLError when the tokenizer has no chat template, or one whose assistant turns have no end token.
    """

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise AgentRLError(
                f"tokenizer {tokenizer.name_or_path!r} has no chat template; use an instruction-tuned model, "
                "or add chat_template.jinja to its directory"
            )
        self.tokenizer = tokenizer
        # Environments say the same sentences again and again; encoding one costs as much as an environment step.
        self._text_ids = lru_cache(_CACHED_TEXTS)(self._encode_text)
        self._specials = {token: int(id_) for token, id_ in self._special_ids().items()}
        names = sorted(self._specials, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(re.escape(name) for name in names) + ")")
        user, reply, after = (_MARK.format(i) for i in range(3))
        turns = [("user", user), ("assistant", reply), ("user", after)]
        rendered = self._render([{"role": role, "content": text} for role, text in turns])
        between, closing = rendered.split(reply, 1)[1].split(after, 1)
        self._between, self._closing = self._pieces(between), self._pieces(closing)
        ends = [index for index, piece in enumerate(self._between) if isinstance(piece, int)]
        if not ends:
            raise AgentRLError(
                f"the chat template of {tokenizer.name_or_path!r} ends assistant turns with no special token"
            )
        self._after_end = self._between[ends[0] + 1 :]
        self.end_id = int(self._between[ends[0]])

    def open(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the whole prompt of a conversation, the header of the next assistant turn included."""
        marked = [{"role": m["role"], "content": _MARK.format(i)} for i, m in enumerate(messages)]
        pieces: list[_Piece] = []
        rest = self._render(marked)
        for message, mark in zip(messages, marked, strict=True):
            if mark["content"] not in rest:
                raise AgentRLError(f"the chat template drops or reorders the {message['role']} message")
            before, rest = rest.split(mark["content"], 1)
            pieces += [*self._pieces(before), message["content"]]
        return self._encode([*pieces, *self._pieces(rest)])

    def follow(self, user_text: str, *, finished: bool) -> list[int]:
        """Return the ids between a sampled response and the next one; `finished`: the response holds its end token."""
        return self._encode([*(self._after_end if finished else self._between), user_text, *self._closing])

    def decode(self, ids: Sequence[int]) -> str:
        """Return a response's text without special tokens and outer white space."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    def encode_response(self, text: str) -> list[int]:
        """Return the ids of a written (not sampled) response, end token included."""
        return [*self._encode([text]), self.end_id]

    def _special_ids(self) -> dict[str, int]:
        added = self.tokenizer.added_tokens_decoder.items()
        return {token.content: id_ for id_, token in added if token.special}

    def _render(self, messages: list[dict[str, str]]) -> str:
        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except (TemplateError, ValueError) as error:
            roles = [message["role"] for message in messages]
            raise AgentRLError(
                f"the chat template of {self.tokenizer.name_or_path!r} refuses {roles}: {error}"
            ) from error

    def _pieces(self, template_text: str) -> list[_Piece]:
        return [self._specials.get(piece, piece) for piece in self._split.split(template_text) if piece]

    def _encode(self, pieces: Sequence[_Piece]) -> list[int]:
        """Encode text between special tokens as a whole, so that only special tokens cut it."""
        ids: list[int] = []
        for is_id, group in groupby(pieces, key=lambda piece: isinstance(piece, int)):
            if is_id:
                ids += [int(piece) for piece in group]
            elif text := "".join(str(piece) for piece in group):
                ids += self._text_ids(text)
        return ids

    def _encode_text(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
