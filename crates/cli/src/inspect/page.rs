//! The report for people.

use super::report::{Headroom, InspectReport};
use crate::report::{bytes_text, count_text};

pub(super) fn page(report: &InspectReport) -> String {
    [network(report), weights(report), text(report), files(report), memory(report)].join("\n")
}

fn network(report: &InspectReport) -> String {
    let a = &report.architecture;
    let tied = if a.tied_embeddings { "tied to the head" } else { "separate from the head" };
    let mut page = format!("{}\n", report.model);
    page += &line("type", &a.model_type);
    page += &line("layers", &a.layers.to_string());
    for kind in &a.layer_kinds {
        page += &line("", &format!("{} x {}; {}", kind.count, kind.mixer, kind.mlp));
    }
    page += &line("hidden", &a.hidden.to_string());
    page += &line("vocabulary", &format!("{}, embedding {tied}", a.vocabulary));
    page += &line("context", &format!("{} positions", a.max_positions));
    let mut rotary = a.rotary_dims.clone();
    rotary.dedup();
    let rotary: Vec<String> = rotary.iter().map(usize::to_string).collect();
    page += &line("rope", &format!("{} dims of a head", rotary.join(" or ")));
    let mtp = match (&report.mtp.file, report.mtp.present) {
        (Some(file), true) => format!("present, in {file}"),
        (Some(file), false) => format!("stored in {file}, but this model type does not use it"),
        (None, _) => report.mtp.absence.clone(),
    };
    page + &line("mtp head", &mtp)
}

fn weights(report: &InspectReport) -> String {
    let mut page = format!("parameters    {}\n", count_text(report.parameters));
    for part in &report.parts {
        page += &amount(part.part.label(), part.parameters, part.bytes);
    }
    page += "formats\n";
    for format in &report.formats {
        page += &amount(&format.format, format.parameters, format.bytes);
    }
    page
}

fn text(report: &InspectReport) -> String {
    let text = &report.text;
    let tokenizer = text.tokenizer_tokens.map_or("absent".to_owned(), |n| format!("{n} tokens"));
    let ends: Vec<String> = text.eos_token_ids.iter().map(u32::to_string).collect();
    let ends = if ends.is_empty() { "none".to_owned() } else { ends.join(", ") };
    line("tokenizer", &tokenizer)
        + &line("template", if text.chat_template { "present" } else { "absent" })
        + &line("end tokens", &ends)
}

fn files(report: &InspectReport) -> String {
    let mut page = "files\n".to_owned();
    for file in &report.files {
        let size = bytes_text(file.bytes);
        page += &format!("  {size:>12}  {} ({} tensors)\n", file.path, file.tensors);
    }
    page
}

fn memory(report: &InspectReport) -> String {
    let m = &report.memory;
    let mut page = format!(
        "memory for {} x {} tokens, prefill chunk {}, kv {}\n",
        m.sequences, m.context, m.prefill_chunk, m.kv
    );
    for item in &m.plan.items {
        page += &format!("  {:>12}  {}\n", bytes_text(item.bytes), item.label);
    }
    page += &format!("  {:>12}  in all\n", bytes_text(m.plan.total_bytes));
    page + &room(&m.room)
}

/// Whether that fits.
fn room(room: &Headroom) -> String {
    let (Some(free), Some(fits)) = (room.free_bytes, room.fits) else { return String::new() };
    let verdict = match (fits, room.longest_context) {
        (true, Some(longest)) => format!("it fits, and so would a context of {longest}"),
        (false, Some(longest)) => {
            format!("it does not fit; the longest context that does is {longest}")
        }
        (_, None) => "it does not fit, and neither does any shorter context".to_owned(),
    };
    format!("  {:>12}  free: {verdict}\n", bytes_text(free))
}

fn line(label: &str, value: &str) -> String {
    format!("{label:<13} {value}\n")
}

fn amount(label: &str, parameters: u64, bytes: u64) -> String {
    format!("  {:>12}  {:>10}  {label}\n", bytes_text(bytes), count_text(parameters))
}
