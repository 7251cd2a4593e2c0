// The parts of the page that need no browser: Markdown to data, event streams, requests, receipts.

import assert from "node:assert/strict";
import { test } from "node:test";
import { serverEvents } from "../../crates/server/src/page/api.js";
import { Conversation } from "../../crates/server/src/page/conversation.js";
import { parseBlocks, parseSpans } from "../../crates/server/src/page/markdown.js";
import { Receipt } from "../../crates/server/src/page/receipt.js";
import { DEFAULTS, parseTools, requestFields } from "../../crates/server/src/page/settings.js";

async function collect(pieces) {
  const events = [];
  for await (const data of serverEvents(pieces)) events.push(data);
  return events;
}

test("events come out the same however the stream is cut", async () => {
  const stream = ": hello\n\ndata: {\"a\": 1}\r\n\r\nevent: x\ndata: one\ndata:two\n\ndata: [DONE]\n\n";
  const whole = await collect([stream]);
  assert.deepEqual(whole, ['{"a": 1}', "one\ntwo", "[DONE]"]);
  for (let size = 1; size < stream.length; size += 1) {
    const pieces = stream.match(new RegExp(`[^]{1,${size}}`, "g"));
    assert.deepEqual(await collect(pieces), whole, `pieces of ${size}`);
  }
});

test("an event that never ended is not an event", async () => {
  assert.deepEqual(await collect(["data: half"]), []);
});

test("blocks", () => {
  const kinds = (text) => parseBlocks(text).map(({ kind }) => kind);
  assert.deepEqual(kinds("a\nb\n\nc"), ["paragraph", "paragraph"]);
  assert.deepEqual(kinds("# T\ntext\n- a\n- b\n1. c"), ["heading", "paragraph", "list", "list"]);
  assert.deepEqual(kinds("> a\n> b\n---\n"), ["quote", "rule"]);
  assert.deepEqual(kinds("```\na\n\nb\n```\nc"), ["code", "paragraph"]);
  assert.deepEqual(parseBlocks("~~~~py\n~~~\n~~~~")[0], { kind: "code", language: "py", text: "~~~", open: false });
  assert.equal(parseBlocks("```js\nlet a")[0].open, true);
});

test("a list keeps its numbers and its depth", () => {
  const [list] = parseBlocks("3. a\n   - b\n\n4. c\n   more");
  assert.equal(list.start, 3);
  assert.deepEqual(list.items.map(({ depth }) => depth), [0, 1, 0]);
  assert.equal(list.items[2].spans[0].text, "c more");
});

test("spans", () => {
  const kinds = (text) => parseSpans(text).map(({ kind, text: said }) => `${kind}:${said}`);
  assert.deepEqual(kinds("a **b** `c` *d* _e_"), ["text:a ", "strong:b", "text: ", "code:c", "text: ", "emphasis:d", "text: ", "emphasis:e"]);
  assert.deepEqual(kinds("2*3*4 snake_case_name ** x"), ["text:2*3*4 snake_case_name ** x"]);
  assert.deepEqual(kinds("``a`b`` and `c"), ["code:a`b", "text: and `c"]);
  assert.equal(parseSpans("see https://a.b/c.")[1].href, "https://a.b/c");
});

test("only http addresses become links", () => {
  for (const text of ["[x](javascript:alert(1))", "[x](data:text/html,1)", "javascript:alert(1)"]) {
    assert.ok(parseSpans(text).every(({ kind }) => kind !== "link"), text);
  }
});

test("no text of the source is lost", () => {
  const text = "One **two** three.\n\n- four\n  - five\n\n```\nsix\n```\n> seven\n\n# eight";
  const said = JSON.stringify(parseBlocks(text));
  for (const word of ["One", "two", "three", "four", "five", "six", "seven", "eight"]) assert.ok(said.includes(word), word);
});

test("text that grows never changes a block before the last", () => {
  const text = "# A\n\nsome *text* here\n\n1. x\n2. y\n\n```js\ncode\n```\n\n> quote\nend\n\n- a\n\n- b\n";
  let before = [];
  for (let length = 0; length <= text.length; length += 1) {
    const blocks = parseBlocks(text.slice(0, length)).map((block) => JSON.stringify(block));
    const settled = before.slice(0, -2);
    assert.deepEqual(blocks.slice(0, settled.length), settled, JSON.stringify(text.slice(0, length)));
    before = blocks;
  }
});

test("hostile text takes no hostile time", () => {
  for (const text of ["*".repeat(50_000), "`".repeat(50_000), "> ".repeat(20_000), "[".repeat(50_000), "_a".repeat(30_000), "1. ".repeat(20_000), "**a ".repeat(10_000)]) {
    const began = performance.now();
    parseBlocks(text);
    const took = performance.now() - began;
    assert.ok(took < 3000, `${text.slice(0, 8)}… took ${took} ms`);
  }
});

test("empty settings send nothing and set ones send their type", () => {
  assert.deepEqual(requestFields(DEFAULTS), {});
  assert.deepEqual(requestFields({ ...DEFAULTS, temperature: "0", seed: "7", thinking: "off", speculation: "4" }), { temperature: 0, seed: 7, enable_thinking: false, speculation: 4 });
  assert.deepEqual(requestFields({ ...DEFAULTS, speculation: "auto", tools: "[{}]" }), { speculation: "auto", tools: [{}] });
  assert.throws(() => parseTools("{"), /not JSON/);
  assert.throws(() => parseTools("{}"), /list/);
});

test("a conversation grows by deltas and is sent as it was said", () => {
  globalThis.localStorage = { setItem() {}, getItem: () => null };
  const talk = new Conversation();
  talk.addUser("hi");
  const message = talk.addAnswer();
  assert.deepEqual(talk.wire(""), [{ role: "user", content: "hi" }]);
  assert.equal(talk.take(message, { role: "assistant", content: "" }), false);
  assert.equal(talk.take(message, { tool_calls: [{ index: 0, id: "c1", function: { name: "f", arguments: "" } }] }), true);
  talk.take(message, { tool_calls: [{ index: 0, function: { arguments: '{"a"' } }] });
  talk.take(message, { tool_calls: [{ index: 0, function: { arguments: ": 1}" } }] });
  talk.addToolResult("c1", "ok");
  const [system, , assistant, tool] = talk.wire("Be kind.");
  assert.equal(system.role, "system");
  assert.deepEqual(assistant.tool_calls, [{ id: "c1", type: "function", function: { name: "f", arguments: '{"a": 1}' } }]);
  assert.equal(tool.tool_call_id, "c1");
});

test("a receipt prefers the server's numbers and marks its own", () => {
  const receipt = new Receipt(0);
  const say = () => Object.fromEntries(receipt.lines().map(({ label, value }) => [label, value]));
  receipt.note({}, true, 100);
  receipt.note({}, true, 200);
  receipt.note({}, true, 300);
  assert.deepEqual(say(), { speed: "~10.0 tok/s", "first token": "100 ms" });
  receipt.note({
    choices: [{ finish_reason: "length" }],
    usage: { prompt_tokens: 30, completion_tokens: 3, prompt_tokens_details: { cached_tokens: 16 } },
    timings: { predicted_per_second: 250.4, speculation: { drafted: 8, accepted: 6, accepted_at: [4, 2] } },
  }, false, 310);
  assert.deepEqual(say(), { answer: "3 tokens", speed: "250 tok/s", "first token": "100 ms", "drafts accepted": "75 %", cached: "16 of 30", ended: "length limit" });
});
