// The parts of the page that need no browser: Markdown to data, event streams, requests, receipts.

import assert from "node:assert/strict";
import { test } from "node:test";
import { serverEvents } from "../../crates/server/src/page/api.js";
import { readFile as read } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { readFile } from "../../crates/server/src/page/attachments.js";
import { Chat } from "../../crates/server/src/page/chat.js";
import { highlight } from "../../crates/server/src/page/highlight.js";
import { parseMath } from "../../crates/server/src/page/math.js";
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

/** The text of blocks or spans without their form. */
function plain(data) {
  if (Array.isArray(data)) return data.map(plain).join("");
  return data.text ?? data.tex ?? plain(data.spans ?? data.blocks ?? data.items ?? data.rows ?? []);
}

test("a list keeps its numbers, its depth and what lies in it", () => {
  const [list] = parseBlocks("3. a\n   - b\n\n     ```js\n     let c;\n     ```\n\n4. d\n   more");
  assert.equal(list.start, 3);
  assert.equal(list.items.length, 2);
  const [a, inner] = list.items[0].blocks;
  assert.equal(plain(a), "a");
  assert.equal(inner.kind, "list");
  assert.deepEqual(inner.items[0].blocks.map(({ kind }) => kind), ["paragraph", "code"]);
  assert.equal(inner.items[0].blocks[1].text, "let c;");
  assert.equal(plain(list.items[1].blocks[0]), "d\nmore");
  const [tasks] = parseBlocks("- [x] done\n- [ ] open\n- plain");
  assert.deepEqual(tasks.items.map(({ checked }) => checked), [true, false, null]);
  const [loose] = parseBlocks("- [x] done\n\n- open");
  assert.deepEqual(loose.items.map(({ blocks }) => plain(blocks)), ["done", "open"]);
});

test("tables keep their cells and how they are aligned", () => {
  const [table] = parseBlocks("| a | b |\n|:--|--:|\n| 1 | **2** |\n| 3 |");
  assert.deepEqual(table.align, ["left", "right"]);
  assert.deepEqual(table.header.map(plain), ["a", "b"]);
  assert.deepEqual(table.rows.map((row) => row.map(plain)), [["1", "2"], ["3", ""]]);
});

test("spans", () => {
  const kinds = (text) => parseSpans(text).map((span) => `${span.kind}:${plain(span)}`);
  assert.deepEqual(kinds("a **b** `c` *d* _e_ ~~f~~"), ["text:a ", "strong:b", "text: ", "code:c", "text: ", "emphasis:d", "text: ", "emphasis:e", "text: ", "strike:f"]);
  assert.equal(kinds("2*3*4 snake_case_name ** x").filter((kind) => kind.startsWith("strong")).length, 0);
  assert.deepEqual(kinds("snake_case_name"), ["text:snake_case_name"]);
  assert.deepEqual(kinds("``a`b`` and `c"), ["code:a`b", "text: and `c"]);
  assert.deepEqual(kinds("AT&amp;T &lt;b&gt;"), ["text:AT&T <b>"]);
  assert.equal(parseSpans("see https://a.b/c.")[1].href, "https://a.b/c");
});

test("math stands between its marks, and money is not math", () => {
  const kinds = (text) => parseSpans(text).map((span) => `${span.kind}:${plain(span)}`);
  assert.deepEqual(kinds("so $x^2$ and \\(y\\)"), ["text:so ", "math:x^2", "text: and ", "math:y"]);
  assert.deepEqual(kinds("$5 and $6, or 5 $ and 6 $"), ["text:$5 and $6, or 5 $ and 6 $"]);
  assert.deepEqual(kinds("`$x$`"), ["code:$x$"]);
  assert.deepEqual(parseBlocks("a\n\n$$\n\\frac{1}{2}\n$$\n\n\\[ b \\]"), [
    { kind: "paragraph", spans: [{ kind: "text", text: "a" }] }, { kind: "math", tex: "\\frac{1}{2}" }, { kind: "math", tex: "b" },
  ]);
});

test("formulas become MathML, and what is not known stays source", () => {
  const shape = ({ tag, text, children = [] }) => (text === undefined ? `${tag}(${children.map(shape).join(" ")})` : text);
  const show = (tex, display = false) => shape(parseMath(tex, display).children[0]);
  assert.equal(show("\\frac{a}{b}"), "mfrac(mrow(a) mrow(b))");
  assert.equal(show("x_1^2"), "msubsup(x 1 2)");
  assert.equal(show("f''(x)"), "mrow(msup(f ″) ( x ))".replace("″", "′′"));
  assert.equal(show("\\sum_{i=1}^n i", true), "mrow(munderover(∑ mrow(i = 1) n) i)");
  assert.equal(show("\\sum_{i=1}^n i"), "mrow(msubsup(∑ mrow(i = 1) n) i)");
  assert.equal(show("\\sqrt[3]{x}"), "mroot(mrow(x) 3)");
  assert.equal(show("\\mathbb{R}^n"), "msup(ℝ n)");
  assert.equal(show("\\begin{pmatrix} a & b \\\\ c & d \\end{pmatrix}"), "mrow(( mtable(mtr(mtd(a) mtd(b)) mtr(mtd(c) mtd(d))) ))");
  assert.equal(show("\\left[ 0, 1 \\right)"), "mrow([ 0 , 1 ))");
  for (const tex of ["\\unheardof{x}", "{{", "a}", "\\frac{a", "\\begin{pmatrix} a", "\\left( x", "{".repeat(500), "\\sqrt".repeat(5000)]) {
    assert.equal(parseMath(tex), null, tex.slice(0, 20));
  }
});

