// Markdown as models write it, as data: blocks of spans. No DOM, no HTML, so model text can never become markup.
//
// A block is { kind, ... }: paragraph and heading { spans }, code { language, text, open }, list { ordered, start, items: [{ depth, spans }] },
// quote { blocks }, rule. A span is { kind: text | code | strong | emphasis | link, text, href? }.

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const BULLET = /^(\s*)[-*+]\s+(.*)$/;
const NUMBER = /^(\s*)(\d{1,9})[.)]\s+(.*)$/;
const QUOTE = /^ {0,3}>\s?(.*)$/;

/** Splits a text into blocks. A later part of the text never changes a block before the last. */
export function parseBlocks(text, depth = 0) {
  const lines = text.split("\n");
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    const read = readFence(lines, at) ?? readLine(lines, at) ?? readQuote(lines, at, depth) ?? readList(lines, at);
    if (read) {
      blocks.push(read.block);
      at = read.next;
    } else if (lines[at].trim() === "") {
      at += 1;
    } else {
      const { block, next } = readParagraph(lines, at);
      blocks.push(block);
      at = next;
    }
  }
  return blocks;
}

function readFence(lines, at) {
  const fence = FENCE.exec(lines[at]);
  if (!fence) return null;
  const [, mark, language] = fence;
  const body = [];
  for (let next = at + 1; next < lines.length; next += 1) {
    const line = lines[next].trim();
    const closes = line.length >= mark.length && line === mark[0].repeat(line.length);
    if (closes) return { block: { kind: "code", language, text: body.join("\n"), open: false }, next: next + 1 };
    body.push(lines[next]);
  }
  return { block: { kind: "code", language, text: body.join("\n"), open: true }, next: lines.length };
}

function readLine(lines, at) {
  if (RULE.test(lines[at])) return { block: { kind: "rule" }, next: at + 1 };
  const heading = HEADING.exec(lines[at]);
  if (!heading) return null;
  return { block: { kind: "heading", level: heading[1].length, spans: parseSpans(heading[2]) }, next: at + 1 };
}

function readQuote(lines, at, depth) {
  // Quotes in quotes stop nesting at four: a line of a thousand marks must not be a thousand calls.
  if (depth >= 4 || !QUOTE.test(lines[at])) return null;
  const inner = [];
  let next = at;
  for (; next < lines.length; next += 1) {
    const line = QUOTE.exec(lines[next]);
    if (!line) break;
    inner.push(line[1]);
  }
  return { block: { kind: "quote", blocks: parseBlocks(inner.join("\n"), depth + 1) }, next };
}

function listItem(line) {
  const number = NUMBER.exec(line);
  if (number) return { ordered: true, start: Number(number[2]), indent: number[1].length, text: number[3] };
  const bullet = RULE.test(line) ? null : BULLET.exec(line);
  return bullet && { ordered: false, start: 1, indent: bullet[1].length, text: bullet[2] };
}

function readList(lines, at) {
  const first = listItem(lines[at]);
  if (!first) return null;
  const items = [];
  let next = at;
  for (; next < lines.length; next += 1) {
    const item = listItem(lines[next]);
    if (item) {
      if (item.indent <= first.indent && item.ordered !== first.ordered) break;
      items.push({ depth: Math.min(3, Math.floor(Math.max(0, item.indent - first.indent) / 2)), text: item.text });
    } else if (lines[next].trim() === "") {
      // A blank line ends the list unless an item follows it.
      if (next + 1 >= lines.length || !listItem(lines[next + 1])) break;
    } else if (/^\s+\S/.test(lines[next])) {
      items[items.length - 1].text += ` ${lines[next].trim()}`;
    } else {
      break;
    }
  }
  const spans = items.map(({ depth, text }) => ({ depth, spans: parseSpans(text) }));
  return { block: { kind: "list", ordered: first.ordered, start: first.start, items: spans }, next };
}

function readParagraph(lines, at) {
  let next = at + 1;
  while (next < lines.length && lines[next].trim() !== "" && !startsBlock(lines[next])) next += 1;
  return { block: { kind: "paragraph", spans: parseSpans(lines.slice(at, next).join("\n")) }, next };
}

function startsBlock(line) {
  return FENCE.test(line) || RULE.test(line) || HEADING.test(line) || QUOTE.test(line) || listItem(line) !== null;
}

const SPAN = new RegExp(
  [
    "(?<!`)(?<ticks>`+)(?!`)(?<code>[^]{1,2000}?)(?<!`)\\k<ticks>(?!`)",
    "\\*\\*(?=\\S)(?<strong>[^*]{1,2000}?)(?<=\\S)\\*\\*",
    "(?<![\\w*])\\*(?=[^\\s*])(?<star>[^*\\n]{1,2000}?)(?<=\\S)\\*(?!\\*)",
    "(?<!\\w)_(?=[^\\s_])(?<score>[^_\\n]{1,2000}?)(?<=\\S)_(?!\\w)",
    "\\[(?<label>[^\\]\\n]{1,500})\\]\\((?<href>https?://[^\\s()]{1,2000})\\)",
    "(?<url>https?://[^\\s<>()\"'`*]{1,2000}[^\\s<>()\"'`*.,;:!?])",
  ].join("|"),
  "g",
);

/** Splits the text of one block into spans. Only http and https addresses become links. */
export function parseSpans(text) {
  const spans = [];
  let done = 0;
  for (const match of text.matchAll(SPAN)) {
    if (match.index > done) spans.push({ kind: "text", text: text.slice(done, match.index) });
    spans.push(spanOf(match.groups));
    done = match.index + match[0].length;
  }
  if (done < text.length) spans.push({ kind: "text", text: text.slice(done) });
  return spans;
}

function spanOf({ code, strong, star, score, label, href, url }) {
  if (code !== undefined) return { kind: "code", text: code };
  if (strong !== undefined) return { kind: "strong", text: strong };
  if (label !== undefined) return { kind: "link", text: label, href };
  if (url !== undefined) return { kind: "link", text: url, href: url };
  return { kind: "emphasis", text: star ?? score };
}
