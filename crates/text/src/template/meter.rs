//! A budget for what a template may build.
//!
//! The template language counts instructions (fuel), but one instruction can double a string,
//! so forty of them can fill any memory. Every operation that builds a value therefore draws on
//! a budget of bytes that belongs to the render and does not come back. A deadline bounds
//! operations that build little but look at much. Nesting is bounded too, because comparing,
//! printing and dropping a value are recursive.
//!
//! [`super::bytecode`] routes the built-in operators here; [`super::environment`] the filters
//! and methods.

use minijinja::value::{Rest, Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use std::time::{Duration, Instant};

/// Bytes one render may build. A prompt of a million tokens is about 5 MB of text.
const BUDGET: usize = 128 << 20;
/// A render takes well under a millisecond for every hundred messages.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// JSON from clients is at most 128 deep; templates add a few levels around it.
pub(crate) const MAX_DEPTH: usize = 160;
/// What a list entry or a map entry counts for.
pub(crate) const ENTRY: usize = 32;

struct SizeMeter {
    left: usize,
    deadline: Instant,
}

fn meter<'a>(state: &'a mut State) -> &'a mut SizeMeter {
    state.get_or_insert_extension_with(|| SizeMeter {
        left: BUDGET,
        deadline: Instant::now() + TIME_LIMIT,
    })
}

/// Bytes the render may still build.
pub(crate) fn left(state: &mut State) -> usize {
    meter(state).left
}

/// The error for a template that asks for more than its budget.
pub(crate) fn exhausted() -> Error {
    Error::new(ErrorKind::InvalidOperation, "the template builds more text than is allowed")
}

/// Takes `bytes` from the budget and looks at the clock.
pub(crate) fn charge(state: &mut State, bytes: usize) -> Result<(), Error> {
    let meter = meter(state);
    meter.left = meter.left.checked_sub(bytes).ok_or_else(exhausted)?;
    if Instant::now() > meter.deadline {
        return Err(Error::new(ErrorKind::OutOfFuel, "the template takes too long"));
    }
    Ok(())
}

/// Pays for reading a value in a comparison: a list can hold one long text many times.
pub(crate) fn comparable(state: &mut State, value: Value) -> Result<Value, Error> {
    match value.as_str() {
        Some(_) => charge(state, 0)?,
        None => pay_for_text(state, &value)?,
    }
    Ok(value)
}

/// Pays for looking something up in a value. In a map only the key is looked up.
pub(crate) fn searchable(state: &mut State, value: Value) -> Result<Value, Error> {
    if value.kind() == ValueKind::Map { Ok(value) } else { comparable(state, value) }
}

/// Accepts a value a filter, method or literal built: charges for it, bounds its depth and turns
/// a lazy sequence into a list, so that laziness cannot be stacked without end.
pub(crate) fn checked(state: &mut State, value: Value) -> Result<Value, Error> {
    let value = settled(state, value)?;
    match value.kind() {
        ValueKind::String => charge(state, value.as_str().map_or(0, str::len))?,
        // Texts directly inside may be new (`split`, `map`); deeper ones are shared with the
        // values they came from.
        ValueKind::Seq | ValueKind::Map => check_inside(state, &value, 1, 0)?,
        _ => {}
    }
    Ok(value)
}

/// Accepts a value that is about to be put into a namespace. A namespace inside a namespace
/// could hold itself, and then printing it would never end.
pub(crate) fn assignable(state: &mut State, value: Value) -> Result<Value, Error> {
    refuse_namespace(&value)?;
    checked(state, value)
}

fn refuse_namespace(value: &Value) -> Result<(), Error> {
    let namespace = |name: &str| name.ends_with("::Namespace");
    match value.as_object() {
        Some(object) if namespace(object.type_name()) => {
            Err(Error::new(ErrorKind::InvalidOperation, "a namespace cannot be stored in a value"))
        }
        _ => Ok(()),
    }
}

/// Lists a lazy sequence; other values pass.
fn settled(state: &mut State, value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        return Ok(value);
    }
    let mut items = Vec::new();
    for item in value.try_iter()?.checked() {
        charge(state, ENTRY)?;
        items.push(item?);
    }
    Ok(Value::from(items))
}

