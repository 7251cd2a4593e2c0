//! The kernels: entry points and the texts they are made of.

/// An entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Name of the kernel, which no other has.
    pub name: &'static str,
    /// Function in the text.
    pub entry: &'static str,
    /// Parts of the text, in order.
    pub texts: &'static [&'static str],
}

impl Kernel {
    /// The whole text.
    pub fn text(&self) -> String {
        self.texts.join("\n")
    }
}

macro_rules! text {
    ($($name:literal),*) => { &[$(include_str!(concat!("kernels/", $name, ".wgsl"))),*] };
}

macro_rules! kernels {
    ($($id:ident: $name:literal, $entry:literal, [$($text:literal),*];)*) => {
        $(pub(crate) const $id: Kernel = Kernel { name: $name, entry: $entry, texts: text!($($text),*) };)*

        /// All of them.
        pub const KERNELS: &[Kernel] = &[$($id),*];
    };
}

kernels! {
    GLU: "glu", "glu", ["prelude", "elementwise"];
    SOFTCAP: "softcap", "softcap", ["prelude", "elementwise"];
    GATE_MUL: "gate_mul", "gate_mul", ["prelude", "elementwise"];
    ADD_GATED: "add_gated", "add_gated", ["prelude", "elementwise"];
    EXPERTS_SUM: "experts_sum", "experts_sum", ["prelude", "elementwise"];
    NORM: "norm", "norm", ["prelude", "reduce", "norm"];
    GATED_NORM: "gated_norm", "gated", ["prelude", "reduce", "norm"];
    MOVE_ROWS: "move_rows", "move_rows", ["prelude", "rows"];
    COPY: "copy", "copy", ["prelude", "copy"];
    ROPE_TABLE: "rope_table", "rope_table", ["prelude", "rope"];
    EMBED: "embed", "embed", ["prelude", "weight", "embed"];
    PRODUCT_ONE: "product_one", "product", ["prelude", "weight", "product", "product_one"];
    PRODUCT_FOUR: "product_four", "product", ["prelude", "weight", "product", "product_four"];
    QUERIES: "queries", "queries", ["prelude", "reduce", "attention_inputs"];
    KEEP: "keep", "keep", ["prelude", "reduce", "attention_inputs"];
    ATTENTION: "attention", "attention", ["prelude", "reduce", "attention"];
    ATTENTION_MERGE: "attention_merge", "merge", ["prelude", "reduce", "attention"];
    CONV: "conv", "conv", ["prelude", "reduce", "spans", "conv"];
    UNIT: "unit", "unit", ["prelude", "reduce", "spans", "conv"];
    GATES: "gates", "gates", ["prelude", "spans", "gates"];
    DELTA_RULE: "delta_rule", "rule", ["prelude", "spans", "delta"];
    DELTA_LOG: "delta_log", "remember", ["prelude", "spans", "delta"];
    CHOOSE: "choose", "choose", ["prelude", "reduce", "choose"];
    CLUSTER_TOKENS: "cluster_tokens", "tokens", ["prelude", "reduce", "cluster"];
    CLUSTER_FILL: "cluster_fill", "fill", ["prelude", "reduce", "cluster"];
    SAMPLE: "sample", "sample", ["prelude", "integers", "sample"];
}

/// Operands that hold indices, by operation. Kernels note them by number: see [`site`].
const SITES: [(&str, &[&str]); 10] = [
    ("embed", &["ids"]),
    ("gather_rows", &["rows"]),
    ("scatter_rows", &["rows"]),
    ("scatter_words", &["from", "to"]),
    ("attention_inputs", &["places"]),
    ("attention", &["span_of", "positions", "tables"]),
    ("delta_inputs", SPANS),
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
