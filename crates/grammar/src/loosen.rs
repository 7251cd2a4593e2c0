//! JSON schemas brought to what the grammar compiler can hold an answer to.
//!
//! The compiler refuses a schema as a whole for one keyword it does not implement. [`loosen`] takes such keywords out,
//! so that an answer is held to the rest, and tells which it took. What is left admits everything the schema admits.

use serde_json::{Map, Value, json};

/// How much is taken out of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loosen {
    /// Only what constrains nothing: descriptions, formats that no specification of JSON Schema names,
    /// `uniqueItems: false`.
    Annotations,
    /// Also keywords the compiler does not implement, and keywords whose value is malformed.
    Unsupported,
    /// Also keywords it implements for some schemas only: `oneOf` becomes `anyOf`; `pattern`, `patternProperties`,
    /// `multipleOf`, bounds of numbers and counts of properties are dropped.
    Uncertain,
}

/// A keyword that was taken out of a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loosening {
    /// Where it stood, as a JSON pointer such as `#/properties/name/not`.
    pub path: String,
    /// Why it was taken out.
    pub why: &'static str,
}

impl std::fmt::Display for Loosening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.path, self.why)
    }
}

/// Losses that are told; a schema of a client may have any number.
const MOST_TOLD: usize = 32;

/// Formats the compiler holds a string to. Others are annotations, as JSON Schema has it.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Versions of JSON Schema the compiler tells apart.
const VERSIONS: [&str; 5] = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
];

const ANNOTATIONS: [&str; 14] = [
    "$comment",
    "$anchor",
    "$dynamicAnchor",
    "$recursiveAnchor",
    "$vocabulary",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentMediaType",
    "contentEncoding",
];

const UNSUPPORTED: [&str; 16] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$recursiveRef",
    "$dynamicRef",
];

const UNCERTAIN: [&str; 9] = [
    "pattern",
    "patternProperties",
    "multipleOf",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minProperties",
    "maxProperties",
];

const TYPES: [&str; 7] = ["null", "boolean", "number", "integer", "string", "array", "object"];

const UNIMPLEMENTED: &str = "is not implemented by the grammar compiler";
const MALFORMED: &str = "has a value that JSON Schema does not allow";
const UNRESOLVED: &str = "refers to nothing in the same schema";

/// A schema without what the grammar compiler cannot do, and what was taken out of it beyond annotations.
pub fn loosen(schema: &Value, how: Loosen) -> (Value, Vec<Loosening>) {
    let mut walk = SchemaWalk { root: schema, how, told: Vec::new() };
    let loose = walk.schema(schema, "#");
    (loose, walk.told)
}

struct SchemaWalk<'a> {
    root: &'a Value,
    how: Loosen,
    told: Vec<Loosening>,
}

