// The official OpenAI client of npm: chat, streams, tools, schemas, logprobs, responses, errors.

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.FORERUN_URL}v1`, apiKey: "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Tell me a story about a little fox." }];
const greedy = { model, messages, temperature: 0, max_tokens: 40 };
const tools = [{ type: "function", function: { name: "book", parameters: {
  type: "object", properties: { people: { type: "integer", minimum: 1, maximum: 9 }, city: { enum: ["Oslo", "Rome"] } }, required: ["people", "city"], additionalProperties: false } } }];

test("a stream says what the whole answer says", async () => {
  const whole = await client.chat.completions.create(greedy);
  assert.ok(whole.choices[0].message.content.trim());
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
  let said = "";
  let usage = null;
  for await (const chunk of await client.chat.completions.create({ ...greedy, stream: true, stream_options: { include_usage: true } })) {
    said += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(said, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
});

test("a stream can be given up", async () => {
  const stream = await client.chat.completions.create({ ...greedy, max_tokens: 3000, ignore_eos: true, stream: true });
  let pieces = 0;
  for await (const chunk of stream) {
    pieces += chunk.choices.length;
    if (pieces > 3) break;
  }
  assert.ok(stream.controller.signal.aborted);
  assert.ok((await client.chat.completions.create({ ...greedy, max_tokens: 4 })).choices[0].message.content, "the next answer comes");
});

test("tools are called with valid arguments, streamed or not", async () => {
  const asked = { ...greedy, tools, tool_choice: "required", max_tokens: 200 };
  const whole = await client.chat.completions.create(asked);
  const call = whole.choices[0].message.tool_calls[0];
  const given = JSON.parse(call.function.arguments);
  assert.equal(call.function.name, "book");
  assert.ok(given.people >= 1 && given.people <= 9 && ["Oslo", "Rome"].includes(given.city));
  const final = await client.chat.completions.stream(asked).finalChatCompletion();
  assert.equal(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
  assert.equal(final.choices[0].finish_reason, "tool_calls");
});

test("a schema is kept", async () => {
  const schema = { type: "object", properties: { colour: { enum: ["red", "blue"] }, count: { type: "integer", minimum: 0, maximum: 9 } }, required: ["colour", "count"], additionalProperties: false };
  for (const seed of [1, 2, 3]) {
    const answer = await client.chat.completions.create({ ...greedy, temperature: 1, seed, max_tokens: 100, response_format: { type: "json_schema", json_schema: { name: "thing", schema, strict: true } } });
    const thing = JSON.parse(answer.choices[0].message.content);
    assert.ok(["red", "blue"].includes(thing.colour) && Number.isInteger(thing.count));
  }
});

test("logprobs fit the text", async () => {
  const answer = await client.chat.completions.create({ ...greedy, max_tokens: 8, logprobs: true, top_logprobs: 3 });
  const entries = answer.choices[0].logprobs.content;
  assert.ok(Buffer.from(entries.flatMap(({ bytes }) => bytes)).toString().startsWith(answer.choices[0].message.content));
  for (const { logprob, top_logprobs: top } of entries) {
    assert.equal(top.length, 3);
    assert.equal(logprob, top[0].logprob);
  }
});

test("a response streams what it says whole", async () => {
  const asked = { model, input: "Tell me a story about a fox.", max_output_tokens: 30, temperature: 0, store: false };
  const whole = await client.responses.create(asked);
  assert.ok(whole.output_text.trim());
  let said = "";
  let last = null;
  for await (const event of await client.responses.create({ ...asked, stream: true })) {
    if (event.type === "response.output_text.delta") said += event.delta;
    last = event;
  }
  assert.equal(said, whole.output_text);
  assert.ok(["response.completed", "response.incomplete"].includes(last.type));
});

test("errors have their types", async () => {
  await assert.rejects(client.chat.completions.create({ ...greedy, temperature: -1 }), (error) => error instanceof OpenAI.BadRequestError && /temperature/.test(error.message));
  await assert.rejects(client.chat.completions.create({ ...greedy, colour: "red" }), (error) => error instanceof OpenAI.BadRequestError && /colour/.test(error.message));
  await assert.rejects(client.chat.completions.create({ ...greedy, model: "none" }), OpenAI.NotFoundError);
  const locked = new OpenAI({ baseURL: `${process.env.FORERUN_KEY_URL}v1`, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(locked.models.list(), OpenAI.AuthenticationError);
});
