"""LangChain: an answer, a stream, a tool there and back, structured output."""

import sys

from typing import Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


@tool
def book(seats: int, city: Literal["Oakland", "Berkeley"]) -> str:
    """Book a table."""
    return f"a table for {seats} in {city}"


class Booking(BaseModel):
    """A table."""

    seats: int
    city: Literal["Oakland", "Berkeley"]


model = ChatOpenAI(model="tales-28m", base_url=f"{sys.argv[1]}/v1", api_key="none", temperature=0, max_tokens=120, stream_usage=True)
question = HumanMessage("I want to book a table for two in Oakland.")

answer = model.invoke([question])
assert answer.content and answer.usage_metadata["output_tokens"] > 0, answer

pieces = list(model.stream([question]))
whole = pieces[0]
for piece in pieces[1:]:
    whole += piece
assert whole.content == answer.content and len(pieces) > 2, (whole, answer)
assert whole.usage_metadata == answer.usage_metadata, (whole.usage_metadata, answer.usage_metadata)

with_tools = model.bind_tools([book], tool_choice="book", parallel_tool_calls=False, strict=True)
call = with_tools.invoke([question])
[called] = call.tool_calls
assert called["name"] == "book" and isinstance(called["args"]["seats"], int), called
result = book.invoke(called)
assert isinstance(result, ToolMessage), result
after = model.bind_tools([book]).invoke([question, call, result])
assert after.content or after.tool_calls, after

streamed = None
for piece in with_tools.stream([question]):
    streamed = piece if streamed is None else streamed + piece
assert streamed.tool_calls[0]["args"] == called["args"], streamed

for method in ["json_schema", "function_calling"]:
    booking = model.with_structured_output(Booking, method=method, strict=True).invoke([question])
    assert isinstance(booking, Booking), (method, booking)

print(f"{answer.content} {called['args']}")
