//! The `tojson` filter as Hugging Face defines it: Python's `json.dumps` with
//! `ensure_ascii=False` and nothing escaped for HTML.

use super::meter;
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// How to lay out the text: the arguments of `json.dumps`.
struct Style {
    ensure_ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
}

/// `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, arguments
/// by position in that order, as in `transformers`.
pub(crate) fn tojson(
    state: &mut State,
    value: &Value,
    positional: Rest<Value>,
    named: Kwargs,
) -> Result<Value, Error> {
    let argument = |at: usize, name: &str| -> Result<Value, Error> {
        match positional.get(at) {
            Some(value) => Ok(value.clone()),
            None => Ok(named.get::<Option<Value>>(name)?.unwrap_or_default()),
        }
    };
    let style = Style::new(
        &argument(0, "ensure_ascii")?,
        &argument(1, "indent")?,
        &argument(2, "separators")?,
        &argument(3, "sort_keys")?,
    )?;
    named.assert_all_used()?;
    let mut writer = JsonWriter { style, out: String::new(), limit: meter::left(state) };
    writer.value(value, 0)?;
    meter::charge(state, writer.out.len())?;
    Ok(Value::from(writer.out))
}

impl Style {
    fn new(ascii: &Value, indent: &Value, separators: &Value, sort: &Value) -> Result<Self, Error> {
        const MAX_INDENT: usize = 64;
        let given = |v: &Value| !v.is_none() && !v.is_undefined();
        let indent = match indent.as_str() {
            Some(text) => Some(text.to_owned()),
            None if given(indent) => {
                let width = indent.as_usize().filter(|&n| n <= MAX_INDENT).ok_or_else(|| {
                    invalid(format!("tojson: indent must be a text or 0 to {MAX_INDENT}"))
                })?;
                Some(" ".repeat(width))
            }
            None => None,
        };
        let mut item = if indent.is_some() { "," } else { ", " }.to_owned();
        let mut key = ": ".to_owned();
        if given(separators) {
            let pair: Vec<Value> = separators.try_iter()?.take(3).collect();
            let [Some(a), Some(b)] = [0, 1].map(|i| pair.get(i).and_then(Value::as_str)) else {
                return Err(invalid("tojson: separators must be two texts"));
            };
            (item, key) = (a.to_owned(), b.to_owned());
        }
        Ok(Self { ensure_ascii: ascii.is_true(), indent, item, key, sort_keys: sort.is_true() })
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

struct JsonWriter {
    style: Style,
    out: String,
    limit: usize,
}

impl JsonWriter {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        // Checked on the way, not at the end, so that the text never outgrows the budget by
        // more than one string.
        if self.out.len() > self.limit {
            return Err(meter::exhausted());
        }
        if depth > meter::MAX_DEPTH {
            return Err(invalid("tojson: value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.sequence(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind => return Err(invalid(format!("tojson: a value of type {kind} has no JSON"))),
        }
        Ok(())
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()?.checked() {
            self.before_item(empty, depth + 1);
            empty = false;
            self.value(&item?, depth + 1)?;
        }
        self.close(empty, depth, ']');
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys = value.try_iter()?.collect::<Vec<_>>();
        if self.style.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        let empty = keys.is_empty();
        for (index, key) in keys.iter().enumerate() {
            self.before_item(index == 0, depth + 1);
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                    self.out.push('"');
                    self.value(key, depth + 1)?;
                    self.out.push('"');
                }
                kind => return Err(invalid(format!("tojson: a key of type {kind} has no JSON"))),
            }
            self.out.push_str(&self.style.key);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.close(empty, depth, '}');
        Ok(())
    }

    fn before_item(&mut self, first: bool, depth: usize) {
        if !first {
            self.out.push_str(&self.style.item);
        }
        self.new_line(depth);
    }

    fn close(&mut self, empty: bool, depth: usize, bracket: char) {
        if !empty {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.style.indent {
            self.out.push('\n');
            (0..depth).for_each(|_| self.out.push_str(indent));
        }
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            self.out.push_str(&value.to_string());
        } else {
            self.out.push_str(&python_float(f64::try_from(value.clone())?));
        }
        Ok(())
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.style.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

/// Python's `repr` of a float: the shortest digits that read back, with an exponent outside
/// 1e-4 to 1e16.
fn python_float(x: f64) -> String {
    if x.is_nan() {
        return "NaN".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let plain = x == 0.0 || (1e-4..1e16).contains(&x.abs());
    if plain {
        return format!("{x:?}");
    }
    let text = format!("{x:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, size) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
    format!("{digits}e{sign}{size:0>2}")
}

#[cfg(test)]
mod tests {
    use super::python_float;

    #[test]
    fn floats_print_as_python_prints_them() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (5e-324, "5e-324"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ];
        for (x, expected) in cases {
            assert_eq!(python_float(x), expected);
        }
    }
}
