//! What was measured, for people.

use crate::report::{BenchArmReport, BenchReport, CellReport, WorstGain};
use crate::spread::Spread;

pub(crate) fn text(summary: &BenchReport<'_>) -> String {
    let mut text = header(summary);
    if !summary.reading.is_empty() {
        text.push_str("\nreading a prompt, no drafts\n");
        for reading in &summary.reading {
            text.push_str(&format!(
                "{:>7} tok  {:.0} tok/s\n",
                reading.tokens, reading.tokens_per_s
            ));
        }
    }
    for cell in &summary.cells {
        text.push_str(&cell_text(cell));
    }
    text.push_str(&situations(summary));
    text.push_str(&conclusion(summary));
    text
}

fn header(summary: &BenchReport<'_>) -> String {
    let BenchReport { version, model, device, kv, tokens, reps, .. } = summary;
    let sampling = match summary.sampling.temperature {
        0.0 => "greedy".to_owned(),
        temperature => format!("temperature {temperature}, seed {}", summary.seed),
    };
    let scripted = scripted_text(summary.scripted_acceptance);
    format!(
        "forerun {version} · {model} · {device} · kv {kv}\n{tokens} tokens an answer · {sampling} · \
         median (min..max) of {reps}\n{scripted}"
    )
}

/// Says that a script took the drafts.
fn scripted_text(rates: Option<&[f32]>) -> String {
    let Some(rates) = rates else { return String::new() };
    let rates: Vec<String> = rates.iter().map(f32::to_string).collect();
    format!(
        "scripted acceptance {}: so many drafts are taken at each place whatever the model says, and no \
         text is the model's\n",
        rates.join(", ")
    )
}

fn cell_text(cell: &CellReport<'_>) -> String {
    let CellReport { prompt, prompt_tokens, context, batch, arms, .. } = cell;
    let mut text = format!("\n{prompt} · {prompt_tokens} tok · context {context} · batch {batch}");
    if let Some(plain) = cell.arm("plain") {
        text.push_str(&format!(" · read at {:.0} tok/s", plain.prompt_tokens_per_s));
    }
    text.push_str(&format!(
        "\n  {:<9}{:<24}{:<22}{:>9}{:>11}{:>12}  {}\n",
        "arm", "tok/s", "gain", "ms/round", "tok/round", "right", "% right by position"
    ));
    arms.iter().for_each(|arm| text.push_str(&arm_line(arm)));
    text
}

fn arm_line(arm: &BenchArmReport) -> String {
    let gain = match (arm.arm.as_str(), arm.gain) {
        ("plain", _) => "baseline".to_owned(),
        (_, Some(gain)) => gain_text(gain),
        (_, None) => "-".to_owned(),
    };
    let right = match arm.drafted {
        0 => "-".to_owned(),
        drafted => format!("{}/{drafted}", arm.accepted),
    };
    let positions: Vec<String> =
        arm.acceptance_by_position.iter().map(|share| format!("{:.0}", share * 100.0)).collect();
    let line = format!(
        "  {:<9}{:<24}{gain:<22}{:>9.2}{:>11.2}{right:>12}  {}",
        arm.arm,
        format!("{:.1}", arm.decode_tokens_per_s),
        arm.ms_per_round.median,
        arm.tokens_per_round,
        positions.join(" "),
    );
    format!("{}{}\n", line.trim_end(), depths(arm))
}

fn gain_text(gain: Spread) -> String {
    format!("{:.2}× ({:.2}..{:.2})", gain.median, gain.min, gain.max)
}

/// How deep an arm went, where it had a choice and used it.
fn depths(arm: &BenchArmReport) -> String {
    if arm.arm.parse::<usize>().is_ok() || arm.drafted == 0 {
        return String::new();
    }
    let rounds = arm.depth_histogram.iter().enumerate().filter(|&(_, &rounds)| rounds > 0);
    let rounds: Vec<String> = rounds.map(|(depth, n)| format!("{depth}:{n}")).collect();
    format!("\n{:11}rounds by drafts {}", "", rounds.join(" "))
}

/// Speed by context and batch, the median over prompts; nothing where there is only one pair.
fn situations(summary: &BenchReport<'_>) -> String {
    let mut pairs: Vec<(usize, usize)> =
        summary.cells.iter().map(|cell| (cell.batch, cell.context)).collect();
    pairs.dedup();
    if pairs.len() < 2 {
        return String::new();
    }
    let head: String = summary.arms.iter().map(|arm| format!("{arm:>10}")).collect();
    let mut text =
        format!("\ntok/s, median over prompts\n  {:>7}{:>9}{head}\n", "batch", "context");
    for (batch, context) in pairs {
        let cells = || summary.cells.iter().filter(|c| (c.batch, c.context) == (batch, context));
        let speed = |name: &String| {
            let arms = cells().filter_map(|cell| cell.arm(name));
            Spread::of(arms.map(|arm| arm.decode_tokens_per_s.median))
                .map_or(String::new(), |speed| format!("{:>10.1}", speed.median))
        };
        let speeds: String = summary.arms.iter().map(speed).collect();
        text.push_str(&format!("  {batch:>7}{context:>9}{speeds}\n"));
    }
    text
}

/// The lowest gains, and what may be concluded at all.
fn conclusion(summary: &BenchReport<'_>) -> String {
    let mut text = match summary.scripted_acceptance {
        Some(_) => "\nscripted acceptance: arms gave texts of their own\n".to_owned(),
        None => "\nall arms gave the same tokens\n".to_owned(),
    };
    if !summary.arms.iter().any(|arm| arm == "plain") {
        text.push_str("no gain is shown: a gain needs its baseline, add plain to --arms\n");
    }
    for WorstGain { arm, gain, prompt, context, batch } in &summary.worst {
        text.push_str(&format!(
            "{arm} vs plain: worst prompt {gain:.2}× ({prompt}, context {context}, batch {batch})\n"
        ));
    }
    text
}
