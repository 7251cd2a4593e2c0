"""The official OpenAI client: /v1/completions and /v1/responses; and the small endpoints beside them."""

import json

import httpx
import openai
import pytest

PROMPT = "Once upon a time there was a"


def complete(chatter, model, prompt=PROMPT, **fields):
    return chatter.completions.create(model=model, prompt=prompt, **{"temperature": 0, "max_tokens": 24} | fields)


def test_a_completion_streams_what_it_says_whole(chatter, model):
    whole = complete(chatter, model)
    assert whole.choices[0].text.strip() and whole.usage.completion_tokens <= 24
    streamed = "".join(c.choices[0].text for c in complete(chatter, model, stream=True) if c.choices)
    assert streamed == whole.choices[0].text


def test_several_prompts_are_answered_in_order(chatter, model):
    prompts = [PROMPT, "In the deep forest", "The king said"]
    together = complete(chatter, model, prompts)
    assert [c.index for c in together.choices] == [0, 1, 2]
    assert [c.text for c in together.choices] == [complete(chatter, model, p).choices[0].text for p in prompts]


def test_tokens_are_a_prompt_too(chatter, model, base):
    tokens = httpx.post(f"{base}/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    assert complete(chatter, model, tokens).choices[0].text == complete(chatter, model).choices[0].text


def test_completion_logprobs_fit(chatter, model):
    choice = complete(chatter, model, logprobs=2, max_tokens=6).choices[0]
    assert "".join(choice.logprobs.tokens).startswith(choice.text)
    assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.tokens) == len(choice.logprobs.top_logprobs)
    assert all(lp <= 0 for lp in choice.logprobs.token_logprobs)


def test_tokenize_and_detokenize_are_inverse(base):
    for text in (PROMPT, "Grüße, 世界 🦊\n\ttab", ""):
        tokens = httpx.post(f"{base}/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
        assert tokens["count"] == len(tokens["tokens"])
        assert httpx.post(f"{base}/detokenize", json={"tokens": tokens["tokens"]}).json()["prompt"] == text


def test_version_health_metrics_and_document_are_there(base):
    assert httpx.get(f"{base}/version").json()["version"]
    assert httpx.get(f"{base}/health/live").status_code == httpx.get(f"{base}/health/ready").status_code == 200
    assert "forerun:num_requests_running" in httpx.get(f"{base}/metrics").text
    document = httpx.get(f"{base}/openapi.json").json()
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/models",
                 "/tokenize", "/detokenize", "/health/live", "/health/ready", "/version"):
        assert path in document["paths"], path


def respond(chatter, model, **fields):
    return chatter.responses.create(model=model, **{"input": "Tell me a story about a fox.", "max_output_tokens": 40, "temperature": 0, "store": False} | fields)


def test_a_response_has_text_and_counts(chatter, model):
    response = respond(chatter, model)
    assert response.output_text.strip()
    assert response.status in ("completed", "incomplete")
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_a_response_says_what_a_chat_says(chatter, model):
    chat = chatter.chat.completions.create(model=model, messages=[{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello there."}],
                                           max_tokens=30, temperature=0)
    response = respond(chatter, model, instructions="Be kind.", input="Hello there.", max_output_tokens=30)
    assert response.output_text == chat.choices[0].message.content


def test_a_response_streams_typed_events_in_order(chatter, model):
    whole = respond(chatter, model)
    events = list(respond(chatter, model, stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type for e in events]
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert events[-1].response.output_text == whole.output_text
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens


def test_a_response_calls_functions(chatter, model):
    tools = [{"type": "function", "name": "book", "strict": True, "parameters": {
        "type": "object", "properties": {"people": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["people"], "additionalProperties": False}}]
    response = respond(chatter, model, tools=tools, tool_choice="required", parallel_tool_calls=False, max_output_tokens=200)
    call = next(item for item in response.output if item.type == "function_call")
    assert call.name == "book" and 1 <= json.loads(call.arguments)["people"] <= 9
    follow = [{"role": "user", "content": "Book."}, {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments},
              {"type": "function_call_output", "call_id": call.call_id, "output": "done"}]
    assert respond(chatter, model, input=follow, tools=tools, tool_choice="none").output_text
    deltas = [e for e in respond(chatter, model, tools=tools, tool_choice="required", parallel_tool_calls=False, max_output_tokens=200, stream=True)]
    arguments = "".join(e.delta for e in deltas if e.type == "response.function_call_arguments.delta")
    assert json.loads(arguments) == json.loads(call.arguments)


def test_a_response_keeps_a_schema(chatter, model):
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"], "additionalProperties": False}
    response = respond(chatter, model, text={"format": {"type": "json_schema", "name": "c", "schema": schema, "strict": True}}, max_output_tokens=100)
    assert json.loads(response.output_text)["colour"] in ("red", "blue")


@pytest.mark.parametrize("fields, names", [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"tools": [{"type": "computer_use_preview"}]}, "computer_use_preview"),
    ({"background": True}, "background"),
])
def test_what_a_response_cannot_do_is_refused_by_name(chatter, model, fields, names):
    with pytest.raises(openai.BadRequestError) as refused:
        respond(chatter, model, **fields)
    assert names in str(refused.value)


def test_nothing_is_stored_which_is_told(chatter, model):
    raw = chatter.responses.with_raw_response.create(model=model, input="Hi", max_output_tokens=4, store=True)
    assert raw.headers["x-forerun-notes"] == "ignored: store"
    assert raw.parse().store is False


def test_tools_of_another_server_are_ignored_and_told(chatter, model):
    raw = chatter.responses.with_raw_response.create(model=model, input="Hi", max_output_tokens=4, tools=[{"type": "web_search"}], text={"verbosity": "low"})
    assert raw.headers["x-forerun-notes"] == "ignored: tools[0], text.verbosity"
    assert raw.parse().output_text