test("coloured code is the same code", () => {
  const code = "// a\nfn main() { let x = \"// no\"; 0x1f }\n/* open";
  for (const language of ["rust", "js", "py", "c", "sql", "sh", "go", "java", "unheard-of", ""]) {
    assert.equal(highlight(code, language).map(({ text }) => text).join(""), code, language);
  }
  const kinds = Object.fromEntries(highlight(code, "rust").map(({ kind, text }) => [text, kind]));
  assert.deepEqual([kinds["// a"], kinds.fn, kinds["\"// no\""], kinds["0x1f"], kinds["/* open"]], ["comment", "keyword", "string", "number", "comment"]);
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
  for (const text of ["*".repeat(50_000), "`".repeat(50_000), "> ".repeat(20_000), "[".repeat(50_000), "_a".repeat(30_000), "1. ".repeat(20_000), "**a ".repeat(10_000), "$$\n".repeat(5_000), "$a ".repeat(20_000), "| a ".repeat(20_000), "  - a\n".repeat(3_000)]) {
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
  assert.deepEqual(requestFields({ ...DEFAULTS, top_k: "40", min_p: "0.05", stop: "END\n\n###" }), { top_k: 40, min_p: 0.05, stop: ["END", "###"] });
  assert.throws(() => parseTools("{"), /not JSON/);
  assert.throws(() => parseTools("{}"), /list/);
});

test("a chat grows by deltas and is sent as it was said", () => {
  const chat = new Chat();
  chat.addUser("hi");
  const message = chat.addAnswer();
  assert.deepEqual(chat.wire(""), [{ role: "user", content: "hi" }]);
  assert.equal(chat.take(message, { role: "assistant", content: "" }), false);
  assert.equal(chat.take(message, { tool_calls: [{ index: 0, id: "c1", function: { name: "f", arguments: "" } }] }), true);
  chat.take(message, { tool_calls: [{ index: 0, function: { arguments: '{"a"' } }] });
  chat.take(message, { tool_calls: [{ index: 0, function: { arguments: ": 1}" } }] });
  chat.addToolResult("c1", "ok");
  const [system, , assistant, tool] = chat.wire("Be kind.");
  assert.equal(system.role, "system");
  assert.deepEqual(assistant.tool_calls, [{ id: "c1", type: "function", function: { name: "f", arguments: '{"a": 1}' } }]);
  assert.equal(tool.tool_call_id, "c1");
});

test("a changed message is a branch, and each branch keeps what follows it", () => {
  const chat = new Chat();
  const first = chat.addUser("one");
  chat.add({ role: "assistant", content: "1" });
  chat.addUser("more");
  const other = chat.addUser("two", [], first.parent);
  const said = () => chat.path().map(({ content }) => content);
  assert.deepEqual(said(), ["two"]);
  assert.deepEqual(chat.branches(other).map(({ content }) => content), ["one", "two"]);
  chat.show(first);
  assert.deepEqual(said(), ["one", "1", "more"]);
  const kept = Chat.from(JSON.parse(JSON.stringify(chat)));
  assert.deepEqual(kept.path(), chat.path());
  assert.equal(kept.title, "one");
  chat.drop(chat.path()[2]);
  assert.deepEqual(said(), ["one", "1"]);
});

test("what another program kept is not taken for a chat", () => {
  const message = { id: "a", parent: null, role: "user", content: "x" };
  assert.ok(Chat.from({ id: "1", messages: [message] }));
  for (const kept of [null, 3, {}, { id: "1" }, { id: "1", messages: [{}] }, { id: "1", messages: [null] }, { id: "1", messages: [{ ...message, parent: "a" }] }, { id: "1", messages: [{ ...message, content: 3 }] }]) {
    assert.equal(Chat.from(kept), null, JSON.stringify(kept));
  }
});

test("a file goes with its message in a fence that it cannot close", async () => {
  const chat = new Chat();
  const file = await readFile(new File(["a\r\n```js\nb\n```\n"], "x.js"));
  chat.addUser("What is this?", [file]);
  assert.equal(chat.wire("")[0].content, "x.js:\n\n````js\na\n```js\nb\n```\n````\n\nWhat is this?");
  assert.ok(chat.markdown().includes("````js"));
  await assert.rejects(readFile(new File([new Uint8Array([0xff, 0xfe, 0])], "x.bin")), /x\.bin is not a text file/);
  await assert.rejects(readFile(new File(["a\0b"], "y")), /not a text file/);
  await assert.rejects(readFile(new File([new Uint8Array(2 ** 20 + 1)], "big.txt")), /big\.txt has 1\.0 MiB/);
});

test("the bundled Markdown lexer is the published one", async () => {
  const published = await read(fileURLToPath(import.meta.resolve("marked")), "utf8");
  const bundled = await read(new URL("../../crates/server/src/page/vendor/marked.js", import.meta.url), "utf8");
  assert.equal(bundled.trimEnd(), published.replace(/\n\/\/# sourceMappingURL=.*\s*$/, "").trimEnd());
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
