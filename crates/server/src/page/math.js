// TeX as models write it, as MathML data: nodes { tag, text?, children?, attributes? }. What is not known is not made up:
// `parseMath` then answers null, and the page shows the source.

const LETTERS = "alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ vartheta ϑ iota ι kappa κ lambda λ mu μ nu ν xi ξ "
  + "pi π rho ρ sigma σ tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ Pi Π Sigma Σ Phi Φ Psi Ψ Omega Ω "
  + "ell ℓ hbar ℏ infty ∞ partial ∂ nabla ∇ emptyset ∅ Re ℜ Im ℑ aleph ℵ";
const OPERATORS = "times × cdot ⋅ div ÷ pm ± mp ∓ ast ∗ star ⋆ circ ∘ bullet ∙ oplus ⊕ otimes ⊗ odot ⊙ le ≤ leq ≤ ge ≥ geq ≥ ne ≠ neq ≠ "
  + "equiv ≡ approx ≈ sim ∼ simeq ≃ cong ≅ propto ∝ ll ≪ gg ≫ in ∈ notin ∉ ni ∋ subset ⊂ subseteq ⊆ supset ⊃ supseteq ⊇ cup ∪ cap ∩ setminus ∖ "
  + "forall ∀ exists ∃ neg ¬ lnot ¬ land ∧ wedge ∧ lor ∨ vee ∨ to → rightarrow → leftarrow ← leftrightarrow ↔ Rightarrow ⇒ implies ⟹ Leftarrow ⇐ "
  + "Leftrightarrow ⇔ iff ⟺ mapsto ↦ uparrow ↑ downarrow ↓ ldots … dots … cdots ⋯ vdots ⋮ ddots ⋱ mid ∣ parallel ∥ perp ⊥ angle ∠ prime ′ "
  + "langle ⟨ rangle ⟩ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ lbrace { rbrace } vert | Vert ‖ colon : therefore ∴ because ∵";
const LARGE = "sum ∑ prod ∏ coprod ∐ int ∫ iint ∬ iiint ∭ oint ∮ bigcup ⋃ bigcap ⋂ bigoplus ⨁ bigotimes ⨂";
const FUNCTIONS = "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh exp log ln lg det dim ker deg gcd lim limsup liminf max min sup inf arg argmax argmin Pr";
const ACCENTS = "hat ^ widehat ^ bar ‾ overline ‾ vec → tilde ~ widetilde ~ dot ˙ ddot ¨";
const SPACES = { ",": "0.17em", ":": "0.22em", ";": "0.28em", "!": "-0.17em", " ": "0.25em", quad: "1em", qquad: "2em" };
const VARIANTS = { mathbb: "double-struck", mathcal: "script", mathfrak: "fraktur", mathbf: "bold", boldsymbol: "bold", bm: "bold" };
const FENCES = { matrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], Bmatrix: ["{", "}"], vmatrix: ["|", "|"], Vmatrix: ["‖", "‖"], cases: ["{", ""], aligned: ["", ""], align: ["", ""], "align*": ["", ""], gathered: ["", ""], split: ["", ""], array: ["", ""] };
const IGNORED = new Set(["displaystyle", "textstyle", "limits", "nolimits", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "nonumber"]);
const DEEPEST = 40;

const pairs = (text) => {
  const words = text.split(" ");
  return new Map(words.flatMap((word, index) => (index % 2 === 0 ? [[word, words[index + 1]]] : [])));
};
const letters = pairs(LETTERS);
const operators = pairs(OPERATORS);
const large = pairs(LARGE);
const accents = pairs(ACCENTS);
const functions = new Set(FUNCTIONS.split(" "));
const LIMITS = new Set(["lim", "limsup", "liminf", "max", "min", "sup", "inf", "argmax", "argmin"]);

const node = (tag, content, attributes) => ({ tag, ...(typeof content === "string" ? { text: content } : { children: content }), ...(attributes ? { attributes } : {}) });
const row = (children) => (children.length === 1 ? children[0] : node("mrow", children));

class Unknown extends Error {}

/** The formula as a MathML tree, or null if something in it is not known here. */
export function parseMath(tex, display = false) {
  try {
    const parser = new Parser(tex, display);
    const children = parser.list(() => parser.at >= parser.tokens.length);
    return node("math", [row(children)], display ? { display: "block" } : {});
  } catch (error) {
    if (error instanceof Unknown) return null;
    throw error;
  }
}

