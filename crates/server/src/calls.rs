//! What holds an answer to the calls it may or must make.
//!
//! The grammar compiler does not do all that a tool's schema may say. Where a call must come, what it cannot do is
//! named and refused. Where the model decides, the schema is loosened as far as it has to be, and the answer tells of
//! it: an agent with thirty tools must not fail for one keyword in one of them.

use crate::chat::{AnswerOptions, ChatRequest};
use crate::error::ServerError;
use crate::models::LiveModel;
use crate::prepare;
use forerun_grammar::{GrammarError, GrammarSource, Grammars, Loosen, loosen};
use forerun_text::{Dialect, Opening, Tool, ToolChoice};
use serde_json::{Value, json};
use std::sync::{Mutex, PoisonError};

/// Tools that are compiled by themselves to find the one at fault; others are then held to nothing.
const MOST_TRIED: usize = 8;
/// Outcomes that are remembered: an agent sends the same tools with every request.
const MOST_KEPT: usize = 16;

/// What an answer is held to, reasoning apart.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerRules {
    pub(crate) grammar: Option<GrammarSource>,
    /// What of the schemas it is not held to.
    pub(crate) notes: Vec<String>,
}

/// How schemas had to be loosened, by the grammar they make when nothing uncertain is left out.
#[derive(Default)]
pub(crate) struct Loosened(Mutex<Vec<(String, AnswerRules)>>);

impl Loosened {
    fn get(&self, key: &str) -> Option<AnswerRules> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find(|(known, _)| known == key).map(|(_, held)| held.clone())
    }

    fn put(&self, key: String, held: AnswerRules) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MOST_KEPT {
            kept.remove(0);
        }
        kept.push((key, held));
    }
}

/// What is asked of an answer with tools.
pub(crate) struct Asked<'a> {
    pub(crate) dialect: &'a Dialect,
    pub(crate) tools: &'a [Tool],
    pub(crate) opening: Opening,
    pub(crate) request: &'a ChatRequest,
}

