//! What a tool's schema says about one of its arguments.

use serde_json::{Map, Value, json};

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

    fn and(self, other: Self) -> Self {
        Self {
            text: self.text && other.text,
            null: self.null && other.null,
            boolean: self.boolean && other.boolean,
            number: self.number && other.number,
            array: self.array && other.array,
            object: self.object && other.object,
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
        let Some(schema) = schema.as_object().filter(|_| depth < MAX_DEPTH) else {
            return Self::ALL;
        };
        let sum = |values: &[Value], kinds: &dyn Fn(&Value) -> Self| {
            let mut sum = Self::NONE;
            values.iter().for_each(|value| sum.add(kinds(value)));
            sum
        };
        let inside = |schema: &Value| Self::within(root, schema, depth + 1);
        // Whatever is said has to hold, wherever it is said.
        let mut kinds = Self::ALL;
        for (key, value) in schema {
            let said = match (key.as_str(), value) {
                ("const", value) => Self::of_value(value),
                ("enum", Value::Array(values)) => sum(values, &Self::of_value),
                ("type", Value::String(name)) => Self::of_names(&[name.as_str().into()]),
                ("type", Value::Array(names)) => Self::of_names(names),
                ("anyOf" | "oneOf", Value::Array(branches)) => sum(branches, &inside),
                ("allOf", Value::Array(parts)) => {
                    parts.iter().fold(Self::ALL, |all, part| all.and(inside(part)))
                }
                ("$ref", _) => match target(root, value) {
                    Some(schema) => inside(schema),
                    None => continue,
                },
                _ => continue,
            };
            kinds = kinds.and(said);
        }
        kinds
    }

    fn of_names(names: &[Value]) -> Self {
        let mut kinds = Self::NONE;
        names.iter().filter_map(Value::as_str).for_each(|name| kinds.named(name));
        kinds
    }
}

/// What a reference means in the document `root`.
fn target<'a>(root: &'a Map<String, Value>, reference: &Value) -> Option<&'a Value> {
    let mut steps = reference.as_str()?.strip_prefix("#/")?.split('/');
    let first = root.get(&unescaped(steps.next()?))?;
    steps.try_fold(first, |value, step| value.get(unescaped(step)))
}

/// Follows `$ref` into the definitions of the same document.
pub(super) fn resolved<'a>(root: &'a Map<String, Value>, schema: &'a Value) -> Option<&'a Value> {
    let mut schema = schema;
    for _ in 0..MAX_HOPS {
        let Some(reference) = schema.get("$ref") else { return Some(schema) };
        schema = target(root, reference)?;
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

/// The arguments' schema with what its `$ref` and `allOf` say of properties written out: a form that writes arguments
/// one by one, and its reader, have to know them by name.
pub(super) fn flattened(root: &Map<String, Value>) -> Map<String, Value> {
    if !root.contains_key("$ref") && !root.contains_key("allOf") {
        return root.clone();
    }
    let mut flat = Map::new();
    flatten(root, root, &mut flat, 0);
    flat
}

fn flatten(
    root: &Map<String, Value>,
    part: &Map<String, Value>,
    flat: &mut Map<String, Value>,
    depth: usize,
) {
    for (key, value) in part {
        match (key.as_str(), value) {
            ("$ref" | "allOf", _) => {}
            ("properties", Value::Object(named)) => {
                let known = flat.entry("properties").or_insert_with(|| Map::new().into());
                let Value::Object(known) = known else { continue };
                for (name, schema) in named {
                    let both = match known.get(name) {
                        Some(before) if before != schema => json!({"allOf": [before, schema]}),
                        _ => schema.clone(),
                    };
                    known.insert(name.clone(), both);
                }
            }
            ("required", Value::Array(names)) => {
                let known = flat.entry("required").or_insert_with(|| Value::Array(Vec::new()));
                let Value::Array(known) = known else { continue };
                for name in names {
                    if !known.contains(name) {
                        known.push(name.clone());
                    }
                }
            }
            // Where anything may be added to one part, another may still forbid it.
            ("additionalProperties", value) if *value != Value::Bool(true) => {
                flat.insert(key.clone(), value.clone());
            }
            _ => drop(flat.entry(key).or_insert_with(|| value.clone())),
        }
    }
    if depth >= MAX_DEPTH {
        return;
    }
    let parts = part.get("allOf").and_then(Value::as_array).into_iter().flatten();
    let meant = part.get("$ref").and_then(|reference| target(root, reference));
    for part in parts.chain(meant).filter_map(Value::as_object) {
        flatten(root, part, flat, depth + 1);
    }
}
