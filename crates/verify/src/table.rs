//! What was verified, for people.

use crate::verification::{ArmOutcome, ArmResult, Verification};

const HEADER: [&str; 6] =
    ["arm", "requests", "tokens", "logits rows", "drafts accepted", "verdict"];

/// The table and its last line.
pub(crate) fn page(verification: &Verification) -> String {
    let rows: Vec<[String; 6]> = verification.results.iter().map(row).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([HEADER[column].len()]).max().unwrap_or(0)
    };
    let widths: [usize; 6] = std::array::from_fn(width);
    let mut page = line(&HEADER.map(str::to_owned), &widths);
    rows.iter().for_each(|row| page.push_str(&line(row, &widths)));
    page.push_str(&summary(verification));
    page
}

fn line(cells: &[String; 6], widths: &[usize; 6]) -> String {
    let [arm, numbers @ .., verdict] = cells;
    let mut line = format!("{arm:<0$}", widths[0]);
    for (number, width) in numbers.iter().zip(&widths[1..]) {
        line.push_str(&format!("  {number:>width$}"));
    }
    format!("{line}  {verdict}\n")
}

fn row(result: &ArmResult) -> [String; 6] {
    let none = || "-".to_owned();
    match &result.finding {
        ArmOutcome::NotApplicable(why) => {
            let verdict = format!("not applicable: {why}");
            [result.name.clone(), none(), none(), none(), none(), verdict]
        }
        ArmOutcome::Compared { requests, comparison, drafts } => {
            let verdict = match (&comparison.difference, drafts) {
                (Some(difference), _) => difference.to_string(),
                // An arm that could not have failed must not look like one that could.
                (None, Some(drafts)) if drafts.drafted == 0 => "same, no drafts made".to_owned(),
                (None, _) => "same".to_owned(),
            };
            [
                result.name.clone(),
                requests.to_string(),
                comparison.tokens.to_string(),
                comparison.rows.to_string(),
                drafts.map_or_else(none, |g| format!("{}/{}", g.accepted, g.drafted)),
                verdict,
            ]
        }
    }
}

fn summary(verification: &Verification) -> String {
    let arms = verification.compared().count();
    let tokens: usize = verification.compared().map(|comparison| comparison.tokens).sum();
    let rows: usize = verification.compared().map(|comparison| comparison.rows).sum();
    let skipped = match verification.results.len() - arms {
        0 => String::new(),
        n => format!(", {n} not applicable"),
    };
    match verification.differing() {
        0 => format!(
            "all {arms} arms identical: {tokens} tokens, {rows} rows of logits bit for bit\
             {skipped} ({:.1} s)\n",
            verification.seconds
        ),
        n => format!("{n} of {arms} arms differ{skipped} ({:.1} s)\n", verification.seconds),
    }
}