impl Asked<'_> {
    /// What the answer has to look like.
    pub(crate) fn held(&self, model: &LiveModel) -> Result<AnswerRules, ServerError> {
        match &self.request.tool_choice {
            None => format_rules(model, &self.request.generation),
            Some(ToolChoice::Auto) if self.tools.is_empty() => {
                format_rules(model, &self.request.generation)
            }
            Some(ToolChoice::Auto) => self.loosened(&model.grammars(), &model.loosened),
            Some(choice) => self.forced(&model.grammars(), choice),
        }
    }

    /// The grammar for these tools; an error says what of them cannot be written.
    fn grammar(
        &self,
        tools: &[Tool],
        choice: &ToolChoice,
    ) -> Result<Option<GrammarSource>, ServerError> {
        let (format, parallel) =
            (self.request.generation.options.constraint.as_ref(), self.request.parallel_tool_calls);
        let calls = match (choice, format) {
            (ToolChoice::Auto, Some(format)) => {
                let schema = match format {
                    GrammarSource::JsonObject => json!({"type": "object"}),
                    GrammarSource::JsonSchema(schema) => loosen(schema, Loosen::Annotations).0,
                    other => {
                        let message = format!("a {} cannot stand beside tools", other.kind());
                        return Err(ServerError::invalid("structured_outputs", message));
                    }
                };
                self.dialect.tool_or_json_grammar(tools, &schema, parallel, self.opening)?
            }
            // A call that is required has a form of its own.
            _ => self.dialect.tool_grammar(tools, choice, parallel, self.opening)?,
        };
        Ok(calls.map(GrammarSource::Lark).or_else(|| format.cloned()))
    }

    /// Where a tool is in the client's request.
    fn place(&self, index: usize) -> String {
        self.request.own_place(&format!("tools[{index}]"))
    }

    fn told(&self, index: usize, tool: &Tool, lost: &dyn std::fmt::Display) -> String {
        format!("{} `{}`: {lost}", self.place(index), tool.name)
    }

    /// One call of this tool, to see whether it can be held to.
    fn can_be_called(&self, grammars: &Grammars, tool: &Tool) -> Tried<Refusal> {
        let tools = std::slice::from_ref(tool);
        let opening = Opening::Closed;
        Ok(match self.dialect.tool_grammar(tools, &ToolChoice::Required, false, opening) {
            Ok(Some(lark)) => {
                tried(grammars, &GrammarSource::Lark(lark))?.map_err(Refusal::Grammar)
            }
            Ok(None) => Ok(()),
            Err(error) => Err(Refusal::Form(error.to_string())),
        })
    }

    /// Where a call must come, its schema holds as a whole.
    fn forced(
        &self,
        made: &Result<&Grammars, ServerError>,
        choice: &ToolChoice,
    ) -> Result<AnswerRules, ServerError> {
        let tools: Vec<Tool> =
            self.tools.iter().map(|tool| loose(tool, Loosen::Annotations).0).collect();
        let refused = match self.grammar(&tools, choice) {
            Ok(None) => return Ok(AnswerRules::default()),
            Ok(Some(grammar)) => match tried(made.clone()?, &grammar)? {
                Ok(()) => return Ok(AnswerRules { grammar: Some(grammar), notes: Vec::new() }),
                Err(error) => error.into(),
            },
            Err(error) => error,
        };
        Err(self.at_fault(made, choice, &tools)?.unwrap_or(refused))
    }

    /// The error that names the tool, and where in it the fault is.
    fn at_fault(
        &self,
        made: &Result<&Grammars, ServerError>,
        choice: &ToolChoice,
        tools: &[Tool],
    ) -> Result<Option<ServerError>, ServerError> {
        let Ok(grammars) = made else { return Ok(None) };
        let called = |tool: &Tool| match choice {
            ToolChoice::Named(name) => tool.name == *name,
            _ => true,
        };
        let tried = tools.iter().enumerate().filter(|(_, tool)| called(tool)).take(4 * MOST_TRIED);
        for (index, tool) in tried {
            let Err(refusal) = self.can_be_called(grammars, tool)? else { continue };
            let schema = Value::Object(self.tools[index].parameters.clone());
            let lost = loosen(&schema, Loosen::Unsupported).1;
            let why = match (lost.first(), refusal) {
                (Some(lost), _) => lost.to_string(),
                (None, Refusal::Form(why)) => why,
                (None, Refusal::Grammar(error)) => why(grammars, schema, &error)?,
            };
            let place = self.place(index);
            let message = format!(
                "{place} `{}`: {why}; simplify the schema, or let `tool_choice` be auto, which loosens it",
                tool.name
            );
            return Ok(Some(ServerError::invalid(&place, message)));
        }
        Ok(None)
    }

    /// Where the model decides, each schema is loosened as far as it has to be.
    fn loosened(
        &self,
        made: &Result<&Grammars, ServerError>,
        known: &Loosened,
    ) -> Result<AnswerRules, ServerError> {
        let mut notes = Vec::new();
        let mut tools = Vec::with_capacity(self.tools.len());
        for (index, tool) in self.tools.iter().enumerate() {
            let (loose, lost) = loose(tool, Loosen::Unsupported);
            notes.extend(lost.iter().map(|lost| self.told(index, tool, lost)));
            tools.push(loose);
        }
        // A form that cannot write one of the arguments says so before anything is compiled.
        let written = self.grammar(&tools, &ToolChoice::Auto);
        let Ok(grammars) = made else {
            return Ok(AnswerRules { grammar: written?, notes });
        };
        let key = match &written {
            Ok(None) => return Ok(AnswerRules { grammar: None, notes }),
            Ok(Some(GrammarSource::Lark(lark))) => lark.clone(),
            Ok(Some(_)) | Err(_) => json!([self.request.tools, notes]).to_string(),
        };
        if let Some(held) = known.get(&key) {
            return Ok(held);
        }
        if let Ok(Some(grammar)) = written
            && tried(grammars, &grammar)?.is_ok()
        {
            return Ok(AnswerRules { grammar: Some(grammar), notes });
        }
        // The schema of the answer itself is held to as ever.
        if let Some(format) = &self.request.generation.options.constraint {
            prepare::compile(grammars, format)?;
        }
        let held = self.loosened_further(grammars, tools, notes)?;
        known.put(key, held.clone());
        Ok(held)
    }

    fn loosened_further(
        &self,
        grammars: &Grammars,
        mut tools: Vec<Tool>,
        mut notes: Vec<String>,
    ) -> Result<AnswerRules, ServerError> {
        let mut failed = 0;
        for (index, tool) in tools.iter_mut().enumerate() {
            if failed < MOST_TRIED && self.can_be_called(grammars, tool)?.is_ok() {
                continue;
            }
            failed += 1;
            let (further, lost) = loose(tool, Loosen::Uncertain);
            if failed < MOST_TRIED && self.can_be_called(grammars, &further)?.is_ok() {
                notes.extend(lost.iter().map(|lost| self.told(index, tool, lost)));
                *tool = further;
            } else {
                notes.push(self.told(index, tool, &"# is beyond the grammar compiler"));
                *tool = open(tool);
            }
        }
        if let Some(grammar) = self.grammar(&tools, &ToolChoice::Auto)?
            && tried(grammars, &grammar)?.is_ok()
        {
            return Ok(AnswerRules { grammar: Some(grammar), notes });
        }
        notes.push("all tools together are beyond the grammar compiler".to_owned());
        let tools: Vec<Tool> = tools.iter().map(open).collect();
        Ok(match self.grammar(&tools, &ToolChoice::Auto)? {
            Some(grammar) if tried(grammars, &grammar)?.is_ok() => {
                AnswerRules { grammar: Some(grammar), notes }
            }
            _ => AnswerRules { grammar: None, notes },
        })
    }
}

