//! What filters and methods cost before they run.
//!
//! Most of them return no more than they were given, which [`super::meter`] has already charged
//! for; those that multiply (`replace`, `join`, `indent`, `format`), build as much as a number says
//! (`slice`, `batch`) or cut a text into entries (`list`, `split`) are worked out here, so that the
//! value is refused instead of built.

use super::meter::{ENTRY, charge, pay_for_text};
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Columns a format may pad to; more is not a prompt.
const MAX_FORMAT_WIDTH: usize = 1_000;

/// `args[0]` is the filtered value.
pub(crate) fn pay_for_filter(state: &mut State, name: &str, args: &[Value]) -> Result<(), Error> {
    let [value, rest @ ..] = args else { return Ok(()) };
    let argument = |at: usize| rest.get(at).cloned().unwrap_or_default();
    match name {
        "replace" => replace(state, value, &argument(0), &argument(1)),
        "indent" => indent(state, value, rest),
        "format" => format(state, value, rest),
        "slice" | "batch" => {
            // A slice is an entry even if it is empty; the last batch is filled up where there is something to fill
            // with.
            let filled = name == "slice" || !argument(1).is_undefined();
            let count = argument(0).as_usize().filter(|_| filled).unwrap_or(0);
            pay_for_entries(state, entries(value).saturating_add(count.saturating_mul(2)))
        }
        "list" | "reverse" => pay_for_entries(state, entries(value)),
        "split" => split(state, value, rest.first()),
        "lines" => lines(state, value),
        "sum" => sum(state, value),
        "join" => {
            let named = |name| keyword(rest, name);
            let joiner = rest.first().filter(|v| v.as_str().is_some()).cloned();
            let attribute = rest.get(1).filter(|v| v.as_str().is_some()).cloned();
            let joiner = joiner.or_else(|| named("d"));
            join(state, value, joiner, attribute.or_else(|| named("attribute")))
        }
        _ => pay_for_text(state, value),
    }
}

/// A method call on a text, list or map.
pub(crate) fn pay_for_method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<(), Error> {
    match (name, args) {
        ("replace", [from, to, ..]) => replace(state, value, from, to),
        ("join", [items, ..]) => join(state, items, Some(value.clone()), None),
        ("format", _) => format(state, value, args),
        ("split", _) => split(state, value, args.first()),
        ("splitlines", _) => lines(state, value),
        _ => charge(state, value.as_str().map_or(0, str::len)),
    }
}

/// How many entries a list of a value has; of a text, its characters.
fn entries(value: &Value) -> usize {
    value.as_str().map_or_else(|| value.len().unwrap_or(0), |text| text.chars().count())
}

fn pay_for_entries(state: &mut State, count: usize) -> Result<(), Error> {
    charge(state, count.saturating_mul(ENTRY))
}

fn split(state: &mut State, value: &Value, separator: Option<&Value>) -> Result<(), Error> {
    let Some(text) = value.as_str() else { return Ok(()) };
    let pieces = match separator.and_then(Value::as_str) {
        Some(separator) => text.matches(separator).count() + 1,
        None => text.split_whitespace().count(),
    };
    charge(state, text.len())?;
    pay_for_entries(state, pieces)
}

fn lines(state: &mut State, value: &Value) -> Result<(), Error> {
    let Some(text) = value.as_str() else { return Ok(()) };
    charge(state, text.len())?;
    pay_for_entries(state, text.matches(['\n', '\r']).count() + 1)
}

/// Texts and lists are added one after the other, so each sum before the last is built too.
fn sum(state: &mut State, value: &Value) -> Result<(), Error> {
    let mut so_far = 0usize;
    for item in value.try_iter()?.checked() {
        let item = item?;
        let lists = || item.len().unwrap_or(0).saturating_mul(ENTRY);
        so_far = so_far.saturating_add(item.as_str().map_or_else(lists, str::len));
        charge(state, so_far)?;
    }
    Ok(())
}

fn keyword(args: &[Value], name: &str) -> Option<Value> {
    let named = args.last().filter(|v| v.is_kwargs())?;
    named.get_attr(name).ok().filter(|v| !v.is_undefined())
}

fn replace(state: &mut State, value: &Value, from: &Value, to: &Value) -> Result<(), Error> {
    for printed in [value, from, to] {
        pay_for_text(state, printed)?;
    }
    let (text, from, to) = (value.to_string(), from.to_string(), to.to_string());
    let found = text.matches(from.as_str()).count();
    charge(state, found.saturating_mul(to.len()))
}

fn join(
    state: &mut State,
    items: &Value,
    joiner: Option<Value>,
    attribute: Option<Value>,
) -> Result<(), Error> {
    let between = joiner.as_ref().and_then(Value::as_str).map_or(0, str::len);
    for item in items.try_iter()?.checked() {
        let item = item?;
        charge(state, between)?;
        match attribute.as_ref().and_then(Value::as_str) {
            // A dotted path prints something inside the item, so no more than all of it.
            Some(name) if !name.contains('.') => {
                pay_for_text(state, &item.get_attr(name).unwrap_or_default())?;
            }
            _ => pay_for_text(state, &item)?,
        }
    }
    Ok(())
}

fn indent(state: &mut State, value: &Value, args: &[Value]) -> Result<(), Error> {
    pay_for_text(state, value)?;
    let width = args.first().filter(|v| v.kind() == ValueKind::Number).cloned();
    let width = width.or_else(|| keyword(args, "width")).and_then(|v| v.as_usize()).unwrap_or(4);
    let lines = value.as_str().map_or(1, |text| text.matches('\n').count() + 1);
    charge(state, lines.saturating_add(1).saturating_mul(width))
}

fn format(state: &mut State, value: &Value, args: &[Value]) -> Result<(), Error> {
    let Some(pattern) = value.as_str() else { return Ok(()) };
    let widths = pattern.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let too_wide = |digits: &str| digits.parse().map_or(true, |n: usize| n > MAX_FORMAT_WIDTH);
    if pattern.contains('*') || widths.into_iter().any(too_wide) {
        let message = format!("format: a width must be a number up to {MAX_FORMAT_WIDTH}");
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    // Any placeholder may name any argument.
    let placeholders = pattern.matches(['%', '{']).count();
    charge(state, pattern.len().saturating_add(placeholders.saturating_mul(MAX_FORMAT_WIDTH)))?;
    let before = super::meter::left(state);
    for argument in args {
        match argument.is_kwargs().then(|| Kwargs::try_from(argument.clone())) {
            Some(named) => {
                let named = named?;
                for name in named.args() {
                    pay_for_text(state, &named.peek::<Value>(name)?)?;
                }
            }
            None => pay_for_text(state, argument)?,
        }
    }
    let printed_once = before - super::meter::left(state);
    charge(state, printed_once.saturating_mul(placeholders))
}
