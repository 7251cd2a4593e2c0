"""The official OpenAI client: tools in /v1/chat/completions."""

import json

import pytest

ASK = [{"role": "user", "content": "I would like to book a table for two in Oslo."}]


def tool(name, properties):
    return {"type": "function", "function": {"name": name, "description": f"Does {name}", "parameters": {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}}}


TOOLS = [
    tool("book_table", {"people": {"type": "integer", "minimum": 1, "maximum": 9}, "city": {"enum": ["Oslo", "Rome"]}}),
    tool("say_weather", {"city": {"enum": ["Oslo", "Rome"]}, "tomorrow": {"type": "boolean"}}),
]


def ask(chatter, model, messages=ASK, **fields):
    return chatter.chat.completions.create(model=model, messages=messages, tools=TOOLS, **{"temperature": 0.8, "seed": 3, "max_tokens": 200, "parallel_tool_calls": False} | fields)


def check(call):
    arguments = json.loads(call.function.arguments)
    if call.function.name == "book_table":
        assert set(arguments) == {"people", "city"} and 1 <= arguments["people"] <= 9
    else:
        assert call.function.name == "say_weather"
        assert set(arguments) == {"city", "tomorrow"} and isinstance(arguments["tomorrow"], bool)
    assert arguments["city"] in ("Oslo", "Rome")
    assert call.id and call.type == "function"


def test_required_gives_a_valid_call(chatter, model):
    for seed in range(5):
        choice = ask(chatter, model, tool_choice="required", seed=seed).choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls
        for call in choice.message.tool_calls:
            check(call)


@pytest.mark.parametrize("name", ["book_table", "say_weather"])
def test_a_named_tool_is_the_one_called(chatter, model, name):
    choice = ask(chatter, model, tool_choice={"type": "function", "function": {"name": name}}).choices[0]
    assert [call.function.name for call in choice.message.tool_calls] == [name]
    check(choice.message.tool_calls[0])


def test_none_gives_no_call(chatter, model):
    choice = ask(chatter, model, tool_choice="none", max_tokens=30).choices[0]
    assert not choice.message.tool_calls and choice.message.content.strip()


def test_auto_gives_text_or_valid_calls(chatter, model):
    for seed in range(3):
        choice = ask(chatter, model, tool_choice="auto", seed=seed, max_tokens=60).choices[0]
        for call in choice.message.tool_calls or []:
            check(call)
        assert choice.message.tool_calls or choice.message.content


def test_streamed_calls_are_the_same_in_pieces(chatter, model):
    whole = ask(chatter, model, tool_choice="required").choices[0].message.tool_calls
    made, pieces, end = [], 0, None
    for chunk in ask(chatter, model, tool_choice="required", stream=True):
        for choice in chunk.choices:
            end = choice.finish_reason or end
            for part in choice.delta.tool_calls or []:
                if part.index == len(made):
                    assert part.id and part.function.name, "a call begins with its id and name"
                    made.append([part.function.name, ""])
                made[part.index][1] += part.function.arguments or ""
                pieces += bool(part.function.arguments)
    assert made == [[call.function.name, call.function.arguments] for call in whole]
    assert end == "tool_calls"
    assert pieces > len(made), "arguments come in pieces"


def test_a_result_leads_on(chatter, model):
    message = ask(chatter, model, tool_choice="required").choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "done"} for call in message.tool_calls]
    answer = ask(chatter, model, [*ASK, message.model_dump(exclude_none=True), *results], tool_choice="none", max_tokens=30)
    assert answer.choices[0].message.content
    alone = ask(chatter, model, tool_choice="none", max_tokens=30)
    assert answer.usage.prompt_tokens > alone.usage.prompt_tokens


def test_the_stream_helper_understands(chatter, model):
    with chatter.chat.completions.stream(model=model, messages=ASK, tools=[TOOLS[0] | {"function": TOOLS[0]["function"] | {"strict": True}}],
                                         tool_choice="required", temperature=0, max_tokens=200) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    check(final.choices[0].message.tool_calls[0])
