//! A bar chart as SVG, readable on light and on dark pages.
//!
//! What is drawn is JSON: the report of `bench --json`, or a chart of its own,
//! `{"title", "unit", "reference", "groups": [{"name", "bars": [{"name", "value"}]}]}`.

use crate::report::SCRIPTED;
use serde_json::Value;
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const MARGIN: f64 = 16.0;
/// Where bars begin; names stand to the left of it.
const LEFT: f64 = 230.0;
/// Room for a value to the right of the longest bar.
const RIGHT: f64 = 90.0;
const BAR: f64 = 20.0;

/// Both schemes have a background of their own: text never stands on a page's colour.
const STYLE: &str = "\
.ground{fill:#ffffff}.text{fill:#1f2328}.faint{fill:#59636e}.bar{fill:#0969da}.line{stroke:#59636e}\
@media(prefers-color-scheme:dark){\
.ground{fill:#0d1117}.text{fill:#f0f6fc}.faint{fill:#9198a1}.bar{fill:#4493f8}.line{stroke:#9198a1}}";

/// Bars in groups.
struct Chart {
    title: String,
    /// Stands behind every value.
    unit: String,
    /// A value to compare with, drawn as a line.
    reference: Option<f64>,
    groups: Vec<BarGroup>,
}

struct BarGroup {
    name: String,
    bars: Vec<ChartBar>,
}

struct ChartBar {
    name: String,
    value: f64,
    /// Stands behind the value and its unit.
    note: String,
}

/// The chart of a report; the error says what is missing.
pub fn chart_svg(report: &Value) -> Result<String, String> {
    let chart = match (report.get("groups"), report.get("cells")) {
        (Some(groups), _) => own(report, groups)?,
        (_, Some(cells)) => measured(report, cells)?,
        _ => return Err("neither `cells` of a bench report nor `groups` of a chart".to_owned()),
    };
    let mut values = chart.groups.iter().flat_map(|group| &group.bars).map(|bar| bar.value);
    if values.clone().next().is_none() {
        return Err("nothing to draw: no bars".to_owned());
    }
    match values.find(|value| !value.is_finite() || *value < 0.0) {
        Some(value) => Err(format!("a bar of length {value} cannot be drawn")),
        None => Ok(draw(&chart)),
    }
}

fn own(report: &Value, groups: &Value) -> Result<Chart, String> {
    let bar = |bar: &Value| {
        let value = number(bar, "value")?;
        Ok(ChartBar { name: text(bar, "name")?, value, note: String::new() })
    };
    let group = |group: &Value| {
        let bars = list(&group["bars"], "bars")?.iter().map(bar).collect::<Result<_, String>>()?;
        Ok(BarGroup { name: text(group, "name")?, bars })
    };
    Ok(Chart {
        title: text(report, "title")?,
        unit: text(report, "unit")?,
        reference: report.get("reference").and_then(Value::as_f64),
        groups: list(groups, "groups")?.iter().map(group).collect::<Result<_, String>>()?,
    })
}

/// Decoding speed of every arm, by prompt, context and batch.
fn measured(report: &Value, cells: &Value) -> Result<Chart, String> {
    let bar = |arm: &Value| {
        let value = number(&arm["decode_tokens_per_s"], "median")?;
        let gain = arm["gain"]["median"].as_f64();
        let note = gain.map(|gain| format!(" ({gain:.2}×)")).unwrap_or_default();
        Ok(ChartBar { name: text(arm, "arm")?, value, note })
    };
    let group = |cell: &Value| {
        let bars = list(&cell["arms"], "arms")?.iter().map(bar).collect::<Result<_, String>>()?;
        let (prompt, context) = (text(cell, "prompt")?, number(cell, "context")?);
        let name = format!("{prompt}, context {context}, batch {}", number(cell, "batch")?);
        Ok(BarGroup { name, bars })
    };
    // Reports of older versions do not say; they were all measured.
    let scripted = report["acceptance"] == SCRIPTED;
    let note = if scripted { ", scripted acceptance" } else { "" };
    Ok(Chart {
        title: format!("{} on {}{note}", text(report, "model")?, text(report, "device")?),
        unit: " tok/s".to_owned(),
        reference: None,
        groups: list(cells, "cells")?.iter().map(group).collect::<Result<_, String>>()?,
    })
}

fn text(value: &Value, key: &str) -> Result<String, String> {
    value[key].as_str().map(str::to_owned).ok_or_else(|| format!("`{key}` is no text"))
}

fn number(value: &Value, key: &str) -> Result<f64, String> {
    value[key].as_f64().ok_or_else(|| format!("`{key}` is no number"))
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value], String> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| format!("`{key}` is no list"))
}