/// Walks a value: bounds its depth, charges for its entries and for the texts in it down to
/// `texts` levels.
fn check_inside(state: &mut State, value: &Value, texts: usize, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "the template nests values too deep"));
    }
    charge(state, ENTRY)?;
    let keyed = value.kind() == ValueKind::Map;
    if !keyed && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Ok(());
    }
    for entry in value.try_iter()?.checked() {
        let entry = entry?;
        let item = if keyed { value.get_item(&entry)? } else { entry };
        refuse_namespace(&item)?;
        charge(state, item.as_str().filter(|_| depth < texts).map_or(0, str::len))?;
        check_inside(state, &item, texts, depth + 1)?;
    }
    Ok(())
}

/// `a + b`
pub(crate) fn add(state: &mut State, a: Value, b: Value) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (a.as_str(), b.as_str()) {
        charge(state, left.len() + right.len())?;
        return Ok(Value::from([left, right].concat()));
    }
    let sum = plain("a + b", [("a", &a), ("b", &b)])?;
    charge(state, ENTRY * sum.len().unwrap_or(0))?;
    settled(state, sum)
}

/// `a * b`
pub(crate) fn mul(state: &mut State, a: Value, b: Value) -> Result<Value, Error> {
    let bytes = |v: &Value| v.as_str().map(str::len).or(v.len().map(|n| n.saturating_mul(ENTRY)));
    let times = |v: &Value| v.as_usize().unwrap_or(0);
    let size = match (bytes(&a), bytes(&b)) {
        (Some(size), _) => size.saturating_mul(times(&b)),
        (_, Some(size)) => size.saturating_mul(times(&a)),
        _ => 0,
    };
    charge(state, size)?;
    let product = plain("a * b", [("a", &a), ("b", &b)])?;
    settled(state, product)
}

/// `a ~ b`
pub(crate) fn concat(state: &mut State, a: Value, b: Value) -> Result<Value, Error> {
    let text = text_of(state, &a)? + &text_of(state, &b)?;
    charge(state, text.len())?;
    Ok(Value::from(text))
}

/// The printed form of a value, refused before printing when it would be endless.
pub(crate) fn text_of(state: &mut State, value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    pay_for_text(state, value)?;
    Ok(value.to_string())
}

/// Charges for the printed form of a value.
pub(crate) fn pay_for_text(state: &mut State, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => charge(state, text.len()),
        None => check_inside(state, value, MAX_DEPTH, 0),
    }
}

/// `a[start:stop:step]`
pub(crate) fn slice(
    state: &mut State,
    a: Value,
    start: Value,
    stop: Value,
    step: Value,
) -> Result<Value, Error> {
    charge(state, a.as_str().map_or(0, str::len))?;
    let part = plain("a[b:c:d]", [("a", &a), ("b", &start), ("c", &stop), ("d", &step)])?;
    settled(state, part)
}

/// `[a, b]`
pub(crate) fn list(state: &mut State, items: Rest<Value>) -> Result<Value, Error> {
    checked(state, Value::from(items.0))
}

/// `(a, b)`
pub(crate) fn tuple(state: &mut State, items: Rest<Value>) -> Result<Value, Error> {
    checked(state, Value::from(Tuple::from(items.0)))
}

/// `{a: b}` from keys and values in turn.
pub(crate) fn map(state: &mut State, items: Rest<Value>) -> Result<Value, Error> {
    let pairs = items.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
    checked(state, Value::from_pairs(pairs))
}

/// Lets the library itself work out an operator, so that its rules for numbers, lists and
/// undefined values hold here too.
fn plain<const N: usize>(
    expression: &'static str,
    names: [(&str, &Value); N],
) -> Result<Value, Error> {
    let environment = Environment::empty();
    let values = Value::from_pairs(names.map(|(name, value)| (name, value.clone())));
    let compiled = environment.compile_expression(expression)?;
    compiled.eval(values)
}
