"""The official Anthropic client: /v1/messages and /v1/messages/count_tokens."""

import anthropic
import pytest

STORY = [{"role": "user", "content": "Tell me a story about a little fox."}]
TOOL = {"name": "book_table", "description": "Books a table", "input_schema": {
    "type": "object", "properties": {"people": {"type": "integer", "minimum": 1, "maximum": 9}, "city": {"enum": ["Oslo", "Rome"]}},
    "required": ["people", "city"], "additionalProperties": False}}


# The client has no argument for it.
GREEDY = {"temperature": 0}


def ask(claude, model, messages=STORY, extra_body=GREEDY, **fields):
    return claude.messages.create(model=model, messages=messages, extra_body=extra_body, **{"max_tokens": 40} | fields)


def text(message):
    return "".join(block.text for block in message.content if block.type == "text")


def check(block):
    assert block.name == "book_table" and block.id
    assert set(block.input) == {"people", "city"} and 1 <= block.input["people"] <= 9


def test_a_message_has_text_an_end_and_counts(claude, model):
    message = ask(claude, model)
    assert message.type == "message" and message.role == "assistant" and message.model == model
    assert text(message).strip()
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message.usage.input_tokens > 0 and 0 < message.usage.output_tokens <= 40
    assert message._request_id


def test_a_message_says_what_a_chat_says(claude, chatter, model):
    chat = chatter.chat.completions.create(model=model, messages=[{"role": "system", "content": "Be kind."}, *STORY], max_tokens=40, temperature=0)
    assert text(ask(claude, model, system="Be kind.")) == chat.choices[0].message.content
    blocks = ask(claude, model, [{"role": "user", "content": [{"type": "text", "text": STORY[0]["content"]}]}], system=[{"type": "text", "text": "Be kind."}])
    assert text(blocks) == chat.choices[0].message.content


def test_a_stream_says_what_the_whole_message_says(claude, model):
    whole = ask(claude, model)
    with claude.messages.stream(model=model, messages=STORY, max_tokens=40, extra_body=GREEDY) as stream:
        said = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(said) == text(whole) == text(final) and len(said) > 3
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_raw_events_come_in_their_order(claude, model):
    kinds = [event.type for event in ask(claude, model, stream=True) if event.type != "ping"]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_a_stop_sequence_ends_a_message_and_is_named(claude, model):
    whole = text(ask(claude, model))
    stop = whole.split()[4]
    message = ask(claude, model, stop_sequences=["never said", stop])
    assert text(message) == whole[: whole.index(stop)]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)


def test_any_gives_a_valid_call_and_a_result_leads_on(claude, model):
    message = ask(claude, model, tools=[TOOL], tool_choice={"type": "any", "disable_parallel_tool_use": True}, max_tokens=200)
    assert message.stop_reason == "tool_use"
    calls = [block for block in message.content if block.type == "tool_use"]
    assert calls
    for block in calls:
        check(block)
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": "done"} for block in calls]
    follow = [*STORY, {"role": "assistant", "content": [block.model_dump() for block in message.content]}, {"role": "user", "content": results}]
    answer = ask(claude, model, follow, tools=[TOOL], tool_choice={"type": "none"})
    assert text(answer)


def test_a_named_tool_streams_its_input(claude, model):
    fields = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "book_table"}, "max_tokens": 200}
    whole = next(b for b in ask(claude, model, **fields).content if b.type == "tool_use")
    with claude.messages.stream(model=model, messages=STORY, extra_body=GREEDY, **fields) as stream:
        pieces = [e.partial_json for e in stream if e.type == "input_json"]
        final = next(b for b in stream.get_final_message().content if b.type == "tool_use")
    assert len(pieces) > 1 and final.input == whole.input
    check(final)


def test_counting_agrees_with_using(claude, model):
    for fields in ({}, {"system": "Be kind."}, {"tools": [TOOL]}):
        counted = claude.messages.count_tokens(model=model, messages=STORY, **fields).input_tokens
        usage = ask(claude, model, max_tokens=1, **fields).usage
        used = usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
        assert counted == used


def test_a_cache_mark_is_read_again(claude, model):
    system = [{"type": "text", "text": "The grey goose flew over the hill. " * 40, "cache_control": {"type": "ephemeral"}}]
    first, again = ask(claude, model, system=system), ask(claude, model, system=system)
    assert text(first) == text(again)
    usage = again.usage
    assert usage.cache_read_input_tokens > 0.8 * (usage.input_tokens + usage.cache_read_input_tokens + (usage.cache_creation_input_tokens or 0))
    other = ask(claude, model, [{"role": "user", "content": "Something else."}], system=system)
    assert other.usage.cache_read_input_tokens > 200, "the marked part serves another question"


@pytest.mark.parametrize("fields, names", [
    ({"extra_body": {"temperature": -1}}, "temperature"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"extra_body": {"colour": "red"}}, "colour"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/x.png"}}]}]}, "image"),
])
def test_what_cannot_be_is_refused_by_name(claude, model, fields, names):
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(claude, model, **fields)
    body = refused.value.body
    assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
    assert names in body["error"]["message"]


def test_unknown_models_and_wrong_keys(claude, locked, model):
    with pytest.raises(anthropic.NotFoundError):
        ask(claude, "no-such-model")
    with pytest.raises(anthropic.AuthenticationError):
        ask(locked["anthropic"]("wrong"), model)
    assert text(ask(locked["anthropic"](locked["key"]), model, max_tokens=4))
