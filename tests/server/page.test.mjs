// The web page in a real browser, on a desktop and on a phone: send, stream, stop, settings, errors, keys.
//
// FORERUN_URL: a server without a key. FORERUN_KEY_URL, FORERUN_KEY: one that wants a key.
// CHROMIUM: the browser (default /usr/bin/chromium). SHOTS: a folder for pictures, if wanted.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, describe, test } from "node:test";
import { chromium } from "playwright-core";

const URL = process.env.FORERUN_URL;
const KEY_URL = process.env.FORERUN_KEY_URL;
const KEY = process.env.FORERUN_KEY;
const SHOTS = process.env.SHOTS;
const STORY = "Tell me a story about a little fox.";

let browser;
before(async () => {
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
});
after(() => browser?.close());

const SIZES = {
  desktop: { viewport: { width: 1200, height: 800 } },
  phone: { viewport: { width: 390, height: 760 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2 },
};

const QUESTIONS = "**/v1/chat/completions";

/**
 * Opens the page and collects whatever it complains about. Questions go through the test from the start: a browser told
 * to hand them over only when one is about to be sent lets some of them slip by.
 */
async function open(size, { url = URL, ...options } = {}) {
  const context = await browser.newContext({ ...SIZES[size], ...options });
  const page = await context.newPage();
  const complaints = [];
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("console", (message) => { if (message.type() === "error" && !message.text().includes("Failed to load resource")) complaints.push(message.text()); });
  page.on("request", (request) => { if (!request.url().startsWith(url)) complaints.push(`asked elsewhere: ${request.url()}`); });
  await alter(page, {});
  await page.goto(url);
  return { page, complaints, close: () => context.close() };
}

/** Changes what the page sends from now on (the newest route wins): the server is real, only the question differs. */
async function alter(page, fields) {
  await page.route(QUESTIONS, (route) => route.continue({ postData: JSON.stringify({ ...route.request().postDataJSON(), ...fields }) }));
}

async function send(page, text) {
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
}

const answers = (page) => page.locator(".message.assistant");
const lastText = (page) => answers(page).last().locator(".prose:not(.thought)").innerText();

/** Waits for the first words of an answer that is still being made. */
async function begun(page) {
  await answers(page).locator(".prose p").first().waitFor();
  assert.ok(await page.locator("#stop").isVisible(), "the answer was over before the test could look: make it longer");
}

async function finished(page) {
  await page.locator("#stop").waitFor({ state: "hidden", timeout: 60_000 });
}

async function shot(page, name) {
  if (SHOTS) await page.screenshot({ path: `${SHOTS}/${name}.png` });
}

for (const size of Object.keys(SIZES)) {
  describe(`on a ${size}`, () => {
    test("an answer streams in, and its receipt counts tokens", async () => {
      const { page, complaints, close } = await open(size);
      await page.locator('#health[data-state="ready"]').waitFor();
      await shot(page, `${size}-welcome`);
      assert.notEqual(await page.locator("#model").inputValue(), "", "the model is named");

      await alter(page, { ignore_eos: true, max_tokens: 4000, speculation: "off" });
      await send(page, STORY);
      await begun(page);
      const early = await lastText(page);
      await finished(page);
      const whole = await lastText(page);
      assert.ok(whole.length > early.length, `the text grew: ${early.length} to ${whole.length} characters`);
      assert.ok(whole.startsWith(early.trimEnd()), "text only grows at its end");
      const receipt = await answers(page).last().locator(".receipt").innerText();
      for (const word of ["tokens", "tok/s", "first token", "cached"]) assert.ok(receipt.includes(word), `${word} is missing in: ${receipt}`);
      await shot(page, `${size}-answer`);
      assert.deepEqual(complaints, []);
      await close();
    });

    test("stop ends the answer and keeps what came", async () => {
      const { page, complaints, close } = await open(size);
      await alter(page, { ignore_eos: true, max_tokens: 4000, speculation: "off" });
      await send(page, STORY);
      await begun(page);
      await page.getByLabel("Stop").click();
      await finished(page);
      const kept = await lastText(page);
      assert.ok(kept.length > 0);
      await page.waitForTimeout(300);
      assert.equal(await lastText(page), kept, "nothing comes after the stop");
      assert.match(await answers(page).last().locator(".notice").innerText(), /Stopped/);
      assert.deepEqual(complaints, []);
      await close();
    });

    test("settings are kept over a reload and sent with the next message", async () => {
      const { page, complaints, close } = await open(size);
      await page.getByLabel("Settings").first().click();
      await page.getByLabel("System prompt").fill("Be brief.");
      await page.getByLabel("Temperature").fill("0");
      await page.getByLabel("Longest answer, tokens").fill("12");
      await page.getByLabel("Seed").fill("7");
      await page.getByLabel("Top k").fill("20");
      await page.getByLabel("Min p").fill("0.1");
      await page.getByLabel("Repetition penalty").fill("1.1");
      await page.getByLabel("End before these strings").fill("END");
      await page.getByLabel("Speculation").selectOption("off");
      await shot(page, `${size}-settings`);
      await page.getByRole("button", { name: "Done" }).click();
      await page.reload();
      await page.getByLabel("Settings").first().click();
      assert.equal(await page.getByLabel("System prompt").inputValue(), "Be brief.");
      assert.equal(await page.getByLabel("Longest answer, tokens").inputValue(), "12");
      await page.keyboard.press("Escape");

      await alter(page, { ignore_eos: true });
      const asked = page.waitForRequest(QUESTIONS);
      await send(page, STORY);
      const body = (await asked).postDataJSON();
      assert.deepEqual(body.messages, [{ role: "system", content: "Be brief." }, { role: "user", content: STORY }]);
      assert.deepEqual([body.temperature, body.max_tokens, body.seed, body.speculation], [0, 12, 7, "off"]);
      assert.deepEqual([body.top_k, body.min_p, body.repetition_penalty, body.stop], [20, 0.1, 1.1, ["END"]]);
      await finished(page);
      assert.match(await answers(page).last().locator(".receipt").innerText(), /12 tokens/);
      assert.deepEqual(complaints, []);
      await close();
    });

    test("nothing is wider than the screen", async () => {
      const { page, close } = await open(size);
      await alter(page, { max_tokens: 20 });
      await send(page, `A long word: ${"abcdefgh".repeat(60)}`);
      await finished(page);
      const [inner, outer] = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
      assert.ok(inner <= outer, `${inner} > ${outer}`);
      await close();
    });
  });
}

describe("the conversation", () => {
  test("a second message sends the first exchange, and a reload keeps both", async () => {
    const { page, close } = await open("desktop");
    await alter(page, { max_tokens: 16, temperature: 0 });
    await send(page, STORY);
    await finished(page);
    const first = await lastText(page);
    const asked = page.waitForRequest(QUESTIONS);
    await send(page, "And then?");
    const { messages } = (await asked).postDataJSON();
    assert.deepEqual(messages.map(({ role }) => role), ["user", "assistant", "user"]);
    assert.equal(messages[1].content.trim().replace(/\s+/g, " "), first.trim().replace(/\s+/g, " "));
    await finished(page);
    await page.reload();
    assert.equal(await page.locator(".message").count(), 4);
    await close();
  });

  test("editing the last message replaces it and its answer", async () => {
    const { page, close } = await open("desktop");
    await alter(page, { max_tokens: 16 });
    await send(page, STORY);
    await finished(page);
    await page.getByRole("button", { name: "Edit" }).click();
    assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), STORY);
    const asked = page.waitForRequest(QUESTIONS);
    await send(page, "Tell me of a bear.");
    assert.deepEqual((await asked).postDataJSON().messages, [{ role: "user", content: "Tell me of a bear." }]);
    await finished(page);
    assert.equal(await page.locator(".message").count(), 2);
    await close();
  });

  test("regenerating asks the same again", async () => {
    const { page, close } = await open("desktop");
    await alter(page, { max_tokens: 16 });
    await send(page, STORY);
    await finished(page);
    const asked = page.waitForRequest(QUESTIONS);
    await page.getByRole("button", { name: "Regenerate" }).click();
    assert.deepEqual((await asked).postDataJSON().messages, [{ role: "user", content: STORY }]);
    await finished(page);
    assert.equal(await answers(page).count(), 1);
    await close();
  });

  test("any message can be changed, and both branches stay", async () => {
    const { page, complaints, close } = await open("desktop");
    await alter(page, { max_tokens: 12, temperature: 0 });
    await send(page, STORY);
    await finished(page);
    const first = await lastText(page);
    await send(page, "And then?");
    await finished(page);
    await page.getByRole("button", { name: "Edit" }).first().click();
    await send(page, "Tell me of a bear.");
    await finished(page);
    assert.equal(await page.locator(".message").count(), 2);
    assert.equal(await page.locator(".message.user .branch").innerText(), "2/2");
    await page.locator(".message.user").getByRole("button", { name: "The branch before" }).click();
    assert.equal(await page.locator(".message").count(), 4);
    assert.equal((await answers(page).first().locator(".prose:not(.thought)").innerText()), first);
    await page.reload();
    assert.equal(await page.locator(".message").count(), 4);
    assert.deepEqual(await page.locator(".message.user .prose:not(.thought)").allInnerTexts(), [STORY, "And then?"]);
    await page.getByRole("button", { name: "Regenerate" }).first().click();
    await finished(page);
    assert.equal(await answers(page).locator(".branch").innerText(), "2/2");
    assert.equal(await page.locator(".message").count(), 2);
    assert.deepEqual(complaints, []);
    await close();
  });

  test("a text file goes with a message, and other files are refused by name", async () => {
    const { page, complaints, close } = await open("desktop");
    await alter(page, { max_tokens: 8 });
    await page.locator("#file").setInputFiles([
      { name: "notes.md", mimeType: "text/markdown", buffer: Buffer.from("The fox is red.\n") },
      { name: "fox.png", mimeType: "image/png", buffer: Buffer.from([0x89, 0x50, 0x4e, 0x47, 0, 1]) },
    ]);
    await page.getByText("fox.png is not a text file").waitFor();
    assert.deepEqual(await page.locator("#files .chip").allInnerTexts(), ["notes.md\n×"]);
    await shot(page, "desktop-attached");
    const asked = page.waitForRequest(QUESTIONS);
    await send(page, "What colour?");
    assert.equal((await asked).postDataJSON().messages[0].content, "notes.md:\n\n```md\nThe fox is red.\n```\n\nWhat colour?");
    await finished(page);
    assert.equal(await page.locator("#files .chip").count(), 0);
    assert.equal(await page.locator(".message.user .file summary").innerText(), "notes.md");
    assert.deepEqual(complaints, []);
    await close();
  });

  test("a new chat starts empty", async () => {
    const { page, close } = await open("desktop");
    await alter(page, { max_tokens: 8 });
    await send(page, STORY);
    await finished(page);
    await page.getByLabel("New chat").click();
    assert.equal(await page.locator(".message").count(), 0);
    assert.ok(await page.locator("#welcome").isVisible());
    await close();
  });

  test("shift enter breaks the line and escape stops", async () => {
    const { page, close } = await open("desktop");
    const field = page.getByLabel("Message", { exact: true });
    await field.fill("one");
    await page.keyboard.press("Shift+Enter");
    await page.keyboard.type("two");
    assert.equal(await field.inputValue(), "one\ntwo");
    await alter(page, { ignore_eos: true, max_tokens: 4000, speculation: "off" });
    await page.keyboard.press("Enter");
    await begun(page);
    await page.keyboard.press("Escape");
    await finished(page);
    assert.match(await answers(page).last().locator(".notice").innerText(), /Stopped/);
    await close();
  });
});

