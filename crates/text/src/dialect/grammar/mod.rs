//! The grammar that holds a model to its calls, as text for `llguidance` (Lark with `%json`).
//!
//! A forced call is one of the tools with arguments its schema admits. Where the model decides,
//! text is free until a call begins; from there it must be well formed. Marks that are special
//! tokens are named by their id, since text cannot spell them.
//!
//! What a form cannot say is not held to: in the forms without JSON, formats of strings and what
//! `allOf` and conditions add.

mod gemma;
mod python;
mod strings;
mod xml;

use super::tool::refused;
use super::{
    CALL_CLOSE, CALL_OPEN, CHANNEL, CHANNEL_OPEN, CallForm, Dialect, GEMMA_CLOSE, GEMMA_OPEN,
    PYTHON_CLOSE, PYTHON_OPEN,
};
use super::{Opening, Tool, ToolChoice};
use crate::error::TextError;
use serde_json::{Value, json};
use std::fmt::Write;

/// Any text, also none.
const TEXT: &str = r"/(.|\n)*/";

/// What calls an answer may or must make, and what it may say instead.
struct Rules<'a> {
    choice: &'a ToolChoice,
    parallel: bool,
    opening: Opening,
    /// JSON Schema of what is said where no tool has to be called; free text by default.
    content: Option<&'a Value>,
}

impl Dialect {
    /// The grammar for an answer that may or must call `tools`, as Lark text. `None` where there
    /// is nothing to hold to: the model decides, and its form has no mark that begins a call.
    ///
    /// `parallel` allows several calls. `opening` is that of the prompt: an answer that may open
    /// its reasoning by itself may do so before a forced call; reasoning that the prompt opened is
    /// over where the grammar begins.
    pub fn tool_grammar(
        &self,
        tools: &[Tool],
        choice: &ToolChoice,
        parallel: bool,
        opening: Opening,
    ) -> Result<Option<String>, TextError> {
        self.grammar(tools, &Rules { choice, parallel, opening, content: None })
    }

    /// The grammar for an answer that calls `tools` or is JSON of this schema. `None` for a model
    /// that cannot call.
    pub fn tool_or_json_grammar(
        &self,
        tools: &[Tool],
        schema: &Value,
        parallel: bool,
        opening: Opening,
    ) -> Result<Option<String>, TextError> {
        let content = Some(schema);
        self.grammar(tools, &Rules { choice: &ToolChoice::Auto, parallel, opening, content })
    }

    fn grammar(&self, tools: &[Tool], rules: &Rules<'_>) -> Result<Option<String>, TextError> {
        let auto = *rules.choice == ToolChoice::Auto;
        let tools: Vec<&Tool> = match rules.choice {
            ToolChoice::Named(name) => tools.iter().filter(|tool| tool.name == *name).collect(),
            _ => tools.iter().collect(),
        };
        let refused = |problem: &str| Err(refused("tool_choice", problem));
        match (self.calls, rules.choice) {
            (None, ToolChoice::Auto) => return Ok(None),
            (Some(CallForm::Bare), ToolChoice::Auto) if rules.content.is_none() => return Ok(None),
            (None, _) => {
                return refused(
                    "this model's chat template has no form for tool calls; remove the tools",
                );
            }
            (_, ToolChoice::Named(name)) if tools.is_empty() => {
                return refused(&format!("there is no tool `{name}`"));
            }
            (_, ToolChoice::Auto) if tools.is_empty() => return Ok(None),
            _ if tools.is_empty() => return refused("a call is required but no tool is given"),
            _ => {}
        }
        let mut lark = Lark { dialect: self, rules: String::new() };
        let think = if rules.opening == Opening::Free { lark.think_rule() } else { "" };
        let one = !rules.parallel || matches!(rules.choice, ToolChoice::Named(_));
        if auto && rules.content.is_none() {
            lark.free_start(one, think);
        } else {
            lark.forced_start(one, think, rules.content.filter(|_| auto));
        }
        let bodies: Vec<String> = (0..tools.len()).map(|n| format!("call_{n}")).collect();
        lark.rule("call", &bodies.join(" | "));
        for (n, tool) in tools.into_iter().enumerate() {
            match self.calls {
                // Arguments are written one by one, so they have to be known.
                Some(CallForm::Xml | CallForm::Gemma | CallForm::Python) => {
                    lark.call(n, &tool.flattened())?
                }
                _ => lark.call(n, tool)?,
            }
        }
        Ok(Some(lark.rules))
    }
}

struct Lark<'a> {
    dialect: &'a Dialect,
    rules: String,
}

