//! What a tool's schema says about one of its arguments.

use serde_json::{Map, Value};

/// References followed before a schema counts as saying nothing.
const MAX_HOPS: usize = 8;
/// How deep alternatives are looked through.
const MAX_DEPTH: usize = 8;

/// The kinds of JSON value a schema admits. One that says nothing admits all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kinds {
    pub(super) text: bool,
    pub(super) null: bool,
    pub(super) boolean: bool,
    pub(super) number: bool,
    pub(super) array: bool,
    pub(super) object: bool,
}

/// What the marks around an argument hold when nothing is known about it.
pub(super) const TEXT_ONLY: Kinds = Kinds { text: true, ..Kinds::NONE };

static ANYTHING: Value = Value::Bool(true);

impl Kinds {
    const NONE: Self = Self {
        text: false,
        null: false,
        boolean: false,
        number: false,
        array: false,
        object: false,
    };
    const ALL: Self =
        Self { text: true, null: true, boolean: true, number: true, array: true, object: true };

    pub(super) fn only_text(self) -> bool {
        self == TEXT_ONLY
    }

    pub(super) fn admits(self, value: &Value) -> bool {
        match value {
            Value::Null => self.null,
            Value::Bool(_) => self.boolean,
            Value::Number(_) => self.number,
            Value::String(_) => self.text,
            Value::Array(_) => self.array,
            Value::Object(_) => self.object,
        }
    }

    fn add(&mut self, other: Self) {
        self.text |= other.text;
        self.null |= other.null;
        self.boolean |= other.boolean;
        self.number |= other.number;
        self.array |= other.array;
        self.object |= other.object;
    }

    fn named(&mut self, name: &str) {
        match name {
            "string" => self.text = true,
            "null" => self.null = true,
            "boolean" => self.boolean = true,
            "number" | "integer" => self.number = true,
            "array" => self.array = true,
            "object" => self.object = true,
            _ => *self = Self::ALL,
        }
    }

    fn of_value(value: &Value) -> Self {
        let mut kinds = Self::NONE;
        match value {
            Value::Null => kinds.null = true,
            Value::Bool(_) => kinds.boolean = true,
            Value::Number(_) => kinds.number = true,
            Value::String(_) => kinds.text = true,
            Value::Array(_) => kinds.array = true,
            Value::Object(_) => kinds.object = true,
        }
        kinds
    }

    /// What `schema` admits; references are looked up in `root`.
    pub(super) fn of(root: &Map<String, Value>, schema: &Value) -> Self {
        Self::within(root, schema, 0)
    }

    fn within(root: &Map<String, Value>, schema: &Value, depth: usize) -> Self {
        let Some(schema) = resolved(root, schema).and_then(Value::as_object) else {
            return Self::ALL;
        };
        let all = |values: &[Value], kinds: &dyn Fn(&Value) -> Self| {
            let mut sum = Self::NONE;
            values.iter().for_each(|value| sum.add(kinds(value)));
            sum
        };
        if let Some(value) = schema.get("const") {
            return Self::of_value(value);
        }
        if let Some(Value::Array(values)) = schema.get("enum") {
            return all(values, &Self::of_value);
        }
        match schema.get("type") {
            Some(Value::String(name)) => {
                let mut kinds = Self::NONE;
                kinds.named(name);
                return kinds;
            }
            Some(Value::Array(names)) => {
                let mut kinds = Self::NONE;
                names.iter().filter_map(Value::as_str).for_each(|name| kinds.named(name));
                return kinds;
            }
            _ => {}
        }
        for key in ["anyOf", "oneOf"] {
            if let (Some(Value::Array(branches)), true) = (schema.get(key), depth < MAX_DEPTH) {
                return all(branches, &|branch| Self::within(root, branch, depth + 1));
            }
        }
        Self::ALL
    }
}

/// Follows `$ref` into the definitions of the same document.
pub(super) fn resolved<'a>(root: &'a Map<String, Value>, schema: &'a Value) -> Option<&'a Value> {
    let mut schema = schema;
    for _ in 0..MAX_HOPS {
        let Some(target) = schema.get("$ref") else { return Some(schema) };
        let mut steps = target.as_str()?.strip_prefix("#/")?.split('/');
        let first = root.get(&unescaped(steps.next()?))?;
        schema = steps.try_fold(first, |value, step| value.get(unescaped(step)))?;
    }
    None
}

/// A step of a JSON pointer.
fn unescaped(step: &str) -> String {
    step.replace("~1", "/").replace("~0", "~")
}

/// The schema of one argument as a document of its own: with the definitions it may refer to.
pub(super) fn standalone(root: &Map<String, Value>, schema: &Value) -> Value {
    let Value::Object(schema) = schema else { return schema.clone() };
    let mut schema = schema.clone();
    for key in ["$defs", "definitions"] {
        if let Some(definitions) = root.get(key) {
            schema.entry(key).or_insert_with(|| definitions.clone());
        }
    }
    Value::Object(schema)
}

/// The arguments a schema names: name, schema, whether it must be given. One that must be given
/// but is not described may be anything.
pub(super) fn properties(root: &Map<String, Value>) -> Vec<(&str, &Value, bool)> {
    let required = root.get("required").and_then(Value::as_array);
    let required = || required.into_iter().flatten().filter_map(Value::as_str);
    let named = root.get("properties").and_then(Value::as_object);
    let mut all: Vec<(&str, &Value, bool)> = named
        .into_iter()
        .flatten()
        .map(|(name, schema)| (name.as_str(), schema, required().any(|n| n == name)))
        .collect();
    for name in required() {
        if !all.iter().any(|(known, ..)| *known == name) {
            all.push((name, &ANYTHING, true));
        }
    }
    all
}

/// The values a schema admits, where it lists them.
pub(super) fn constants<'a>(
    root: &'a Map<String, Value>,
    schema: &'a Value,
) -> Option<&'a [Value]> {
    let schema = resolved(root, schema)?;
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(std::slice::from_ref(value)),
        (_, Some(Value::Array(values))) if !values.is_empty() => Some(values),
        _ => None,
    }
}

/// The kinds of one argument; an unknown one is text, as everything between the marks is.
pub(super) fn kinds_of_argument(root: &Map<String, Value>, name: &str) -> Kinds {
    match root.get("properties").and_then(|named| named.get(name)) {
        Some(schema) => Kinds::of(root, schema),
        None => TEXT_ONLY,
    }
}
