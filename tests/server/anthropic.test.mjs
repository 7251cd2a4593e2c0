// The official Anthropic client of npm: messages, streams, tools, counting, errors.

import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.FORERUN_URL.replace(/\/$/, ""), apiKey: "none", maxRetries: 0 });
const listed = await (await fetch(`${process.env.FORERUN_URL}v1/models`)).json();
const model = listed.data[0].id;
const asked = { model, messages: [{ role: "user", content: "Tell me a story about a little fox." }], max_tokens: 40, temperature: 0 };
const tools = [{ name: "book", input_schema: {
  type: "object", properties: { people: { type: "integer", minimum: 1, maximum: 9 } }, required: ["people"], additionalProperties: false } }];

const text = ({ content }) => content.filter(({ type }) => type === "text").map((block) => block.text).join("");

test("a stream says what the whole message says", async () => {
  const whole = await client.messages.create(asked);
  assert.ok(text(whole).trim());
  const stream = client.messages.stream(asked);
  let said = "";
  stream.on("text", (piece) => { said += piece; });
  const final = await stream.finalMessage();
  assert.equal(said, text(whole));
  assert.equal(text(final), text(whole));
  assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
});

test("a tool is called with valid input, streamed or not", async () => {
  const calling = { ...asked, tools, tool_choice: { type: "any", disable_parallel_tool_use: true }, max_tokens: 200 };
  const call = (message) => message.content.find(({ type }) => type === "tool_use");
  const whole = await client.messages.create(calling);
  assert.equal(whole.stop_reason, "tool_use");
  assert.ok(call(whole).input.people >= 1 && call(whole).input.people <= 9);
  assert.deepEqual(call(await client.messages.stream(calling).finalMessage()).input, call(whole).input);
});

test("counting agrees with using", async () => {
  const { max_tokens: _, temperature: __, ...counted } = asked;
  const { input_tokens: tokens } = await client.messages.countTokens(counted);
  const { usage } = await client.messages.create({ ...asked, max_tokens: 1 });
  assert.equal(tokens, usage.input_tokens + (usage.cache_read_input_tokens ?? 0) + (usage.cache_creation_input_tokens ?? 0));
});

test("errors have their types", async () => {
  await assert.rejects(client.messages.create({ ...asked, temperature: -1 }), (error) => error instanceof Anthropic.BadRequestError && /temperature/.test(error.message));
  await assert.rejects(client.messages.create({ ...asked, model: "none" }), Anthropic.NotFoundError);
  const locked = new Anthropic({ baseURL: process.env.FORERUN_KEY_URL.replace(/\/$/, ""), apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(locked.messages.create(asked), Anthropic.AuthenticationError);
});
