// Markdown as models write it, as data: blocks of spans. No DOM and no HTML, so model text can never become markup.
//
// The grammar is marked's (GFM: tables, task lists, strikethrough, nested lists), of which only the lexer is used; math between
// $...$, $$...$$, \(...\) and \[...\] is added here.
//
// A block is { kind, ... }: paragraph { spans }, heading { level, spans }, code { language, text, open }, math { tex },
// list { ordered, start, items: [{ checked, blocks }] }, table { align, header: [spans], rows: [[spans]] }, quote { blocks }, rule.
// A span is { kind: text | code | math | strong | emphasis | strike | link | break, text?, spans?, href? }.

import { Marked, Lexer } from "./vendor/marked.js";

/** Longer runs of text are shown as they are: finding pairs of marks in them takes time that grows with the square. */
const LONGEST_INLINE = 10_000;
/** Quotes in quotes beyond this depth are one quote: a line of a thousand marks must not be a thousand calls. */
const DEEPEST_QUOTE = 4;

const INLINE_MATH = /^(?:\\\(([^\n]{1,1000}?)\\\)|\\\[([^]{1,1000}?)\\\]|\$\$([^$\n]{1,1000}?)\$\$|\$(?![\s$])((?:\\[^\n]|[^$\\\n]){1,1000}?)(?<!\s)\$(?![\d$]))/;
const BLOCK_MATH = /^ {0,3}(?:\$\$([^$]{1,4000}?)\$\$|\\\[([^]{1,4000}?)\\\])[ \t]*(?:\n|$)/;

const math = [
  {
    name: "math",
    level: "inline",
    start: (text) => text.search(/\$|\\[([]/),
    tokenizer(text) {
      const match = INLINE_MATH.exec(text);
      if (!match) return undefined;
      return { type: "math", raw: match[0], tex: match.slice(1).find((tex) => tex !== undefined) };
    },
  },
  {
    name: "mathBlock",
    level: "block",
    start: (text) => text.search(/^ {0,3}(?:\$\$|\\\[)/m),
    tokenizer(text) {
      const match = BLOCK_MATH.exec(text);
      return match ? { type: "mathBlock", raw: match[0], tex: (match[1] ?? match[2]).trim() } : undefined;
    },
  },
];
const options = new Marked({ gfm: true }, { extensions: math }).defaults;

/** Splits a text into blocks. */
export function parseBlocks(text) {
  try {
    return blocksOf(lex(text));
  } catch {
    // Nested deeper than the lexer's recursion can go.
    return [{ kind: "paragraph", spans: [{ kind: "text", text }] }];
  }
}

/** Splits the text of one block into spans. */
export function parseSpans(text) {
  return spansOf(new Lexer(options).inlineTokens(text));
}

function lex(text) {
  const lexer = new Lexer(options);
  const shallow = text.replace(/\r\n?/g, "\n").replace(new RegExp(`^((?: {0,3}>){${DEEPEST_QUOTE}})[ >]*>`, "gm"), "$1");
  lexer.blockTokens(shallow, lexer.tokens);
  for (const { src, tokens } of lexer.inlineQueue) {
    if (src.length <= LONGEST_INLINE) lexer.inlineTokens(src, tokens);
    else tokens.push({ type: "text", text: src });
  }
  return lexer.tokens;
}

function blocksOf(tokens) {
  return tokens.map(blockOf).filter((block) => block !== null);
}

function blockOf(token) {
  switch (token.type) {
    case "space": case "def": case "checkbox": return null;
    case "hr": return { kind: "rule" };
    case "heading": return { kind: "heading", level: token.depth, spans: spansOf(token.tokens) };
    case "code": return codeOf(token);
    case "mathBlock": return { kind: "math", tex: token.tex };
    case "blockquote": return { kind: "quote", blocks: blocksOf(token.tokens) };
    case "list": return listOf(token);
    case "table": return tableOf(token);
    case "html": return { kind: "paragraph", spans: [{ kind: "text", text: token.raw.trimEnd() }] };
    default: return { kind: "paragraph", spans: token.tokens ? spansOf(token.tokens) : [textSpan(token)] };
  }
}

function codeOf({ raw, lang, text, codeBlockStyle }) {
  const fence = /^ {0,3}(`{3,}|~{3,})/.exec(raw)?.[1];
  const last = raw.trimEnd().split("\n").at(-1).trim();
  const closed = codeBlockStyle === "indented" || !fence || (raw.trimEnd().includes("\n") && last.startsWith(fence) && last === fence[0].repeat(last.length));
  return { kind: "code", language: (lang ?? "").split(/\s/)[0], text, open: !closed };
}

function listOf({ ordered, start, items }) {
  return {
    kind: "list",
    ordered,
    start: ordered ? Number(start) : 1,
    items: items.map(({ task, checked, tokens }) => ({ checked: task ? Boolean(checked) : null, blocks: blocksOf(tokens) })),
  };
}

function tableOf({ align, header, rows }) {
  const cells = (row) => row.map(({ tokens }) => spansOf(tokens));
  return { kind: "table", align, header: cells(header), rows: rows.map(cells) };
}

function spansOf(tokens) {
  // The box of a task belongs to its item.
  return tokens.filter(({ type }) => type !== "checkbox").map(spanOf);
}

function spanOf(token) {
  switch (token.type) {
    case "codespan": return { kind: "code", text: token.text };
    case "math": return { kind: "math", text: token.tex };
    case "strong": return { kind: "strong", spans: spansOf(token.tokens) };
    case "em": return { kind: "emphasis", spans: spansOf(token.tokens) };
    case "del": return { kind: "strike", spans: spansOf(token.tokens) };
    case "br": return { kind: "break" };
    case "link": case "image": return linkOf(token);
    case "html": return { kind: "text", text: token.raw };
    default: return token.tokens ? { kind: "group", spans: spansOf(token.tokens) } : textSpan(token);
  }
}

/** Only http and https addresses become links. Pictures are links too: the page loads nothing from elsewhere. */
function linkOf(token) {
  if (!/^https?:\/\//i.test(token.href)) return { kind: "text", text: token.raw };
  const spans = token.type === "image" ? [{ kind: "text", text: token.text || token.href }] : spansOf(token.tokens);
  return { kind: "link", href: token.href, spans };
}

const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

function textSpan({ type, text, raw }) {
  if (type === "escape") return { kind: "text", text };
  return { kind: "text", text: (text ?? raw).replace(/&(amp|lt|gt|quot|apos|nbsp);/g, (_, name) => ENTITIES[name]) };
}
