// Messages as elements. Text from the model only ever becomes text nodes.

import { highlight } from "./highlight.js";
import { parseBlocks } from "./markdown.js";
import { parseMath } from "./math.js";

/** An element with properties and children; strings become text nodes. */
export function el(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children.filter((child) => child !== null));
  return element;
}

const SPAN_TAGS = { strong: "strong", emphasis: "em", strike: "del", group: "span" };

function spans(list) {
  return list.map((span) => {
    switch (span.kind) {
      case "text": return span.text;
      case "code": return el("code", {}, span.text);
      case "math": return formula(span.text, false);
      case "break": return el("br");
      case "link": return el("a", { href: span.href, rel: "noopener noreferrer nofollow", target: "_blank" }, ...spans(span.spans));
      default: return el(SPAN_TAGS[span.kind], {}, ...spans(span.spans));
    }
  });
}

const MATH = "http://www.w3.org/1998/Math/MathML";

/** A formula, or its source where something in it is not known. */
function formula(tex, display) {
  const tree = parseMath(tex, display);
  return tree ? mathElement(tree) : el("code", { className: "tex" }, tex);
}

function mathElement({ tag, text, children = [], attributes = {} }) {
  const element = document.createElementNS(MATH, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...(text === undefined ? children.map(mathElement) : [text]));
  return element;
}

function list({ ordered, start, items }) {
  return el(ordered ? "ol" : "ul", ordered ? { start } : {}, ...items.map(({ checked, blocks }) => {
    const box = checked === null ? null : el("input", { type: "checkbox", checked, disabled: true });
    // The text of a plain item stands in it directly; further blocks follow.
    const [first, ...rest] = blocks;
    const lead = first?.kind === "paragraph" ? spans(first.spans) : first ? [block(first)] : [];
    return el("li", { className: box ? "task" : "" }, box, ...lead, ...rest.map(block));
  }));
}

function table({ align, header, rows }) {
  const cells = (tag, row) => el("tr", {}, ...row.map((cell, index) => el(tag, { className: align[index] ?? "" }, ...spans(cell))));
  return el("div", { className: "table", tabIndex: 0 },
    el("table", {}, el("thead", {}, cells("th", header)), el("tbody", {}, ...rows.map((row) => cells("td", row)))));
}

function code({ language, text }) {
  const copy = el("button", { type: "button", className: "copy", title: "Copy this code" }, "Copy");
  copy.addEventListener("click", () => copyText(text, copy));
  const pieces = highlight(text, language).map((piece) => (piece.kind === "plain" ? piece.text : el("span", { className: piece.kind }, piece.text)));
  return el("figure", { className: "code" }, el("figcaption", {}, language || "text", copy), el("pre", { tabIndex: 0 }, el("code", {}, ...pieces)));
}

function block(data) {
  switch (data.kind) {
    case "code": return code(data);
    case "math": return el("div", { className: "formula", tabIndex: 0 }, formula(data.tex, true));
    case "list": return list(data);
    case "table": return table(data);
    case "rule": return el("hr");
    case "heading": return el(`h${Math.min(6, data.level + 2)}`, {}, ...spans(data.spans));
    case "quote": return el("blockquote", {}, ...data.blocks.map(block));
    default: return el("p", {}, ...spans(data.spans));
  }
}

/** Shows a growing text, making anew only the blocks that changed since the last time. */
export class Prose {
  constructor(className = "prose") {
    this.element = el("div", { className });
    this.shown = [];
  }

  show(text) {
    const blocks = parseBlocks(text);
    const wanted = blocks.map((data) => JSON.stringify(data));
    let same = 0;
    while (same < wanted.length && wanted[same] === this.shown[same]) same += 1;
    while (this.element.children.length > same) this.element.lastElementChild.remove();
    this.element.append(...blocks.slice(same).map(block));
    this.shown = wanted;
  }
}

/** Copies a text and says so on the button for a moment. */
export async function copyText(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => { button.textContent = label; }, 1500);
}

/** One message of the conversation; `update` shows what it holds now. */
export class MessageView {
  constructor(message) {
    this.message = message;
    this.prose = new Prose();
    this.thought = new Prose("prose thought");
    this.thinking = el("details", { className: "thinking", hidden: true }, el("summary", {}, "Thinking"), this.thought.element);
    this.calls = el("div", { className: "calls" });
    this.wait = el("p", { className: "wait", hidden: true, ariaLabel: "Waiting for the first word" }, el("i"), el("i"), el("i"));
    this.notice = el("div", { className: "notice", hidden: true });
    this.receipt = el("dl", { className: "receipt", ariaLabel: "Receipt" });
    this.actions = el("p", { className: "actions" });
    this.files = el("div", { className: "files" }, ...(message.files ?? []).map(({ name, text }) =>
      el("details", { className: "file" }, el("summary", {}, name), el("pre", { tabIndex: 0 }, text))));
    const who = el("h3", { className: "hidden" }, { user: "You", tool: "Tool result" }[message.role] ?? "Model");
    this.element = el("article", { className: `message ${message.role}` },
      who, this.files, this.thinking, this.prose.element, this.calls, this.wait, this.notice, this.receipt, this.actions);
  }

  update(streaming = false) {
    const { role, content, reasoning = "", calls = [] } = this.message;
    if (role === "assistant") this.prose.show(content);
    else this.prose.element.textContent = content;
    this.prose.element.hidden = role === "user" && content === "";
    this.thinking.hidden = reasoning === "";
    if (reasoning !== "") this.thought.show(reasoning);
    this.thinking.querySelector("summary").textContent = streaming && content === "" && calls.length === 0 ? "Thinking…" : "Thinking";
    this.showCalls(calls);
    this.wait.hidden = !streaming || content !== "" || reasoning !== "" || calls.length > 0;
    this.element.setAttribute("aria-busy", String(streaming));
    this.element.classList.toggle("streaming", streaming);
  }

  showCalls(calls) {
    while (this.calls.children.length > calls.length) this.calls.lastElementChild.remove();
    calls.forEach((call, index) => {
      if (!this.calls.children[index]) {
        this.calls.append(el("figure", { className: "code call" }, el("figcaption"), el("pre", { tabIndex: 0 }, el("code"))));
      }
      const [caption, pre] = this.calls.children[index].children;
      caption.textContent = `calls ${call.name}`;
      pre.firstElementChild.textContent = call.arguments;
    });
  }

  showReceipt(lines) {
    this.receipt.replaceChildren(...lines.map(({ label, value, title }) => el("div", { title }, el("dt", {}, label), el("dd", {}, value))));
  }

  showNotice(text, ...buttons) {
    this.notice.hidden = text === "";
    this.notice.replaceChildren(el("span", {}, text), ...buttons);
  }

  showActions(...buttons) {
    this.actions.replaceChildren(...buttons);
  }
}
