//! The kernels: entry points and the texts they are made of.

/// An entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Name of the kernel, which no other has.
    pub name: &'static str,
    /// Function in the text.
    pub entry: &'static str,
    /// How often texts with `$` are repeated.
    pub copies: usize,
    /// Parts of the text, in order.
    pub texts: &'static [&'static str],
}

impl Kernel {
    /// The whole text.
    pub fn text(&self) -> String {
        let of = |text: &&str| match text.contains('$') {
            true => (0..self.copies).map(|copy| numbered(text, copy)).collect(),
            false => text.replace("COPIES", &self.copies.to_string()),
        };
        self.texts.iter().map(of).collect::<Vec<String>>().join("\n")
    }
}

/// A text for weight or cache number `copy`: its bindings follow those of the copies before it.
fn numbered(text: &str, copy: usize) -> String {
    let bindings =
        [("WEIGHT$", 4, 3), ("BIAS$", 5, 3), ("OUT$", 6, 3), ("FROM$", 7, 2), ("CACHE$", 8, 2)];
    let text = bindings.iter().fold(text.to_owned(), |text, (name, first, each)| {
        text.replace(name, &(first + each * copy).to_string())
    });
    text.replace('$', &copy.to_string()) + "\n"
}

macro_rules! text {
    ($($name:literal),*) => { &[$(include_str!(concat!("kernels/", $name, ".wgsl"))),*] };
}

macro_rules! kernels {
    ($($id:ident: $name:literal, $entry:literal, $copies:literal, [$($text:literal),*];)*) => {
        $(pub(crate) const $id: Kernel =
            Kernel { name: $name, entry: $entry, copies: $copies, texts: text!($($text),*) };)*

        /// All of them.
        pub const KERNELS: &[Kernel] = &[$($id),*];
    };
}

kernels! {
    GLU: "glu", "glu", 1, ["prelude", "activation", "elementwise"];
    SOFTCAP: "softcap", "softcap", 1, ["prelude", "activation", "elementwise"];
    GATE_MUL: "gate_mul", "gate_mul", 1, ["prelude", "activation", "elementwise"];
    ADD_GATED: "add_gated", "add_gated", 1, ["prelude", "activation", "elementwise"];
    EXPERTS_SUM: "experts_sum", "experts_sum", 1, ["prelude", "activation", "elementwise"];
    NORM: "norm", "norm", 1, ["prelude", "reduce", "norm"];
    GATED_NORM: "gated_norm", "gated", 1, ["prelude", "reduce", "norm"];
    MOVE_ROWS: "move_rows", "move_rows", 1, ["prelude", "rows"];
    COPY: "copy", "copy", 1, ["prelude", "copy"];
    ROPE_TABLE: "rope_table", "rope_table", 1, ["prelude", "rope"];
    EMBED: "embed", "embed", 1, ["prelude", "weight", "weight_words", "embed"];
    PRODUCT_ONE: "product_one", "product", 1,
        ["prelude", "reduce", "weight", "product", "rows_one", "staged_one", "product_steps", "weight_words",
         "product_part", "product_store", "product_named", "product_alone"];
    PRODUCT_FOUR: "product_four", "product", 1,
        ["prelude", "reduce", "weight", "product", "rows_four", "staged_four", "product_steps", "weight_words",
         "product_part", "product_store", "product_named", "product_alone"];
    PRODUCT_TILE: "product_tile", "product", 1,
        ["prelude", "weight", "product", "rows_tile", "weight_words", "product_store", "product_named",
         "product_tile"];
    PRODUCT_OF_CHOICES: "product_of_choices", "product_of_choices", 1,
        ["prelude", "reduce", "weight", "product", "rows_one", "staged_one", "product_steps", "weight_words",
         "product_part", "product_store", "product_named", "product_alone"];
    GATED_ONE: "gated_one", "gated", 2,
        ["prelude", "reduce", "activation", "weight", "product", "rows_one", "staged_one", "product_steps",
         "weight_words", "product_part", "product_store", "product_named", "product_gated"];
    GATED_FOUR: "gated_four", "gated", 2,
        ["prelude", "reduce", "activation", "weight", "product", "rows_four", "staged_four", "product_steps",
         "weight_words", "product_part", "product_store", "product_named", "product_gated"];
    GROUP: "group", "group", 1, ["prelude", "group"];
    PRODUCT_GROUPED: "product_grouped", "product", 1,
        ["prelude", "reduce", "weight", "product", "rows_grouped", "staged_four", "product_steps", "weight_words",
         "product_part", "product_store", "product_named", "product_alone"];
    GATED_GROUPED: "gated_grouped", "gated", 2,
        ["prelude", "reduce", "activation", "weight", "product", "rows_grouped", "staged_four", "product_steps",
         "weight_words", "product_part", "product_store", "product_named", "product_gated"];
    PRODUCTS_ONE: "products_one", "products", 4,
        ["prelude", "reduce", "weight", "product", "rows_one", "staged_one", "product_steps", "weight_words",
         "product_part", "product_store", "product_parts", "product_beside", "product_side"];
    PRODUCTS_FOUR: "products_four", "products", 4,
        ["prelude", "reduce", "weight", "product", "rows_four", "staged_four", "product_steps", "weight_words",
         "product_part", "product_store", "product_parts", "product_beside", "product_side"];
    ATTENTION_INPUTS: "attention_inputs", "inputs", 2, ["prelude", "reduce", "attention_inputs", "attention_keep"];
    ATTENTION: "attention", "attention", 1, ["prelude", "reduce", "attention"];
    ATTENTION_MERGE: "attention_merge", "merge", 1, ["prelude", "reduce", "attention"];
    CONV: "conv", "conv", 1, ["prelude", "spans", "conv"];
    DELTA_GATES: "delta_gates", "delta_gates", 1, ["prelude", "reduce", "spans", "delta_gates"];
    DELTA_RULE: "delta_rule", "rule", 1, ["prelude", "spans", "delta"];
    DELTA_LOG: "delta_log", "remember_and_norm", 1, ["prelude", "reduce", "spans", "delta_log"];
    CHOOSE: "choose", "choose", 1, ["prelude", "reduce", "best", "choose"];
    ROUTER: "router", "router", 1, ["prelude", "reduce", "best", "router"];
    CLUSTER_TOKENS: "cluster_tokens", "tokens", 1, ["prelude", "reduce", "cluster"];
    CLUSTER_FILL: "cluster_fill", "fill", 1, ["prelude", "reduce", "cluster"];
    SAMPLE: "sample", "sample", 1, ["prelude", "integers", "sample"];
}

