"""Exactness under load: 32 clients at once; every answer equals the same request run alone without drafts and cache.

A cancelled answer must be the beginning of the whole one. Grammars must hold, JSON must be valid.
"""

import argparse
import asyncio
import json
import random
import time

import traffic
from asking import Client
from serving import Checks, Server, show, wait_idle


async def run(server, checks, options):
    source = random.Random(options.seed)
    asked = [traffic.request(source) for _ in range(options.requests)]
    # Half of the requests choose their own depth of drafting; none may matter.
    depths = [source.choice([None, "auto", "off", 1, 3, 6]) for _ in asked]
    cancels = [source.randrange(1, 20) if source.random() < 0.2 else None for _ in asked]
    async with Client(server.url) as client:
        began = time.monotonic()
        expected = [await client.ask(traffic.alone(body), path) for path, body in asked]
        print(f"  alone: {len(asked)} requests in {time.monotonic() - began:.1f} s", flush=True)
        refused = [(show(body)[:200], answer.error) for (_, body), answer in zip(asked, expected) if answer.error or answer.status != 200]
        checks.that("every request is answered alone", not refused, show(refused[:2]) if refused else "")

        queue = asyncio.Queue()
        for index in range(len(asked)):
            queue.put_nowait(index)
        answers = [None] * len(asked)

        async def worker():
            while not queue.empty():
                index = queue.get_nowait()
                path, body = asked[index]
                body = body if depths[index] is None else {**body, "speculation": depths[index]}
                answers[index] = await client.ask(body, path, cancels[index])

        began = time.monotonic()
        await asyncio.gather(*(worker() for _ in range(options.clients)))
        print(f"  together: {options.clients} clients in {time.monotonic() - began:.1f} s", flush=True)
    compare(checks, asked, expected, answers)


def compare(checks, asked, expected, answers):
    different, cut, cached, drafted = [], 0, 0, 0
    for (path, body), alone, crowd in zip(asked, expected, answers):
        if crowd.error:
            different.append(f"{show(body)[:300]}: {crowd.error}")
        elif crowd.cancelled:
            cut += 1
            for index, text in crowd.texts.items():
                if not alone.texts[index].startswith(text):
                    different.append(f"{path} {show(body)[:300]}: {text!r} does not begin {alone.texts[index]!r}")
        elif crowd.said() != alone.said():
            different.append(f"{path} {show(body)[:600]}:\n    alone {alone.said()}\n    crowd {crowd.said()}")
        cached += crowd.cached
        drafted += crowd.timings.get("speculation", {}).get("drafted", 0)
    checks.that(f"{len(asked)} answers are the same alone and together", not different, f"{len(different)} differ" if different else "")
    for line in different[:5]:
        print(f"    {line}")
    checks.that("some were cancelled, some cached, some drafted", cut > 0 and cached > 0 and drafted > 0,
                f"{cut} cancelled, {cached} tokens cached, {drafted} drafted")
    held, broken = 0, []
    for (_, body), answer in zip(asked, expected):
        if "response_format" in body or "tools" in body:
            texts = [answer.texts[i] for i in answer.texts] if "tools" not in body else [c["arguments"] for made in answer.calls.values() for c in made]
            if "tools" in body and not texts:
                broken.append(f"no call: {answer.said()}")
            for text in texts:
                held += 1
                try:
                    json.loads(text)
                except ValueError:
                    broken.append(text)
    checks.that("all JSON is valid", held > 0 and not broken, f"{held} texts{show(broken[:2]) if broken else ''}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=192)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-sequences", type=int, default=16)
    options = parser.parse_args()
    checks = Checks("load: 32 clients, exact answers")
    with Server("--max-sequences", options.max_sequences, "--queue", 512) as server:
        asyncio.run(run(server, checks, options))
        metrics = wait_idle(server)
        held = {name: metrics.sum(name) for name in ("num_requests_running", "num_requests_waiting", "kv_blocks_used", "slots_used")}
        checks.that("nothing is held afterwards", not any(held.values()), str(held))
    checks.finish()


if __name__ == "__main__":
    main()
