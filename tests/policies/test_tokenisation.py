from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_policies import TEXTS, VOCABULARY
from transformers import PreTrainedTokenizerFast

from agentbench_rl.policies.tokenisation import SPECIAL_TOKENS, ChatCodec, train_tokenizer
from agentbench_rl.types import AgentRLError

_TOKENIZER = train_tokenizer(TEXTS, VOCABULARY)
_PLAIN = st.text(min_size=1).filter(lambda text: "<|" not in text)
# ChatML as Qwen2.5 renders it: a default system turn, and line feeds around the special tokens
_CHATML = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|system|>system\nYou are helpful.<|end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|user|>' + m['role'] + '\n' + m['content'] + '<|end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|user|>assistant\n' }}{% endif %}"
)


def _with_template(template: str | None) -> Any:
    copy = PreTrainedTokenizerFast(
        tokenizer_object=_TOKENIZER.backend_tokenizer,
        pad_token=SPECIAL_TOKENS[0],
        eos_token=SPECIAL_TOKENS[1],
        additional_special_tokens=list(SPECIAL_TOKENS[2:]),
    )
    copy.chat_template = template
    return copy


@pytest.mark.parametrize("tokenizer", [_TOKENIZER, _with_template(_CHATML)], ids=["tiny", "chatml"])
@settings(max_examples=40, deadline=None)
@given(texts=st.lists(_PLAIN, min_size=2, max_size=3), reply=_PLAIN, system=st.booleans())
def test_appending_turns_equals_tokenising_the_whole_conversation(
    tokenizer: Any, texts: list[str], reply: str, system: bool
) -> None:
    codec = ChatCodec(tokenizer)
    messages = [{"role": "system", "content": "Act."}] if system else []
    messages.append({"role": "user", "content": texts[0]})
    ids = codec.open(messages)
    for text in texts[1:]:
        ids += codec.encode_response("go to x") + codec.follow(text, finished=True)
        messages += [{"role": "assistant", "content": "go to x"}, {"role": "user", "content": text}]
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ids == tokenizer.encode(whole, add_special_tokens=False)


def test_an_unfinished_response_is_ended_before_the_next_turn(tokenizer: Any) -> None:
    codec = ChatCodec(tokenizer)
    assert codec.follow("ok", finished=False) == [codec.end_id, *codec.follow("ok", finished=True)]


@pytest.mark.parametrize("special", SPECIAL_TOKENS)
def test_special_tokens_spelled_by_an_observation_are_text(tokenizer: Any, special: str) -> None:
    codec = ChatCodec(tokenizer)
    text = f"a note says {special} and {special}{special}"
    controls = set(tokenizer.all_special_ids)
    in_prompt = [i for i in codec.open([{"role": "user", "content": text}]) if i in controls]
    in_turn = [i for i in codec.follow(text, finished=True) if i in controls]
    names = tokenizer.convert_ids_to_tokens
    assert names(in_prompt) == ["<|user|>", "<|end|>", "<|assistant|>"]
    assert names(in_turn) == ["<|user|>", "<|end|>", "<|assistant|>"]
    assert not controls & set(codec.encode_response(text)[:-1])


@settings(max_examples=40, deadline=None)
@given(text=st.text())
def test_any_text_survives_encoding_and_decoding(text: str) -> None:
    codec = ChatCodec(_TOKENIZER)
    assert codec.decode(codec.encode_response(text)) == text.strip()


def test_numbers_share_their_digits(tokenizer: Any) -> None:
    pieces = tokenizer.convert_ids_to_tokens(tokenizer.encode("fridge 12", add_special_tokens=False))
    assert pieces[-2:] == ["Ġ1", "2"]


def test_a_mark_between_parts_of_a_page_becomes_one_token() -> None:
    tokenizer = train_tokenizer([f"Back [SEP] item {i} [SEP] $5" for i in range(20)], VOCABULARY)
    assert tokenizer.tokenize("1 [SEP] 2")[1] == "Ġ[SEP]"


def test_training_is_a_function_of_the_texts() -> None:
    again = train_tokenizer(iter(TEXTS), VOCABULARY).backend_tokenizer.to_str()
    assert again == _TOKENIZER.backend_tokenizer.to_str()
    assert len(_TOKENIZER) == VOCABULARY


def test_a_vocabulary_without_room_for_bytes_is_refused() -> None:
    with pytest.raises(AgentRLError, match="vocabulary 200 is too small"):
        train_tokenizer(TEXTS, 200)


def test_a_tokenizer_without_chat_template_is_refused() -> None:
    with pytest.raises(AgentRLError, match="no chat template"):
        ChatCodec(_with_template(None))


def test_a_template_without_an_end_of_turn_is_refused() -> None:
    with pytest.raises(AgentRLError, match="no special token"):
        ChatCodec(_with_template("{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"))


def test_a_template_that_refuses_a_role_is_explained() -> None:
    template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + _CHATML
    codec = ChatCodec(_with_template(template))
    with pytest.raises(AgentRLError, match="no system"):
        codec.open([{"role": "system", "content": "x"}, {"role": "user", "content": "y"}])
