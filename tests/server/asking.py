"""An asynchronous client that keeps what a test compares: text, calls, ends, counts, times."""

import dataclasses
import json
import time

import httpx


@dataclasses.dataclass
class Answer:
    status: int = 0
    error: str = ""
    texts: dict = dataclasses.field(default_factory=dict)
    reasoning: dict = dataclasses.field(default_factory=dict)
    calls: dict = dataclasses.field(default_factory=dict)
    finish: dict = dataclasses.field(default_factory=dict)
    usage: dict = dataclasses.field(default_factory=dict)
    timings: dict = dataclasses.field(default_factory=dict)
    first: float = 0.0
    took: float = 0.0
    cancelled: bool = False

    @property
    def text(self):
        return self.texts.get(0, "")

    @property
    def cached(self):
        return self.usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)

    def must(self):
        """The answer, or an end to the test that says why there is none."""
        if self.status != 200 or self.error:
            raise SystemExit(f"no answer ({self.status}): {self.error}")
        return self

    def said(self):
        """Everything that must not depend on load, cache or drafts."""
        calls = {i: [(c["name"], c["arguments"]) for c in made] for i, made in self.calls.items()}
        return {"texts": self.texts, "reasoning": self.reasoning, "calls": calls, "finish": self.finish,
                "tokens": self.usage.get("completion_tokens")}


class Client:
    def __init__(self, url, key=None, timeout=300):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self.http = httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout, limits=limits)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.http.aclose()

    async def ask(self, body, path="/v1/chat/completions", cancel_after=None):
        """One answer; `cancel_after` hangs up after so many pieces of text."""
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        answer, began = Answer(), time.monotonic()
        async with self.http.stream("POST", path, json=body) as response:
            answer.status = response.status_code
            if response.status_code != 200:
                answer.error = (await response.aread()).decode(errors="replace")
                return answer
            pieces = 0
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    answer.error = chunk["error"]["message"]
                    return answer
                if take(answer, chunk):
                    answer.first = answer.first or time.monotonic() - began
                    pieces += 1
                if cancel_after is not None and pieces >= cancel_after:
                    answer.cancelled = True
                    return answer
        answer.took = time.monotonic() - began
        return answer


def take(answer, chunk):
    """Adds a chunk to an answer; whether it brought text."""
    brought = False
    for choice in chunk.get("choices", []):
        index, delta = choice["index"], choice.get("delta", {})
        text = choice.get("text") or delta.get("content") or ""
        thought = delta.get("reasoning_content") or ""
        answer.texts[index] = answer.texts.get(index, "") + text
        answer.reasoning[index] = answer.reasoning.get(index, "") + thought
        for part in delta.get("tool_calls") or []:
            made = answer.calls.setdefault(index, [])
            while len(made) <= part["index"]:
                made.append({"id": "", "name": "", "arguments": ""})
            call, function = made[part["index"]], part.get("function", {})
            call["id"] = part.get("id") or call["id"]
            call["name"] += function.get("name") or ""
            call["arguments"] += function.get("arguments") or ""
        if choice.get("finish_reason"):
            answer.finish[index] = choice["finish_reason"]
        brought = brought or bool(text or thought or delta.get("tool_calls"))
    answer.usage = chunk.get("usage") or answer.usage
    answer.timings = chunk.get("timings") or answer.timings
    return brought
