"""Mixed requests for the bundled model, the same for the same seed: lengths, sampling, grammars, tools, shared prefixes."""

import random

WORDS = ("the old miller walked down to the river and found a small boat tied to a willow tree while the wind carried the "
         "smell of bread from the village where children were singing about a king who had lost his crown in the snow").split()
OPENINGS = ["Tell me a story about a fox.", "Once upon a time", "I would like to book a table for two.", "What is the weather like?",
            "There lived in the forest", "Can you find me a flight to London?", "Say something about the sea."]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["fox", "bear", "owl"]},
        "friends": {"type": "array", "items": {"enum": ["cat", "dog"]}, "maxItems": 2},
    },
    "required": ["name", "age", "kind", "friends"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "find_table",
        "description": "Finds a free table",
        "parameters": {
            "type": "object",
            "properties": {"people": {"type": "integer", "minimum": 1, "maximum": 9}, "city": {"enum": ["Oslo", "Rome"]}},
            "required": ["people", "city"],
            "additionalProperties": False,
        },
    },
}


def prose(random_source, words):
    return " ".join(random_source.choice(WORDS) for _ in range(words))


def shared_prefixes():
    """A few long system prompts that many requests begin with."""
    source = random.Random(99)
    return [prose(source, words) for words in (60, 180, 400)]


def constrained(source):
    """A request whose answer must fit something."""
    kind = source.choice(["schema", "regex", "choice", "tool"])
    if kind == "schema":
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True}}}
    if kind == "regex":
        return {"structured_outputs": {"regex": "[a-z]{3,8}( [a-z]{2,6}){2,4}[.!]"}}
    if kind == "choice":
        return {"structured_outputs": {"choice": ["yes, of course", "no, never", "perhaps"]}}
    return {"tools": [TOOL], "tool_choice": "required"}


def sampled(source):
    """How an answer is chosen: greedily, or by a seed."""
    if source.random() < 0.4:
        return {"temperature": 0}
    fields = {"temperature": source.choice([0.5, 0.8, 1.0, 1.3]), "seed": source.randrange(10_000)}
    if source.random() < 0.3:
        fields["top_p"] = 0.9
    if source.random() < 0.2:
        fields["top_k"] = 20
    if source.random() < 0.2:
        fields["min_p"] = 0.05
    if source.random() < 0.2:
        fields["presence_penalty"] = 0.6
    if source.random() < 0.2:
        fields["frequency_penalty"] = 0.4
    if source.random() < 0.2:
        fields["repetition_penalty"] = 1.1
    return fields


def request(source, longest=80):
    """One mixed request: a path and a body."""
    opening = source.choice(OPENINGS)
    fields = {**sampled(source), "max_tokens": source.randrange(1, longest)}
    if source.random() < 0.15:
        fields["logit_bias"] = {str(source.randrange(300, 8000)): source.choice([-100, -5, 5])}
    if source.random() < 0.2:
        fields["stop"] = [source.choice([".", "the", "\n", " and "])]
    if source.random() < 0.1:
        fields["n"] = 2
    if source.random() < 0.2:
        return "/v1/completions", {"prompt": f"{prose(source, source.randrange(0, 120))} {opening}", **fields}
    messages = [{"role": "user", "content": opening}]
    if source.random() < 0.6:
        messages.insert(0, {"role": "system", "content": source.choice(shared_prefixes())})
    if source.random() < 0.3:
        messages += [{"role": "assistant", "content": prose(source, 20)}, {"role": "user", "content": prose(source, 8)}]
    if source.random() < 0.25:
        # A constrained answer needs room to end, and a stop string could end it early.
        fields = {k: v for k, v in fields.items() if k not in ("stop", "logit_bias")} | constrained(source) | {"max_tokens": 160}
    return "/v1/chat/completions", {"messages": messages, **fields}


def alone(body):
    """The request without anything that could make it faster."""
    return {**body, "speculation": "off", "cache_prompt": False}