class Parser {
  constructor(tex, display) {
    this.tokens = tex.match(/\\(?:[A-Za-z]+\*?|[^])|\d+(?:\.\d+)?|\s+|[^]/g) ?? [];
    this.display = display;
    this.at = 0;
    this.depth = 0;
  }

  peek() {
    while (/^\s+$/.test(this.tokens[this.at] ?? "")) this.at += 1;
    return this.tokens[this.at];
  }

  next() {
    const token = this.peek();
    if (token === undefined) throw new Unknown("the formula ends early");
    this.at += 1;
    return token;
  }

  expect(token) {
    if (this.next() !== token) throw new Unknown(`no ${token}`);
  }

  list(ends) {
    const nodes = [];
    for (;;) {
      this.peek();
      if (ends()) break;
      nodes.push(this.scripted());
    }
    return nodes;
  }

  /** The source between braces, untouched. */
  raw() {
    this.expect("{");
    let text = "";
    for (let open = 1; ;) {
      const token = this.tokens[this.at];
      if (token === undefined) throw new Unknown("a brace is not closed");
      this.at += 1;
      open += token === "{" ? 1 : token === "}" ? -1 : 0;
      if (open === 0) return text;
      text += token;
    }
  }

  /** An argument: a group in braces, or one thing. */
  argument() {
    if (this.peek() !== "{") return this.atom();
    return this.group();
  }

  group() {
    this.expect("{");
    const inner = this.list(() => this.tokens[this.at] === "}" || this.at >= this.tokens.length);
    this.expect("}");
    return node("mrow", inner);
  }

  /** A thing with what is written below and above it. */
  scripted() {
    const first = this.peek();
    const base = first === "^" || first === "_" ? node("mrow", []) : this.atom();
    let below = null;
    let above = null;
    for (;;) {
      const token = this.peek();
      if (token === "_" && below === null) {
        this.at += 1;
        below = this.argument();
      } else if (token === "^" && above === null) {
        this.at += 1;
        above = this.argument();
      } else if (token === "'" && above === null) {
        let primes = "";
        while (this.peek() === "'") {
          this.at += 1;
          primes += "′";
        }
        above = node("mo", primes);
      } else {
        break;
      }
    }
    if (below === null && above === null) return base;
    const around = base.limits && this.display;
    const parts = [base, below, above].filter((part) => part !== null);
    const tag = below && above ? (around ? "munderover" : "msubsup") : below ? (around ? "munder" : "msub") : around ? "mover" : "msup";
    return node(tag, parts);
  }

  atom() {
    this.depth += 1;
    if (this.depth > DEEPEST) throw new Unknown("nested too deep");
    const made = this.read(this.next());
    this.depth -= 1;
    return made;
  }

  read(token) {
    if (token === "{") {
      this.at -= 1;
      return this.group();
    }
    if (token[0] === "\\") return this.command(token.slice(1));
    if (/^\d/.test(token)) return node("mn", token);
    if (/^[\p{L}]$/u.test(token)) return node("mi", token);
    if (token === "}" || token === "&" || token === "^" || token === "_") throw new Unknown(`${token} has no place`);
    if (token === "-") return node("mo", "−");
    if (token === "~") return node("mspace", "", { width: "0.25em" });
    return node("mo", token);
  }

  command(name) {
    if (letters.has(name)) return node("mi", letters.get(name));
    if (large.has(name)) return { ...node("mo", large.get(name)), limits: !large.get(name).match(/[∫∬∭∮]/) };
    if (functions.has(name)) return { ...node("mi", name, { mathvariant: "normal" }), limits: LIMITS.has(name) };
    if (operators.has(name)) return node("mo", operators.get(name));
    if (name in SPACES) return node("mspace", "", { width: SPACES[name] });
    if ("{}%$#&_|".includes(name)) return node("mo", name === "|" ? "‖" : name);
    if (accents.has(name)) return node("mover", [this.argument(), node("mo", accents.get(name))], { accent: "true" });
    if (name in VARIANTS) return this.variant(VARIANTS[name]);
    if (IGNORED.has(name)) return node("mrow", []);
    return this.structure(name);
  }