/// Operands that hold indices, by operation. Kernels note them by number: see [`site`].
const SITES: [(&str, &[&str]); 11] = [
    ("embed", &["ids"]),
    ("gather_rows", &["rows"]),
    ("scatter_rows", &["rows"]),
    ("scatter_words", &["from", "to"]),
    ("attention_inputs", &["places"]),
    ("attention", &["span_of", "positions", "tables"]),
    ("short_conv", SPANS),
    ("delta_gates", SPANS),
    ("delta_rule", SPANS),
    ("experts", &["chosen"]),
    ("sample", &["masks", "rows", "history", "ids"]),
];
const SPANS: &[&str] =
    &["spans.slot", "spans.pending", "spans.confirmed", "spans.drafts", "spans.rows"];
/// Tokens in a weight, which is no operand.
const MEMBERS: (&str, &str) = ("cluster_head", "members");

/// The number of an operation's first operand of indices; the others follow it.
pub(crate) fn site(op: &str) -> u32 {
    let at = SITES.iter().position(|(name, _)| *name == op).unwrap_or(SITES.len());
    (at as u32 + 1) << 8
}

/// Operation and operand of a number.
pub(crate) fn operand_of(site: u32) -> (&'static str, &'static str) {
    let at = (site >> 8).wrapping_sub(1) as usize;
    let found = SITES.get(at).and_then(|(op, operands)| {
        operands.get((site & 255) as usize).map(|operand| (*op, *operand))
    });
    found.unwrap_or(MEMBERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_site_names_its_operand() {
        for (op, operands) in SITES {
            for (i, operand) in operands.iter().enumerate() {
                assert_eq!(operand_of(site(op) + i as u32), (op, *operand));
            }
        }
        assert_eq!(operand_of(site("cluster_head")), MEMBERS);
    }

    #[test]
    fn every_kernel_has_a_name_of_its_own() {
        let mut names: Vec<&str> = KERNELS.iter().map(|kernel| kernel.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KERNELS.len());
    }
}
