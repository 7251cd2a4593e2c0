"""The Agents SDK: a tool there and back, streamed and whole, by both of OpenAI's APIs."""

import asyncio
import sys

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)
asked = []


@function_tool
def book(seats: int) -> str:
    """Book a table."""
    asked.append(seats)
    return f"a table for {seats} is booked"


async def main():
    client = AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none")
    for kind in [OpenAIChatCompletionsModel, OpenAIResponsesModel]:
        asked.clear()
        settings = ModelSettings(tool_choice="book", temperature=0, max_tokens=120, parallel_tool_calls=False)
        # After its call the agent is free to answer.
        agent = Agent(name="Waiter", instructions="You book tables.", tools=[book], model=kind(model="tales-28m", openai_client=client), model_settings=settings)
        result = await Runner.run(agent, "A table for two, please.", max_turns=8)
        assert asked and isinstance(result.final_output, str), (kind, result)
        stream = Runner.run_streamed(agent, "A table for two, please.", max_turns=8)
        events = [event.type async for event in stream.stream_events()]
        assert "raw_response_event" in events and "run_item_stream_event" in events, events
        print(f"{kind.__name__}: {stream.final_output!r} after {len(asked)} calls")


asyncio.run(main())
