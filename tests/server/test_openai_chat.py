"""The official OpenAI client: /v1/chat/completions."""

import concurrent.futures
import json

import openai
import pydantic
import pytest

STORY = [{"role": "user", "content": "Tell me a story about a little fox."}]
GREEDY = {"temperature": 0, "max_tokens": 40}
SEEDED = {"temperature": 0.9, "seed": 7, "max_tokens": 40}


def ask(chatter, model, messages=STORY, **fields):
    return chatter.chat.completions.create(model=model, messages=messages, **fields)


def text(answer, choice=0):
    return answer.choices[choice].message.content


def test_an_answer_has_text_an_end_and_counts(chatter, model):
    answer = ask(chatter, model, **GREEDY)
    assert answer.object == "chat.completion" and answer.model == model and answer.id
    assert text(answer).strip()
    assert answer.choices[0].finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= 40
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.completion_tokens_details.reasoning_tokens == 0
    assert answer._request_id, "the request id is in a header"


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_stream_says_what_the_whole_answer_says(chatter, model, sampling):
    whole = ask(chatter, model, **sampling)
    chunks = list(ask(chatter, model, stream=True, stream_options={"include_usage": True}, **sampling))
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == text(whole)
    assert len([c for c in chunks if c.choices and c.choices[0].delta.content]) > 3, "it comes in pieces"
    assert chunks[0].choices[0].delta.role == "assistant"
    ends = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert ends == [whole.choices[0].finish_reason]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens and not chunks[-1].choices
    assert len({c.id for c in chunks}) == 1


def test_no_usage_comes_unasked(chatter, model):
    assert all(c.usage is None for c in ask(chatter, model, stream=True, **GREEDY))


def test_seeds_repeat_and_differ(chatter, model):
    first, again, other = (text(ask(chatter, model, **SEEDED | {"seed": seed})) for seed in (7, 7, 8))
    assert first == again != other


def test_length_ends_an_answer(chatter, model):
    for name in ("max_tokens", "max_completion_tokens"):
        answer = ask(chatter, model, temperature=0, extra_body={"ignore_eos": True}, **{name: 5})
        assert answer.usage.completion_tokens == 5 and answer.choices[0].finish_reason == "length"


def test_a_stop_string_ends_an_answer_before_it(chatter, model):
    whole = text(ask(chatter, model, **GREEDY))
    stop = whole.split()[4]
    answer = ask(chatter, model, stop=[stop, "never said"], **GREEDY)
    assert text(answer) == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_several_choices_are_the_answers_of_several_seeds(chatter, model):
    answer = ask(chatter, model, n=3, **SEEDED)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    alone = [text(ask(chatter, model, **SEEDED | {"seed": 7 + i})) for i in range(3)]
    assert [text(answer, i) for i in range(3)] == alone
    streamed = {0: "", 1: "", 2: ""}
    for chunk in ask(chatter, model, n=3, stream=True, **SEEDED):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert list(streamed.values()) == alone


def test_logprobs_fit_the_text(chatter, model):
    answer = ask(chatter, model, logprobs=True, top_logprobs=4, temperature=0, max_tokens=12)
    entries = answer.choices[0].logprobs.content
    said = b"".join(bytes(e.bytes) for e in entries).decode()
    assert said.startswith(text(answer))
    assert len(entries) in (answer.usage.completion_tokens, answer.usage.completion_tokens - 1)
    for entry in entries:
        top = [t.logprob for t in entry.top_logprobs]
        assert len(top) == 4 and top == sorted(top, reverse=True) and top[0] <= 0
        assert entry.logprob == top[0] and entry.token == entry.top_logprobs[0].token, "greedy takes the likeliest"


def test_streamed_logprobs_are_the_same(chatter, model):
    fields = {"logprobs": True, "top_logprobs": 2, "temperature": 0, "max_tokens": 8}
    whole = ask(chatter, model, **fields).choices[0].logprobs.content
    streamed = [e for c in ask(chatter, model, stream=True, **fields) if c.choices and c.choices[0].logprobs for e in c.choices[0].logprobs.content or []]
    assert streamed == whole


def test_a_bias_forbids_and_forces(chatter, model):
    entries = ask(chatter, model, logprobs=True, top_logprobs=1, temperature=0, max_tokens=6).choices[0].logprobs.content
    word = next(e.token for e in entries if e.token.strip().isalpha())
    import httpx
    token = httpx.post(f"{str(chatter.base_url).removesuffix('/v1/')}/tokenize", json={"prompt": word, "add_special_tokens": False}).json()["tokens"]
    assert len(token) == 1, f"{word!r} is one token"
    without = ask(chatter, model, logprobs=True, temperature=0, max_tokens=6, logit_bias={str(token[0]): -100}).choices[0].logprobs.content
    assert word not in [e.token for e in without]
    forced = ask(chatter, model, temperature=0, max_tokens=4, logit_bias={str(token[0]): 100})
    assert text(forced) == word * 4