describe("the list of chats", () => {
  /** Two chats, the second of which is shown. */
  async function twoChats(size) {
    const opened = await open(size);
    const { page } = opened;
    await alter(page, { max_tokens: 8 });
    await send(page, "Tell me of a hedgehog.");
    await finished(page);
    await page.getByLabel("New chat").click();
    await send(page, "Tell me of an owl.");
    await finished(page);
    if (size === "phone") {
      await page.getByRole("button", { name: "Chats" }).click();
      await page.locator("#search").waitFor({ state: "visible" });
    }
    return opened;
  }
  const titles = (page) => page.locator("#chat-list .title").allInnerTexts();

  for (const size of Object.keys(SIZES)) {
    test(`keeps every chat, finds words in them and opens them, on a ${size}`, async () => {
      const { page, complaints, close } = await twoChats(size);
      assert.deepEqual(await titles(page), ["Tell me of an owl.", "Tell me of a hedgehog."]);
      await shot(page, `${size}-chats`);
      await page.getByLabel("Search chats").fill("HEDGE");
      assert.deepEqual(await titles(page), ["Tell me of a hedgehog."]);
      await page.locator("#chat-list .title").first().click();
      assert.equal(await page.locator(".message.user .prose:not(.thought)").innerText(), "Tell me of a hedgehog.");
      await page.reload();
      assert.equal(await page.locator(".message.user .prose:not(.thought)").innerText(), "Tell me of a hedgehog.");
      assert.equal((await titles(page)).length, 2);
      assert.deepEqual(complaints, []);
      await close();
    });

    test(`renames, deletes and takes a deletion back, on a ${size}`, async () => {
      const { page, complaints, close } = await twoChats(size);
      await page.getByRole("button", { name: "Rename" }).click();
      await page.getByLabel("Name of the chat").fill("Night birds");
      await page.keyboard.press("Enter");
      assert.deepEqual(await titles(page), ["Night birds", "Tell me of a hedgehog."]);
      await page.getByRole("button", { name: "Delete" }).click();
      assert.deepEqual(await titles(page), ["Tell me of a hedgehog."]);
      assert.equal(await page.locator(".message").count(), 0);
      await page.getByRole("button", { name: "Undo" }).click();
      assert.deepEqual(await titles(page), ["Night birds", "Tell me of a hedgehog."]);
      assert.equal(await page.locator(".message.user .prose:not(.thought)").innerText(), "Tell me of an owl.");
      assert.deepEqual(complaints, []);
      await close();
    });
  }

  test("saves a chat as a file", async () => {
    const { page, close } = await twoChats("desktop");
    const answer = await lastText(page);
    for (const format of ["md", "json"]) {
      const saved = page.waitForEvent("download");
      await page.getByRole("button", { name: `Save .${format}` }).click();
      const download = await saved;
      assert.equal(download.suggestedFilename(), `tell-me-of-an-owl.${format}`);
      const text = await readFile(await download.path(), "utf8");
      if (format === "json") assert.equal(JSON.parse(text).messages.length, 2);
      else assert.ok(text.startsWith("# Tell me of an owl.\n\n## You\n\nTell me of an owl.\n\n## Model\n\n"), text);
      assert.ok(text.includes(answer.split("\n")[0].slice(0, 10)), `${answer} is missing in: ${text}`);
    }
    await close();
  });

  test("a chat that is left while it answers keeps what came", async () => {
    const { page, complaints, close } = await open("desktop");
    await alter(page, { ignore_eos: true, max_tokens: 4000, speculation: "off" });
    await send(page, STORY);
    await begun(page);
    await page.getByLabel("New chat").click();
    await finished(page);
    assert.equal(await page.locator(".message").count(), 0);
    await page.locator("#chat-list .title").first().click();
    assert.ok((await lastText(page)).length > 0);
    assert.match(await answers(page).last().locator(".notice").innerText(), /Stopped/);
    assert.deepEqual(complaints, []);
    await close();
  });

  test("takes over what an earlier version kept", async () => {
    const { page, complaints, close } = await open("desktop");
    await page.evaluate(() => localStorage.setItem("forerun.chat", JSON.stringify([{ role: "user", content: "An old question" }, { role: "assistant", content: "An old answer" }])));
    await page.reload();
    assert.deepEqual(await titles(page), ["An old question"]);
    await page.locator("#chat-list .title").click();
    assert.equal(await lastText(page), "An old answer");
    assert.deepEqual(complaints, []);
    await close();
  });
});