impl SchemaWalk<'_> {
    fn tell(&mut self, path: &str, why: &'static str) {
        if self.told.len() < MOST_TOLD {
            self.told.push(Loosening { path: path.to_owned(), why });
        }
    }

    fn schema(&mut self, schema: &Value, path: &str) -> Value {
        match schema {
            Value::Object(fields) => self.object(fields, path).into(),
            Value::Bool(_) => schema.clone(),
            _ if self.how == Loosen::Annotations => schema.clone(),
            _ => {
                self.tell(path, MALFORMED);
                true.into()
            }
        }
    }

    fn object(&mut self, fields: &Map<String, Value>, path: &str) -> Map<String, Value> {
        let mut loose = Map::new();
        for (key, value) in fields {
            let path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
            if constrains_nothing(key, value) {
                continue;
            }
            if let Some(why) = self.loss(key, value) {
                self.tell(&path, why);
                continue;
            }
            if key == "oneOf" && self.how == Loosen::Uncertain {
                self.tell(&path, "is held to as `anyOf`");
                if !fields.contains_key("anyOf") {
                    loose.insert("anyOf".to_owned(), self.keyword(key, value, &path));
                }
                continue;
            }
            loose.insert(key.clone(), self.keyword(key, value, &path));
        }
        loose
    }

    /// Why a keyword cannot stay, if it cannot.
    fn loss(&self, key: &str, value: &Value) -> Option<&'static str> {
        if self.how < Loosen::Unsupported {
            return None;
        }
        if UNSUPPORTED.contains(&key) {
            return Some(UNIMPLEMENTED);
        }
        if !is_well_formed(key, value) {
            return Some(MALFORMED);
        }
        if key == "$ref" && !self.resolves(value) {
            return Some(UNRESOLVED);
        }
        let uncertain = self.how >= Loosen::Uncertain && UNCERTAIN.contains(&key);
        uncertain.then_some("may be beyond the grammar compiler")
    }

    /// Whether the compiler finds what a reference means: it does not decode escapes.
    fn resolves(&self, target: &Value) -> bool {
        let Some(target) = target.as_str() else { return false };
        if matches!(target, "#" | "#/") {
            return true;
        }
        let Some(steps) = target.strip_prefix("#/") else { return false };
        fn inside<'v>(value: &'v Value, step: &str) -> Option<&'v Value> {
            match value {
                Value::Array(items) => items.get(step.parse::<usize>().ok()?),
                other => other.get(step),
            }
        }
        steps.split('/').try_fold(self.root, inside).is_some()
    }

    /// The value of a keyword, with the schemas in it loosened.
    fn keyword(&mut self, key: &str, value: &Value, path: &str) -> Value {
        match (key, value) {
            (
                "items"
                | "additionalItems"
                | "additionalProperties"
                | "not"
                | "if"
                | "then"
                | "else"
                | "contains"
                | "propertyNames"
                | "unevaluatedItems"
                | "unevaluatedProperties",
                Value::Object(_) | Value::Bool(_),
            ) => self.schema(value, path),
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(items)) => {
                let items = items.iter().enumerate();
                items.map(|(at, item)| self.schema(item, &format!("{path}/{at}"))).collect()
            }
            (
                "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas",
                Value::Object(fields),
            ) => {
                let field = |(name, schema): (&String, &Value)| {
                    let path = format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"));
                    (name.clone(), self.schema(schema, &path))
                };
                Value::Object(fields.iter().map(field).collect())
            }
            _ => value.clone(),
        }
    }
}

/// Whether every value passes this keyword.
fn constrains_nothing(key: &str, value: &Value) -> bool {
    match key {
        "format" => value.as_str().is_some_and(|format| !FORMATS.contains(&format)),
        "$schema" => {
            !value.as_str().is_some_and(|version| VERSIONS.contains(&version.trim_end_matches('#')))
        }
        "uniqueItems" | "not" => *value == Value::Bool(false),
        "propertyNames" | "unevaluatedItems" | "unevaluatedProperties" => {
            *value == Value::Bool(true) || *value == json!({})
        }
        "dependencies" | "dependentRequired" | "dependentSchemas" => *value == json!({}),
        _ => ANNOTATIONS.contains(&key),
    }
}

/// Whether the compiler can read the value of a keyword.
fn is_well_formed(key: &str, value: &Value) -> bool {
    let is_type = |name: &Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
    let is_schema = |value: &Value| value.is_object() || value.is_boolean();
    let filled = |value: &Value| value.as_array().is_some_and(|items| !items.is_empty());
    match key {
        "type" => match value {
            Value::Array(names) => !names.is_empty() && names.iter().all(is_type),
            name => is_type(name),
        },
        "enum" | "allOf" | "anyOf" | "oneOf" => filled(value),
        "prefixItems" => value.is_array(),
        "properties" | "patternProperties" | "$defs" | "definitions" => value.is_object(),
        "items" => is_schema(value) || value.is_array(),
        "additionalItems" | "additionalProperties" => is_schema(value),
        "required" => value.as_array().is_some_and(|names| names.iter().all(Value::is_string)),
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
            value.is_u64()
        }
        "minimum" | "maximum" => value.is_number(),
        "exclusiveMinimum" | "exclusiveMaximum" => value.is_number() || value.is_boolean(),
        "multipleOf" => value.as_f64().is_some_and(|step| step > 0.0),
        "pattern" | "format" | "$ref" => value.is_string(),
        _ => true,
    }
}
