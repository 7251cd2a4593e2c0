"""Throughput and latency on the bundled model: 1 stream against 16, and a short request during a long prefill.

Numbers depend on the machine and on what else runs there; `--assert` turns the promises into checks.
"""

import argparse
import asyncio
import random
import statistics
import time

import streams as light
import traffic
from asking import Client
from serving import Checks, Server


def rate(server, streams, tokens, speculation):
    """Tokens per second of so many streams at once."""
    source = random.Random(streams)

    def body():
        return {"prompt": f"{traffic.prose(source, 12)}.", "max_tokens": tokens, "ignore_eos": True, "temperature": 0,
                "cache_prompt": False, "speculation": speculation}

    return light.rate(server.port, "/v1/completions", [body() for _ in range(streams)])


async def first_token(server, client, words):
    """Seconds to the first token of a short request while a prompt of so many words is read, and the mean step meanwhile."""
    source = random.Random(words)
    before = server.metrics()
    long = asyncio.create_task(client.ask({"prompt": traffic.prose(source, words), "max_tokens": 1, "cache_prompt": False}, "/v1/completions"))
    await asyncio.sleep(0.1)
    short = await client.ask({"prompt": "Once upon a time", "max_tokens": 1, "cache_prompt": False}, "/v1/completions")
    during = not long.done()
    await long
    after = server.metrics()
    steps = after.sum("step_seconds_count") - before.sum("step_seconds_count")
    step = (after.sum("step_seconds_sum") - before.sum("step_seconds_sum")) / max(1, steps)
    return short.must().first, step, during


async def run(server, checks, options):
    def judge(claim, holds, detail):
        if options.strict:
            checks.that(claim, holds, detail)
        else:
            checks.note(claim, detail)

    rate(server, 4, 32, "auto")
    # In turns, since a machine's speed changes from minute to minute.
    modes, counts = ("off", "auto"), (1, options.streams)
    rates = {(mode, streams): [] for mode in modes for streams in counts}
    for _ in range(options.rounds):
        for mode, streams in rates:
            rates[mode, streams].append(rate(server, streams, options.tokens, mode))
    for mode in modes:
        one, many = (statistics.median(rates[mode, streams]) for streams in counts)
        detail = f"{one:.0f} -> {many:.0f} tok/s, {many / one:.2f} x"
        judge(f"speculation {mode}: {options.streams} streams give at least 3 x one", many >= 3 * one, detail)
    for streams in counts:
        gain = statistics.median(auto / off for off, auto in zip(*(rates[mode, streams] for mode in modes)))
        judge(f"{streams} at a time: speculation auto is as fast as off", gain > 0.95, f"{gain:.2f} x")
    async with Client(server.url) as client:
        found = [await first_token(server, client, 3000) for _ in range(options.rounds * 3)]
        found = [(first, step) for first, step, during in found if during]
        if checks.that("short requests met a long prefill", bool(found)):
            first, step = statistics.median(f for f, _ in found), statistics.median(s for _, s in found)
            judge("first token of a short request within 2 steps of a long prefill", first < 2 * step,
                  f"{1e3 * first:.0f} ms, a step is {1e3 * step:.0f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--assert", dest="strict", action="store_true")
    options = parser.parse_args()
    checks = Checks("throughput: 1 stream against 16, first token during a prefill")
    with Server("--max-sequences", max(16, options.streams)) as server:
        asyncio.run(run(server, checks, options))
    checks.finish()


if __name__ == "__main__":
    main()