describe("what the model writes", () => {
  /** Answers in the server's place: the bundled model cannot be made to write a given text. */
  async function answerWith(page, deltas) {
    const chunks = [...deltas.map((delta) => ({ choices: [{ index: 0, delta, finish_reason: null }] })), { choices: [{ index: 0, delta: {}, finish_reason: "stop" }] }];
    const body = chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join("") + "data: [DONE]\n\n";
    await page.route(QUESTIONS, (route) => route.fulfill({ status: 200, contentType: "text/event-stream", body }));
  }

  test("markdown becomes elements and markup stays text", async () => {
    const { page, complaints, close } = await open("desktop");
    await answerWith(page, [{ content: "A **bold** word\n\n1. one\n2. two\n   - in\n\n```js\nlet a = 1;\n```\n\n<img src=x onerror=alert(1)> [x](javascript:alert(1))" }]);
    await send(page, "Go");
    await finished(page);
    const prose = answers(page).last().locator(".prose:not(.thought)");
    assert.equal(await prose.locator("strong").innerText(), "bold");
    assert.equal(await prose.locator("ol > li").count(), 2);
    assert.equal(await prose.locator("ol ul > li").innerText(), "in");
    assert.equal(await prose.locator("pre code").innerText(), "let a = 1;");
    assert.equal(await prose.locator("img, a").count(), 0);
    assert.match(await prose.innerText(), /<img src=x onerror=alert\(1\)>/);
    await shot(page, "desktop-markdown");
    assert.deepEqual(complaints, []);
    await close();
  });

  test("tables, tasks, nested code, colours and formulas are shown", async () => {
    const { page, complaints, close } = await open("desktop");
    await answerWith(page, [{ content: "| a | b |\n|---|--:|\n| 1 | ~~2~~ |\n\n- [x] one\n- two\n\n  ```py\n  def f(): # hi\n  ```\n\nIt is $\\frac{a}{b}$ and $\\unheardof$.\n\n$$\\sum_{i=1}^n i^2$$" }]);
    await send(page, "Go");
    await finished(page);
    const prose = answers(page).last().locator(".prose:not(.thought)");
    assert.deepEqual(await prose.locator("td").allInnerTexts(), ["1", "2"]);
    assert.equal(await prose.locator("del").innerText(), "2");
    assert.equal(await prose.locator("li.task input").isChecked(), true);
    assert.equal(await prose.locator("li pre code").innerText(), "def f(): # hi");
    assert.deepEqual([await prose.locator("li .keyword").innerText(), await prose.locator("li .comment").innerText()], ["def", "# hi"]);
    assert.equal(await prose.locator("p math mfrac").count(), 1);
    assert.equal(await prose.locator("p code.tex").innerText(), "\\unheardof");
    const tall = await prose.locator(".formula math").boundingBox();
    assert.ok(tall.height > 30, `limits stand above and below: ${tall.height}`);
    await shot(page, "desktop-rich");
    assert.deepEqual(complaints, []);
    await close();
  });

  test("reasoning is folded and tool calls are shown", async () => {
    const { page, close } = await open("desktop");
    await answerWith(page, [
      { reasoning_content: "Look " }, { reasoning_content: "outside." },
      { tool_calls: [{ index: 0, id: "call_1", type: "function", function: { name: "weather", arguments: "" } }] },
      { tool_calls: [{ index: 0, function: { arguments: '{"city": "Bergen"}' } }] },
    ]);
    await send(page, "Rain?");
    await finished(page);
    const answer = answers(page).last();
    assert.equal(await answer.locator(".thought").isVisible(), false);
    await answer.locator("summary").click();
    assert.equal(await answer.locator(".thought").innerText(), "Look outside.");
    assert.equal(await answer.locator(".call figcaption").innerText(), "calls weather");
    assert.equal(await answer.locator(".call code").innerText(), '{"city": "Bergen"}');
    await shot(page, "desktop-tools");

    await answerWith(page, [{ content: "It rains." }]);
    const asked = page.waitForRequest(QUESTIONS);
    await page.getByLabel("Result of weather").fill("rain");
    await page.getByRole("button", { name: "Give results" }).click();
    const { messages } = (await asked).postDataJSON();
    assert.equal(messages[1].tool_calls[0].function.arguments, '{"city": "Bergen"}');
    assert.deepEqual(messages[2], { role: "tool", content: "rain", tool_call_id: "call_1" });
    await finished(page);
    assert.equal(await lastText(page), "It rains.");
    await close();
  });
});

