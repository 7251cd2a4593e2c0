// Colours for code, as data: a list of { kind, text } whose texts together are the code. Enough to read by, not a parser.

const C_LIKE = { line: "//", block: ["/*", "*/"], quotes: "\"'`" };
const HASH = { line: "#", quotes: "\"'" };

const WORDS = {
  c: "auto break case char const continue default do double else enum extern float for goto if inline int long register return short signed sizeof static struct switch typedef union unsigned void volatile while bool true false NULL nullptr class namespace template typename public private protected virtual override new delete this try catch throw using constexpr",
  js: "async await break case catch class const continue default delete do else export extends false finally for from function if import in instanceof interface let new null of return static super switch this throw true try type typeof undefined var void while yield enum implements readonly public private protected as",
  py: "and as assert async await break class continue def del elif else except False finally for from global if import in is lambda None nonlocal not or pass raise return self True try while with yield match case",
  rust: "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while",
  go: "break case chan const continue default defer else fallthrough for func go goto if import interface map nil package range return select struct switch true false type var",
  java: "abstract boolean break byte case catch char class const continue default do double else enum extends final finally float for if implements import instanceof int interface long new null package private protected public return short static super switch this throw throws true false try var void while record fun val when object override",
  sh: "if then else elif fi for while until do done case esac in function return local export set unset exit echo cd read source alias test true false",
  sql: "select from where insert into values update set delete create table drop alter add join left right inner outer on group by order having limit offset as and or not null is in like between union all distinct primary key foreign references index view with case when then else end",
};

function language(words, syntax, ignoreCase = false) {
  return { ...syntax, words: new Set(WORDS[words].split(" ")), ignoreCase };
}

const LANGUAGES = new Map();
for (const [names, made] of [
  ["c h cpp c++ cc hpp cs csharp cuda wgsl glsl metal", language("c", C_LIKE)],
  ["js javascript ts typescript jsx tsx mjs json jsonc", language("js", C_LIKE)],
  ["py python python3", language("py", { ...HASH, triple: true })],
  ["rs rust", language("rust", { ...C_LIKE, quotes: "\"" })],
  ["go golang", language("go", C_LIKE)],
  ["java kotlin kt swift scala dart php", language("java", C_LIKE)],
  ["sh bash zsh shell console toml yaml yml ini dockerfile makefile ruby rb", language("sh", HASH)],
  ["sql", language("sql", { line: "--", quotes: "'\"" }, true)],
]) {
  for (const name of names.split(" ")) LANGUAGES.set(name, made);
}

/** Longer code stays plain: it is to be read, not to make the page slow. */
const LONGEST = 100_000;

/** The code as pieces: plain, comment, string, number, keyword. */
export function highlight(text, name) {
  const syntax = LANGUAGES.get(name.toLowerCase());
  if (!syntax || text.length > LONGEST) return [{ kind: "plain", text }];
  const pieces = [];
  let done = 0;
  const piece = (kind, from, to) => {
    if (from > done) pieces.push({ kind: "plain", text: text.slice(done, from) });
    pieces.push({ kind, text: text.slice(from, to) });
    done = to;
  };
  for (const match of text.matchAll(syntax.pattern ??= patternOf(syntax))) {
    const kind = kindOf(match, syntax);
    if (kind) piece(kind, match.index, match.index + match[0].length);
  }
  if (done < text.length) pieces.push({ kind: "plain", text: text.slice(done) });
  return pieces;
}

function kindOf({ groups }, { words, ignoreCase }) {
  if (groups.comment !== undefined) return "comment";
  if (groups.string !== undefined) return "string";
  if (groups.number !== undefined) return "number";
  return words.has(ignoreCase ? groups.word.toLowerCase() : groups.word) ? "keyword" : null;
}

function patternOf({ line, block, quotes, triple }) {
  const escape = (text) => text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
  const comments = [`${line === "#" ? "(?<=^|\\s)" : ""}${escape(line)}[^\\n]*`];
  if (block) comments.push(`${escape(block[0])}[^]*?(?:${escape(block[1])}|$)`);
  const strings = [...quotes].map((quote) => `${quote}(?:\\\\[^]|[^${quote}\\\\${quote === "`" ? "" : "\\n"}])*${quote}`);
  if (triple) strings.unshift('"""[^]*?(?:"""|$)', "'''[^]*?(?:'''|$)");
  return new RegExp(
    `(?<comment>${comments.join("|")})|(?<string>${strings.join("|")})|(?<number>\\b\\d[\\w.]*)|(?<word>[A-Za-z_]\\w*)`,
    "gm",
  );
}