fn draw(chart: &Chart) -> String {
    let bars = || chart.groups.iter().flat_map(|group| &group.bars);
    let longest = bars().map(|bar| bar.value).chain(chart.reference).fold(0.0, f64::max);
    let scale = if longest > 0.0 { (WIDTH - LEFT - RIGHT - MARGIN) / longest } else { 0.0 };
    let height = 44.0 + bars().count() as f64 * BAR + chart.groups.len() as f64 * 34.0 + MARGIN;
    let title = escaped(&chart.title);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" font-family=\"system-ui, sans-serif\" font-size=\"13\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\"/>\n\
         <text class=\"text\" x=\"{MARGIN}\" y=\"28\" font-size=\"16\">{title}</text>\n"
    );
    let mut line = |words: std::fmt::Arguments<'_>| {
        out.write_fmt(words).expect("a string takes any text");
        out.push('\n');
    };
    let mut y = 44.0;
    for group in &chart.groups {
        let name = escaped(&group.name);
        line(format_args!("<text class=\"faint\" x=\"{MARGIN}\" y=\"{}\">{name}</text>", y + 22.0));
        y += 30.0;
        for ChartBar { name, value, note } in &group.bars {
            let (name, length, base) = (escaped(name), value * scale, y + 14.0);
            let (middle, after) = (LEFT - 8.0, LEFT + length + 6.0);
            let value = format!("{}{}{note}", rounded(*value), chart.unit);
            line(format_args!(
                "<text class=\"text\" x=\"{middle}\" y=\"{base}\" text-anchor=\"end\">{name}</text>\
                 <rect class=\"bar\" x=\"{LEFT}\" y=\"{}\" width=\"{length:.1}\" height=\"14\" rx=\"2\"/>\
                 <text class=\"text\" x=\"{after:.1}\" y=\"{base}\">{}</text>",
                y + 3.0,
                escaped(&value)
            ));
            y += BAR;
        }
        y += 4.0;
    }
    if let Some(reference) = chart.reference {
        let x = LEFT + reference * scale;
        line(format_args!(
            "<line class=\"line\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"44\" y2=\"{y}\" stroke-dasharray=\"4 3\"/>"
        ));
    }
    out + "</svg>\n"
}

/// Three digits or all before the point.
fn rounded(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bars_of_a_report_are_as_long_as_their_speed() {
        let arm = |name: &str, rate: f64, gain: Value| json!({"arm": name, "decode_tokens_per_s": {"median": rate}, "gain": gain});
        let arms = [arm("plain", 100.0, Value::Null), arm("a<b", 50.0, json!({"median": 0.5}))];
        let cell = json!({"prompt": "story", "context": 0, "batch": 1, "arms": arms});
        let report = json!({"model": "m", "device": "cpu & co", "cells": [cell]});
        let svg = chart_svg(&report).unwrap();
        let whole = WIDTH - LEFT - RIGHT - MARGIN;
        for words in [
            format!("width=\"{whole:.1}\" height=\"14\""),
            format!("width=\"{:.1}\" height=\"14\"", whole / 2.0),
            "m on cpu &amp; co".to_owned(),
            "story, context 0, batch 1".to_owned(),
            "a&lt;b".to_owned(),
            "50.0 tok/s (0.50×)".to_owned(),
        ] {
            assert!(svg.contains(&words), "{words}: {svg}");
        }
        assert_eq!(svg.matches("class=\"bar\"").count(), 2);
    }

    #[test]
    fn what_cannot_be_drawn_is_named() {
        let chart = |groups: Value| json!({"title": "t", "unit": "×", "groups": groups});
        let bars = |value: Value| json!([{"name": "g", "bars": [{"name": "b", "value": value}]}]);
        for (report, words) in [
            (json!({}), "neither `cells`"),
            (chart(json!([])), "no bars"),
            (chart(bars(json!(-1.0))), "of length -1"),
            (chart(bars(json!("x"))), "`value` is no number"),
            (json!({"groups": []}), "`title` is no text"),
        ] {
            assert!(chart_svg(&report).unwrap_err().contains(words), "{report}");
        }
    }

    #[test]
    fn the_chart_of_the_benchmarks_page_is_drawn_from_its_figures() {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/benchmarks");
        let read = |end: &str| std::fs::read_to_string(format!("{docs}.{end}")).unwrap();
        let figures = serde_json::from_str(&read("json")).unwrap();
        assert_eq!(
            chart_svg(&figures).unwrap(),
            read("svg"),
            "bench --from docs/benchmarks.json --svg"
        );
        let page = read("md");
        for group in figures["groups"].as_array().unwrap() {
            for bar in group["bars"].as_array().unwrap() {
                let value = format!("{:.2}×", bar["value"].as_f64().unwrap());
                assert!(page.contains(&value), "{value} of {bar} is on the page");
            }
        }
    }
}