def test_penalties_change_an_answer(chatter, model):
    plain = text(ask(chatter, model, **GREEDY | {"max_tokens": 120}, extra_body={"ignore_eos": True}))
    penalised = text(ask(chatter, model, **GREEDY | {"max_tokens": 120}, frequency_penalty=1.5, presence_penalty=1.0, extra_body={"ignore_eos": True}))
    assert plain != penalised
    assert len(set(penalised.split())) > len(set(plain.split())), "fewer words repeat"


class Animal(pydantic.BaseModel):
    model_config = {"extra": "forbid"}
    name: str = pydantic.Field(max_length=12)
    legs: int = pydantic.Field(ge=0, le=8)
    wild: bool


def test_a_schema_is_kept(chatter, model):
    for seed in range(5):
        answer = chatter.chat.completions.parse(model=model, messages=STORY, response_format=Animal, seed=seed, temperature=1.0, max_tokens=200)
        animal = answer.choices[0].message.parsed
        assert isinstance(animal, Animal) and 0 <= animal.legs <= 8
        assert answer.choices[0].finish_reason == "stop"


def test_json_mode_gives_objects(chatter, model):
    ended = 0
    for seed in range(6):
        answer = ask(chatter, model, response_format={"type": "json_object"}, seed=seed, temperature=0.7, max_tokens=300)
        if answer.choices[0].finish_reason == "stop":
            ended += 1
            assert isinstance(json.loads(text(answer)), dict)
        else:
            assert text(answer).lstrip().startswith("{")
    assert ended > 0


@pytest.mark.parametrize("kind, value, fits", [
    ("regex", r"[0-9]{3}-[0-9]{4}", lambda t: t[3] == "-" and t.replace("-", "").isdigit() and len(t) == 8),
    ("choice", ["red", "green", "blue"], lambda t: t in ("red", "green", "blue")),
    ("grammar", 'start: "a" ("b" | "c") "d"', lambda t: t in ("abd", "acd")),
])
def test_structured_outputs_fit(chatter, model, kind, value, fits):
    for seed in range(3):
        answer = ask(chatter, model, seed=seed, temperature=1.0, max_tokens=60, extra_body={"structured_outputs": {kind: value}})
        assert fits(text(answer)), text(answer)


def test_drafts_and_cache_change_nothing_but_the_receipt(chatter, model):
    def told(**extra):
        answer = ask(chatter, model, **SEEDED | {"max_tokens": 120}, extra_body={"ignore_eos": True, **extra})
        return text(answer), answer.timings["speculation"]["drafted"]
    plain, none = told(speculation="off", cache_prompt=False)
    drafted, some = told(speculation=4)
    auto, _ = told(speculation="auto")
    assert plain == drafted == auto
    assert none == 0 < some


def test_a_prompt_sent_again_comes_from_the_cache(chatter, model):
    messages = [{"role": "system", "content": "The brown hen sat by the gate. " * 40}, *STORY]
    first, again = ask(chatter, model, messages, **GREEDY), ask(chatter, model, messages, **GREEDY)
    assert text(first) == text(again)
    assert again.usage.prompt_tokens_details.cached_tokens >= 0.9 * again.usage.prompt_tokens
    cold = ask(chatter, model, messages, **GREEDY, extra_body={"cache_prompt": False})
    assert cold.usage.prompt_tokens_details.cached_tokens == 0 and text(cold) == text(first)


def test_eight_at_once_say_what_each_says_alone(chatter, model):
    bodies = [SEEDED | {"seed": seed, "max_tokens": 20 + 5 * seed} for seed in range(8)]
    alone = [text(ask(chatter, model, **body)) for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert [text(a) for a in pool.map(lambda body: ask(chatter, model, **body), bodies)] == alone


@pytest.mark.parametrize("fields, names", [
    ({"temperature": -1}, "temperature"),
    ({"top_p": 3}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"extra_body": {"colour": "red"}}, "colour"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"logprobs": True, "top_logprobs": 1000}, "top_logprobs"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}]}]}, "image_url"),
])
def test_what_cannot_be_is_refused_by_name(chatter, model, fields, names):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(chatter, model, **fields)
    body = refused.value.body
    assert names in body["message"] or names in (body["param"] or "")
    assert body["type"] == "invalid_request_error"


def test_a_prompt_over_the_context_is_refused(chatter, model):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(chatter, model, [{"role": "user", "content": "word " * 9000}])
    assert any(character.isdigit() for character in refused.value.message)


def test_an_unknown_model_is_not_found(chatter):
    with pytest.raises(openai.NotFoundError):
        ask(chatter, "no-such-model")


def test_keys(locked):
    with pytest.raises(openai.AuthenticationError):
        locked["openai"]("wrong").models.list()
    assert locked["openai"](locked["key"]).models.list().data


def test_models_can_be_retrieved(chatter, model):
    assert chatter.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError):
        chatter.models.retrieve("no-such-model")