describe("when something is wrong", () => {
  test("a refused request says why and can be tried again", async () => {
    const { page, close } = await open("phone");
    await alter(page, { temperature: -3 });
    await send(page, STORY);
    const notice = answers(page).last().locator(".notice");
    await notice.waitFor();
    assert.match(await notice.innerText(), /temperature/);
    await shot(page, "phone-error");
    await alter(page, { max_tokens: 8 });
    await page.getByRole("button", { name: "Try again" }).click();
    await finished(page);
    assert.ok((await lastText(page)).length > 0);
    assert.equal(await page.locator(".message").count(), 2);
    await close();
  });

  test("a busy server is said to be busy", async () => {
    const { page, close } = await open("desktop");
    await page.route(QUESTIONS, (route) => route.fulfill({ status: 429, headers: { "Retry-After": "3" }, json: { error: { message: "queue full" } } }));
    await send(page, STORY);
    const notice = answers(page).last().locator(".notice");
    await notice.waitFor();
    assert.match(await notice.innerText(), /busy.*3 s/);
    await close();
  });

  test("a server that is gone is said to be gone", async () => {
    const { page, close } = await open("desktop");
    await page.route(QUESTIONS, (route) => route.abort("connectionrefused"));
    await send(page, STORY);
    const notice = answers(page).last().locator(".notice");
    await notice.waitFor();
    assert.match(await notice.innerText(), /cannot be reached/);
    await close();
  });

  test("a server with a key asks for it once", async () => {
    const { page, close } = await open("phone", { url: KEY_URL });
    await page.locator("#key[open]").waitFor();
    await shot(page, "phone-key");
    await page.locator("#key input").fill("wrong");
    await page.getByRole("button", { name: "Go on" }).click();
    await page.getByText("The key was not accepted").waitFor();
    await page.locator("#key input").fill(KEY);
    await page.getByRole("button", { name: "Go on" }).click();
    await page.locator("#key[open]").waitFor({ state: "detached" });
    await alter(page, { max_tokens: 8 });
    await send(page, STORY);
    await finished(page);
    assert.ok((await lastText(page)).length > 0);
    await page.reload();
    await page.locator("#model option").first().waitFor({ state: "attached" });
    assert.equal(await page.locator("#key[open]").count(), 0);
    await close();
  });
});

describe("the page itself", () => {
  test("carries a policy that allows nothing from elsewhere", async () => {
    const response = await fetch(URL);
    const policy = response.headers.get("content-security-policy") ?? "";
    assert.match(policy, /default-src 'none'/);
    assert.ok(!policy.includes("unsafe"), policy);
  });

  test("is dark where the reader likes it dark", async () => {
    const { page, close } = await open("phone", { colorScheme: "dark" });
    const ground = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.equal(ground, "rgb(21, 23, 26)");
    await alter(page, { max_tokens: 60 });
    await send(page, STORY);
    await finished(page);
    await shot(page, "phone-dark");
    await close();
  });
});