/// What is wrong with a schema that has nothing in it which is never implemented, and where.
fn why(grammars: &Grammars, schema: Value, error: &GrammarError) -> Result<String, ServerError> {
    let place = loosen(&schema, Loosen::Uncertain).1.into_iter().next();
    // Compiled by itself, what is wrong may have its place.
    let alone = tried(grammars, &GrammarSource::JsonSchema(schema))?.err();
    let said = alone.as_ref().unwrap_or(error).to_string();
    Ok(match place {
        Some(lost) if lost.path.ends_with("/oneOf") && said.contains("oneOf") => {
            format!("{}: the branches of a `oneOf` have to exclude each other", lost.path)
        }
        Some(lost) if !said.contains("#/") => format!("{said}, at {}", lost.path),
        _ => said,
    })
}

/// The form of an answer beside which nothing is called. A schema that may be loosened is, as far as it has to be.
pub(crate) fn format_rules(
    model: &LiveModel,
    generation: &AnswerOptions,
) -> Result<AnswerRules, ServerError> {
    let format = generation.options.constraint.as_ref();
    let plain = || AnswerRules { grammar: format.cloned(), notes: Vec::new() };
    let Some(whole @ GrammarSource::JsonSchema(schema)) = format.filter(|_| generation.lenient)
    else {
        return Ok(plain());
    };
    let grammars = model.grammars()?;
    let Err(mut refused) = tried(grammars, whole)? else { return Ok(plain()) };
    for how in [Loosen::Unsupported, Loosen::Uncertain] {
        let (loose, lost) = loosen(schema, how);
        let grammar = GrammarSource::JsonSchema(loose);
        match tried(grammars, &grammar)? {
            Ok(()) => {
                let notes = lost.iter().map(|lost| format!("the schema of the answer: {lost}"));
                return Ok(AnswerRules { grammar: Some(grammar), notes: notes.collect() });
            }
            Err(error) => refused = error,
        }
    }
    Err(refused.into())
}

/// What the compiler says of something. The outer error is that nobody waits any more, which says nothing of it.
type Tried<E> = Result<Result<(), E>, ServerError>;

