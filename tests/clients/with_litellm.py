"""litellm: chat, tools and streams as OpenAI's API, text completions, and Anthropic's Messages API."""

import json
import sys

import litellm

URL = sys.argv[1]
litellm.telemetry = False
TOOLS = [{"type": "function", "function": {"name": "book", "description": "Book a table.", "parameters": {"type": "object", "properties": {"seats": {"type": "integer"}}, "required": ["seats"], "additionalProperties": False}}}]
MESSAGES = [{"role": "user", "content": "I want to book a table for two."}]

for model, base in [("openai/tales-28m", f"{URL}/v1"), ("anthropic/tales-28m", URL)]:
    options = {"model": model, "api_base": base, "api_key": "none", "temperature": 0, "max_tokens": 120}
    answer = litellm.completion(messages=MESSAGES, **options)
    text = answer.choices[0].message.content
    assert text and answer.usage.completion_tokens > 0, answer
    pieces = [piece.choices[0].delta.content or "" for piece in litellm.completion(messages=MESSAGES, stream=True, **options)]
    assert "".join(pieces) == text, (pieces, text)
    forced = litellm.completion(messages=MESSAGES, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "book"}}, **options)
    [call] = forced.choices[0].message.tool_calls
    assert isinstance(json.loads(call.function.arguments)["seats"], int), call
    after = [*MESSAGES, forced.choices[0].message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "booked"}]
    assert litellm.completion(messages=after, tools=TOOLS, **options).choices[0].finish_reason, model
    print(f"{model}: {text!r} {call.function.arguments}")

told = litellm.text_completion(model="text-completion-openai/tales-28m", api_base=f"{URL}/v1", api_key="none", prompt="Once upon a time", max_tokens=10)
assert told.choices[0].text, told