  structure(name) {
    switch (name) {
      case "frac": case "dfrac": case "tfrac": return node("mfrac", [this.argument(), this.argument()]);
      case "binom": return node("mrow", [node("mo", "("), node("mfrac", [this.argument(), this.argument()], { linethickness: "0" }), node("mo", ")")]);
      case "sqrt": return this.root();
      case "underline": return node("munder", [this.argument(), node("mo", "_")]);
      case "text": case "mathrm": case "textbf": case "textit": case "mathsf": case "mathtt": case "mbox": return node("mtext", this.raw().replace(/^ | $/g, "\u00a0"));
      case "operatorname": case "operatorname*": return node("mi", this.raw(), { mathvariant: "normal" });
      case "left": return this.fenced();
      case "boxed": return this.argument();
      case "begin": return this.environment();
      default: throw new Unknown(name);
    }
  }

  variant(style) {
    const letter = this.raw().trim();
    if (!/^[\p{L}\d]+$/u.test(letter)) throw new Unknown("only letters have variants");
    return node("mi", [...letter].map((one) => styled(one, style)).join(""), letter.length > 1 ? undefined : { mathvariant: "normal" });
  }

  root() {
    if (this.peek() !== "[") return node("msqrt", [this.argument()]);
    this.at += 1;
    const index = this.list(() => this.tokens[this.at] === "]" || this.at >= this.tokens.length);
    this.expect("]");
    return node("mroot", [this.argument(), row(index)]);
  }

  delimiter() {
    const token = this.next();
    if (token === ".") return null;
    const text = token[0] === "\\" ? (operators.get(token.slice(1)) ?? ("{}|".includes(token[1]) ? (token[1] === "|" ? "‖" : token[1]) : null)) : token;
    if (text === null) throw new Unknown(token);
    return node("mo", text, { stretchy: "true", fence: "true" });
  }

  fenced() {
    const open = this.delimiter();
    const inner = this.list(() => this.tokens[this.at] === "\\right" || this.at >= this.tokens.length);
    this.expect("\\right");
    return node("mrow", [open, ...inner, this.delimiter()].filter((part) => part !== null));
  }

  environment() {
    const name = this.raw();
    const fences = FENCES[name];
    if (!fences) throw new Unknown(name);
    if (name === "array") this.raw();
    const rows = [[]];
    const ends = () => ["&", "\\\\", "\\end"].includes(this.tokens[this.at]) || this.at >= this.tokens.length;
    for (;;) {
      rows.at(-1).push(node("mtd", this.list(ends)));
      const token = this.next();
      if (token === "\\\\") rows.push([]);
      else if (token !== "&") break;
    }
    if (this.raw() !== name) throw new Unknown(`${name} is not closed`);
    if (rows.at(-1).every(({ children }) => children.length === 0)) rows.pop();
    const table = node("mtable", rows.map((cells) => node("mtr", cells)), name.startsWith("align") || name === "split" ? { class: "aligned" } : name === "cases" ? { class: "cases" } : undefined);
    const [open, close] = fences.map((text) => (text === "" ? null : node("mo", text, { stretchy: "true", fence: "true" })));
    return node("mrow", [open, table, close].filter((part) => part !== null));
  }
}

const STYLES = { "double-struck": [0x1d538, 0x1d552, 0x1d7d8], script: [0x1d49c, 0x1d4b6], fraktur: [0x1d504, 0x1d51e], bold: [0x1d400, 0x1d41a, 0x1d7ce] };
/** Letters that Unicode had before it made room for the alphabets. */
const EARLIER = { "double-struck": { C: "ℂ", H: "ℍ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ" }, script: { B: "ℬ", E: "ℰ", F: "ℱ", H: "ℋ", I: "ℐ", L: "ℒ", M: "ℳ", R: "ℛ", e: "ℯ", g: "ℊ", o: "ℴ" }, fraktur: { C: "ℭ", H: "ℌ", I: "ℑ", R: "ℜ", Z: "ℨ" } };

function styled(letter, style) {
  const earlier = EARLIER[style]?.[letter];
  if (earlier) return earlier;
  const [upper, lower, digit] = STYLES[style];
  if (/[A-Z]/.test(letter)) return String.fromCodePoint(upper + letter.charCodeAt(0) - 65);
  if (/[a-z]/.test(letter)) return String.fromCodePoint(lower + letter.charCodeAt(0) - 97);
  if (/\d/.test(letter) && digit) return String.fromCodePoint(digit + Number(letter));
  return letter;
}