fn tried(grammars: &Grammars, source: &GrammarSource) -> Tried<GrammarError> {
    match prepare::compile(grammars, source) {
        Err(error @ GrammarError::Abandoned { .. }) => Err(error.into()),
        said => Ok(said.map(drop)),
    }
}

/// Why a tool cannot be called under a grammar.
enum Refusal {
    Form(String),
    Grammar(GrammarError),
}

fn loose(tool: &Tool, how: Loosen) -> (Tool, Vec<forerun_grammar::Loosening>) {
    let (parameters, lost) = loosen(&Value::Object(tool.parameters.clone()), how);
    let parameters = match parameters {
        Value::Object(parameters) => parameters,
        _ => tool.parameters.clone(),
    };
    (Tool { name: tool.name.clone(), parameters }, lost)
}

/// A tool with any arguments.
fn open(tool: &Tool) -> Tool {
    let any = json!({"type": "object", "additionalProperties": true});
    let Value::Object(parameters) = any else { unreachable!("written as an object") };
    Tool { name: tool.name.clone(), parameters }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::on_the_side;
    use forerun_model::Blueprint;
    use forerun_text::{ChatTemplate, Tokenizer};
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    /// A request with a tool that takes a while to compile.
    struct Case {
        dialect: Dialect,
        made: Grammars,
        known: Loosened,
        request: ChatRequest,
        tools: Vec<Tool>,
    }

    impl Case {
        fn new() -> Self {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tales-28m");
            let tokenizer = Tokenizer::open(&folder).unwrap();
            let template = ChatTemplate::load(&folder).unwrap().unwrap();
            let vocabulary = Blueprint::open(&folder).unwrap().spec.vocabulary;
            let fields = (0..900).map(|i| (format!("field {i}"), json!({"type": "integer"})));
            let properties: serde_json::Map<_, _> = fields.collect();
            let parameters = json!({"type": "object", "properties": properties});
            let function = json!({"name": "wide", "parameters": parameters});
            let mut request = ChatRequest::new(Vec::new());
            request.tools = vec![json!({"type": "function", "function": function})];
            Self {
                dialect: Dialect::of(&template, &tokenizer),
                made: Grammars::new(&tokenizer, vocabulary, &[2]).unwrap(),
                known: Loosened::default(),
                tools: Tool::parse_all(&request.tools).unwrap(),
                request,
            }
        }

        fn held(&self, choice: &ToolChoice) -> Result<AnswerRules, ServerError> {
            let Self { dialect, tools, request, .. } = self;
            let asked = Asked { dialect, tools, opening: Opening::Closed, request };
            let made = Ok(&self.made);
            match choice {
                ToolChoice::Auto => asked.loosened(&made, &self.known),
                choice => asked.forced(&made, choice),
            }
        }
    }

    /// What comes of work whose client hangs up before it begins.
    fn hung_up<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (begin, begun) = channel();
        let (tell, from) = channel();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let work = on_the_side(move || {
                begun.recv().unwrap();
                tell.send(work()).unwrap();
                Ok(())
            });
            tokio::select! {
                biased;
                _ = work => unreachable!("it has not begun"),
                () = tokio::task::yield_now() => {}
            }
        });
        begin.send(()).unwrap();
        from.recv().unwrap()
    }

    #[test]
    fn a_client_that_hangs_up_ends_its_compiling_and_says_nothing_of_its_tools() {
        for choice in [ToolChoice::Auto, ToolChoice::Required] {
            let case = Arc::new(Case::new());
            let (of_client, asked) = (Arc::clone(&case), choice.clone());
            let left = hung_up(move || of_client.held(&asked));
            let error = left.map(|held| held.notes).unwrap_err().to_string();
            assert!(error.contains("not waited for any more"), "{choice:?}: {error}");
            assert!(case.known.0.lock().unwrap().is_empty(), "{choice:?}");
            // The next client, who waits, is told nothing of the one who left.
            let held = case.held(&choice).unwrap();
            assert!(held.grammar.is_some() && held.notes.is_empty(), "{choice:?}: {held:?}");
        }
    }
}
