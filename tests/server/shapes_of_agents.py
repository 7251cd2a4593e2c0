"""Requests of agents as fixtures: their shape, without their words.

What a client says is its own: texts, descriptions, ids, names of machines and days become placeholders. Fields, types, enumerations and
schemas stay, since they are what a server has to understand.
"""

import json

# Values of these keys are words, or name a session.
TEXTS = {"text", "content", "thinking", "description", "definition", "input", "output", "instructions", "user_id", "prompt_cache_key"}
IDS = {"id", "call_id", "tool_use_id"}
# Headers that say what a client expects.
HEADERS = {"anthropic-beta", "anthropic-version", "accept"}


def results(body):
    """What the client says that tools gave back."""
    if body is None:
        return []
    blocks = [block for message in body.get("messages", []) if isinstance(message["content"], list) for block in message["content"]]
    items = body.get("input", []) if isinstance(body.get("input"), list) else []
    return [part for part in blocks + items if part.get("type") in ("tool_result", "function_call_output", "custom_tool_call_output")]


class Shape:
    """Placeholders that are the same for the same value."""

    def __init__(self):
        self.ids = {}

    def of(self, value, key=None):
        if isinstance(value, dict):
            return self.object(value, key)
        if isinstance(value, list):
            return [self.of(item, None if isinstance(item, dict) else key) for item in value]
        if not isinstance(value, str):
            return value
        if key == "arguments":
            return self.arguments(value)
        if key in IDS:
            return self.ids.setdefault(value, f"id_{len(self.ids)}")
        if key in TEXTS or key == "client_metadata":
            return f"Text of {len(value)} characters." if value else ""
        return value

    def object(self, value, key):
        if key == "properties":
            # Names of arguments are no keys of the API.
            return {name: self.of(schema) for name, schema in value.items()}
        if key == "client_metadata":
            return {f"key_{i}": "Text." for i in range(len(value))}
        if key == "input":
            return {name: self.of(item, "text") for name, item in value.items()}
        return {name: self.of(item, name) for name, item in value.items()}

    def arguments(self, text):
        """The text of JSON stays the text of JSON; of one that broke off, the beginning."""
        try:
            return json.dumps({name: self.of(value, "text") for name, value in json.loads(text).items()})
        except (ValueError, AttributeError):
            return text[:1]


def record(folder, name, asked):
    """Writes the requests of one run."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = Shape()
    requests = []
    for noted in asked:
        headers = {key.lower(): value for key, value in noted["headers"].items() if key.lower() in HEADERS}
        requests.append({"path": noted["path"], "headers": headers, "body": shape.of(noted["body"])})
    (folder / f"{name}.json").write_text(json.dumps(requests, indent=1, ensure_ascii=False) + "\n")