impl Lark<'_> {
    fn rule(&mut self, name: &str, body: &str) {
        writeln!(self.rules, "{name}: {body}").expect("a string takes any text");
    }

    /// A mark as the grammar sees it: a special token, or text.
    fn mark(&self, mark: &str) -> String {
        match self.dialect.special_token(mark) {
            Some(token) => format!("<[{token}]>"),
            None => literal(mark),
        }
    }

    /// The marks around a call; a form without them has none.
    fn call_marks(&self) -> (Option<&'static str>, Option<&'static str>) {
        match self.dialect.calls {
            Some(CallForm::Gemma) => (Some(GEMMA_OPEN), Some(GEMMA_CLOSE)),
            Some(CallForm::Marked | CallForm::Xml) => (Some(CALL_OPEN), Some(CALL_CLOSE)),
            Some(CallForm::Python) => (Some(PYTHON_OPEN), Some(PYTHON_CLOSE)),
            _ => (None, None),
        }
    }

    /// An answer of nothing but calls, or of JSON. In terms of `call`: one after its opening mark.
    fn forced_start(&mut self, one: bool, think: &str, content: Option<&Value>) {
        let (open, _) = self.call_marks();
        let opened = open.map(|mark| self.mark(mark) + " ").unwrap_or_default();
        let more = if one || open.is_none() { "" } else { " (gap opened_call)*" };
        let first = if think.is_empty() { "" } else { "(think gap?)? " };
        let other = if content.is_some() { " | content" } else { "" };
        self.rule("start", &format!("{first}answer"));
        self.rule("answer", &format!("opened_call{more}{other}"));
        self.rule("opened_call", &format!("{opened}call"));
        self.rule("gap", r"/\n{1,2}/");
        if let Some(schema) = content {
            self.rule("content", &json_rule(schema.clone()));
        }
    }

    /// An answer of free text in which calls are well formed once they have begun.
    fn free_start(&mut self, one: bool, think: &str) {
        let (open, _) = self.call_marks();
        let open = open.unwrap_or_default();
        let repeat = if one { "?" } else { "*" };
        if self.dialect.special_token(open).is_some() {
            // No text contains a special token, so text may stand anywhere.
            let mark = self.mark(open);
            self.rule("start", &format!("{think}text ({mark} call text){repeat}"));
        } else {
            // The first opening mark in the text ends the free part.
            self.rule("start", &format!("(head call){repeat} text"));
            self.rule("head[lazy]", &format!("TEXT {}", literal(open)));
        }
        self.rule("text", "TEXT");
        self.rule("TEXT", TEXT);
    }

    /// Reasoning the answer opens by itself, if any. Returns its place in a rule.
    fn think_rule(&mut self) -> &'static str {
        let Some(marks) = self.dialect.thinking else { return "" };
        // In this one the opening mark is a token and a word.
        let (first, rest) = match marks == CHANNEL {
            true => (CHANNEL_OPEN, &marks.open[CHANNEL_OPEN.len()..]),
            false => (marks.open, ""),
        };
        let special = |mark| self.dialect.special_token(mark).is_some();
        let rest = if rest.is_empty() { String::new() } else { literal(rest) };
        let open = self.mark(first);
        if special(marks.close) {
            let close = self.mark(marks.close);
            self.rule("think", &format!("{open} {rest} thought {close}"));
            self.rule("thought", "THOUGHT");
        } else {
            self.rule("think", &format!("{open} {rest} thought"));
            self.rule("thought[lazy]", &format!("THOUGHT {}", literal(marks.close)));
        }
        self.rule("THOUGHT", TEXT);
        "think? "
    }

    /// Call `n` after its opening mark.
    fn call(&mut self, n: usize, tool: &Tool) -> Result<(), TextError> {
        let rule = format!("call_{n}");
        let close = self.call_marks().1.map(|mark| self.mark(mark)).unwrap_or_default();
        let name = literal(&tool.name).trim_matches('"').to_owned();
        match self.dialect.calls {
            Some(CallForm::Marked) => {
                let head = format!(r#""\n{{\"name\": \"{name}\", \"arguments\": ""#);
                let schema = json_rule(Value::Object(tool.parameters.clone()));
                self.rule(&rule, &format!(r#"{head} {schema} "}}\n" {close}"#));
            }
            Some(CallForm::Bare) => {
                let head = format!(r#""{{\"name\": \"{name}\", \"parameters\": ""#);
                let schema = json_rule(Value::Object(tool.parameters.clone()));
                self.rule(&rule, &format!(r#"{head} {schema} "}}""#));
            }
            Some(CallForm::Xml) => {
                let parameters = xml::parameters(self, n, tool)?;
                let head = format!(r#""\n<function={name}>\n""#);
                self.rule(&rule, &format!(r#"{head} {parameters} "</function>\n" {close}"#));
            }
            Some(CallForm::Gemma) => {
                let arguments = gemma::arguments(self, n, tool)?;
                self.rule(&rule, &format!(r#""call:{name}" {arguments} {close}"#));
            }
            Some(CallForm::Python) => {
                let arguments = python::arguments(self, n, tool)?;
                self.rule(&rule, &format!(r#""[{name}(" {arguments} "]" {close}"#));
            }
            None => {}
        }
        Ok(())
    }
}

/// Text in quotes, as in JSON.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// JSON of a schema, spaced as chat templates write it.
fn json_rule(mut schema: Value) -> String {
    if let Value::Object(schema) = &mut schema {
        let spacing =
            json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
        schema.insert("x-guidance".to_owned(), spacing);
    }
    format!("%json {schema}")
}

/// Keys stand in the text as they are; one that would end its own mark cannot.
fn check_key(tool: &Tool, key: &str, forbidden: &str) -> Result<(), TextError> {
    if key.is_empty() || key.chars().any(|c| c.is_control() || forbidden.contains(c)) {
        let problem =
            format!("this model's call form has no way to write the argument {}", literal(key));
        return Err(refused(format!("tool `{}`", tool.name), problem));
    }
    Ok(())
}
