"""Agent traffic: conversations that grow by tool calls and results, with edited history and shared instructions.

A prompt token is re-sent when an earlier request of any conversation began with the same tokens up to it. At least 95 % of re-sent
tokens must come from the cache, and every answer must be the one given with the cache off.
"""

import argparse
import asyncio
import json
import random

import httpx
import traffic
from asking import Client
from serving import Checks, Server, show

INSTRUCTIONS = "You are a careful assistant who books tables. " + traffic.shared_prefixes()[1]


class Talk:
    """One conversation as an agent sends it: always whole, always longer, now and then with a changed past."""

    def __init__(self, seed):
        self.source = random.Random(seed)
        self.messages = [{"role": "system", "content": INSTRUCTIONS}]

    def next_request(self):
        last = self.messages[-1]
        if last["role"] == "assistant" and last.get("tool_calls"):
            for call in last["tool_calls"]:
                free = self.source.randrange(1, 9)
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps({"free_tables": free, "note": traffic.prose(self.source, 25)})})
        elif last["role"] != "user":
            users = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
            if len(users) > 2 and self.source.random() < 0.25:
                # Somebody edits an earlier question: what came after it is gone.
                at = self.source.choice(users[1:])
                self.messages = [*self.messages[:at], {"role": "user", "content": traffic.prose(self.source, 12)}]
            else:
                self.messages.append({"role": "user", "content": traffic.prose(self.source, self.source.randrange(5, 40))})
        body = {"messages": list(self.messages), "tools": [traffic.TOOL], "max_tokens": self.source.randrange(20, 60),
                "temperature": self.source.choice([0, 0.8]), "seed": self.source.randrange(1000)}
        if self.messages[-1]["role"] == "user" and self.source.random() < 0.5:
            body |= {"tool_choice": "required", "max_tokens": 120}
        else:
            body |= {"tool_choice": "auto"}
        return body

    def hear(self, answer):
        message = {"role": "assistant", "content": answer.text or None}
        if answer.calls.get(0):
            message["tool_calls"] = [{"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}} for c in answer.calls[0]]
        elif not answer.text:
            message["content"] = "…"
        self.messages.append(message)


def common(a, b):
    length = 0
    for x, y in zip(a, b):
        if x != y:
            break
        length += 1
    return length


async def run(server, checks, options):
    talks = [Talk(seed) for seed in range(options.talks)]
    seen, resent, served, cached_all, prompt_all, different, misses = [], 0, 0, 0, 0, [], []
    async with Client(server.url) as client, httpx.AsyncClient(base_url=server.url, timeout=300) as http:
        for turn in range(options.turns):
            for talk in talks:
                body = talk.next_request()
                told = await http.post("/tokenize", json={"messages": body["messages"], "tools": body["tools"]})
                told.raise_for_status()
                tokens = told.json()["tokens"]
                answer = await client.ask(body)
                if answer.error or answer.status != 200:
                    checks.that(f"turn {turn} is answered", False, answer.error)
                    return
                again = max((common(tokens, before) for before in seen), default=0)
                # The last token is always read: a model must read one to say the next.
                again = min(again, len(tokens) - 1)
                resent += again
                served += min(again, answer.cached)
                if answer.cached < again:
                    misses.append((turn, len(tokens), again, answer.cached, answer.timings.get("cache")))
                cached_all += answer.cached
                prompt_all += len(tokens)
                cold = await client.ask(traffic.alone(body))
                if cold.said() != answer.said():
                    different.append(f"{show(body)[:300]}:\n    cold {cold.said()}\n    cached {answer.said()}")
                seen.append(tokens)
                talk.hear(answer)
    count = options.turns * options.talks
    checks.that(f"{count} answers are the same with the cache off", not different, "\n".join(different[:2]))
    share = served / max(1, resent)
    checks.that("at least 95 % of re-sent prompt tokens come from the cache", share >= 0.95,
                f"{share:.1%} of {resent}; {cached_all} of {prompt_all} prompt tokens in all")
    for miss in misses[:10]:
        print("    turn {}: {} tokens, {} re-sent, {} cached, {}".format(*miss))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--talks", type=int, default=6)
    parser.add_argument("--turns", type=int, default=10)
    options = parser.parse_args()
    checks = Checks("agent: growing conversations with tools and edited history")
    with Server("--max-sequences", 4) as server:
        asyncio.run(run(server, checks, options))
    checks.finish()


if __name__ == "__main__":
    main()
