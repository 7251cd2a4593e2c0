//! Compiles a template so that everything it builds is metered.
//!
//! The template library has no hook on its operators. Its compiler is reachable though, so the
//! instructions are rewritten after compilation: an operator that builds a value becomes a call
//! to its metered twin in [`super::meter`], and checks are put around the rest. The twins have
//! names no template can spell.
//!
//! Refused before compilation: templates over a size, and single tags of so many tokens that
//! the recursive compiler would run long or deep.

use super::meter;
use minijinja::machinery::{
    CodeGenerator, Instruction, Instructions, Token, ast::Stmt, parse, tokenize,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value};
use std::collections::BTreeMap;

const MAX_SOURCE_BYTES: usize = 1 << 20;
const MAX_TAGS: usize = 10_000;
const MAX_TOKENS_PER_TAG: usize = 1_024;

const ADD: &str = "a + b";
const MUL: &str = "a * b";
const CONCAT: &str = "a ~ b";
const SLICE: &str = "a[:]";
const LIST: &str = "[a]";
const TUPLE: &str = "(a)";
const MAP: &str = "{a}";
const CHECKED: &str = "checked value";
const ASSIGNABLE: &str = "assignable value";
const COMPARABLE: &str = "comparable value";
const SEARCHABLE: &str = "searchable value";
/// A factor that is one, but not known to the compiler; see [`rewrite`].
const ONE: &str = "forerun_one";
const TIMES_ONE: &str = "*forerun_one*";

/// A metered program. Borrows the source it was compiled from.
pub(crate) struct MeteredTemplate<'s> {
    pub(crate) main: Instructions<'s>,
    pub(crate) blocks: BTreeMap<&'s str, Instructions<'s>>,
}

/// Makes the functions that metered programs call known to the environment.
pub(crate) fn add_operators(environment: &mut Environment<'_>) {
    environment.add_function(ADD, meter::add);
    environment.add_function(MUL, meter::mul);
    environment.add_function(CONCAT, meter::concat);
    environment.add_function(SLICE, meter::slice);
    environment.add_function(LIST, meter::list);
    environment.add_function(TUPLE, meter::tuple);
    environment.add_function(MAP, meter::map);
    environment.add_function(CHECKED, meter::checked);
    environment.add_function(ASSIGNABLE, meter::assignable);
    environment.add_function(COMPARABLE, meter::comparable);
    environment.add_function(SEARCHABLE, meter::searchable);
    environment.add_global(ONE, 1);
}

/// Checks the size of a template and returns the source to compile.
pub(crate) fn prepare(source: &str, syntax: &SyntaxConfig) -> Result<String, Error> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(too_big(format!("the template is over {MAX_SOURCE_BYTES} bytes")));
    }
    rewrite(source, syntax)
}

/// Parses, compiles and meters a prepared source.
pub(crate) fn compile<'s>(
    source: &'s str,
    syntax: &SyntaxConfig,
) -> Result<MeteredTemplate<'s>, Error> {
    const NAME: &str = "chat template";
    let parsed: Stmt<'s> = parse(source, NAME, syntax.clone())?;
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&parsed);
    let (main, blocks) = generator.finish();
    let blocks = blocks.into_iter().map(|(name, code)| (name, metered(&code))).collect();
    Ok(MeteredTemplate { main: metered(&main), blocks })
}

/// Two changes to the source, made where its tokens lie so that texts are left alone:
///
/// - A variable factor in every product keeps the compiler from working out `'a' * 100000000` on
///   its own, outside the meter.
/// - `{% generation %}`, which marks the assistant's words for training, becomes a plain block.
///
/// Counts tags and tokens on the way.
fn rewrite(source: &str, syntax: &SyntaxConfig) -> Result<String, Error> {
    let mut out = String::with_capacity(source.len() + 64);
    let (mut copied, mut tags, mut tokens) = (0, 0, 0);
    let mut before = PrecedingToken::Other;
    for token in tokenize(source, false, syntax.clone()) {
        let (token, span) = token?;
        tokens += 1;
        let replacement = match (before, &token) {
            (PrecedingToken::TagName, Token::Ident("generation")) => Some("if true"),
            (PrecedingToken::TagName, Token::Ident("endgeneration")) => Some("endif"),
            (PrecedingToken::TagName | PrecedingToken::Other, Token::Mul) => Some(TIMES_ONE),
            _ => None,
        };
        if let Some(replacement) = replacement {
            out.push_str(&source[copied..span.start_offset as usize]);
            out.push_str(replacement);
            copied = span.end_offset as usize;
        }
        before = match token {
            Token::BlockStart => PrecedingToken::TagName,
            Token::ParenOpen | Token::Comma => PrecedingToken::Argument,
            _ => PrecedingToken::Other,
        };
        if matches!(token, Token::VariableStart | Token::BlockStart) {
            (tags, tokens) = (tags + 1, 0);
        }
        if tags > MAX_TAGS || tokens > MAX_TOKENS_PER_TAG {
            return Err(too_big(format!(
                "over {MAX_TAGS} tags, or over {MAX_TOKENS_PER_TAG} tokens in one of them"
            )));
        }
    }
    out.push_str(&source[copied..]);
    Ok(out)
}

/// What may follow the last token.
#[derive(Clone, Copy)]
enum PrecedingToken {
    TagName,
    /// A star here unpacks a list; it does not multiply.
    Argument,
    Other,
}

fn too_big(message: String) -> Error {
    Error::new(ErrorKind::SyntaxError, message)
}

fn metered<'s>(code: &Instructions<'s>) -> Instructions<'s> {
    let original: Vec<_> = (0..).map_while(|at| code.get(at).cloned()).collect();
    let groups: Vec<_> = original.into_iter().map(metered_group).collect();
    // Where each original instruction begins now; one past the end is a jump target too.
    let mut starts = vec![0u32];
    for group in &groups {
        starts.push(starts[starts.len() - 1] + group.len() as u32);
    }
    let mut out = Instructions::new(code.name(), code.source());
    for (at, group) in groups.into_iter().enumerate() {
        let line = code.get_line(at as u32).unwrap_or(0) as u16;
        for mut instruction in group {
            if let Some(target) = jump_target(&mut instruction) {
                *target = starts[*target as usize];
            }
            out.add_with_line(instruction, line);
        }
    }
    out
}

fn jump_target<'i>(instruction: &'i mut Instruction<'_>) -> Option<&'i mut u32> {
    match instruction {
        Instruction::Iterate(target)
        | Instruction::Jump(target)
        | Instruction::JumpIfFalse(target)
        | Instruction::JumpIfFalseOrPop(target)
        | Instruction::JumpIfTrueOrPop(target)
        | Instruction::BuildMacro(_, target, _) => Some(target),
        _ => None,
    }
}

/// The metered form of one instruction. Stack effects are those of the original.
fn metered_group(instruction: Instruction<'_>) -> Vec<Instruction<'_>> {
    use Instruction as I;
    let call = |name, arguments: usize| I::CallFunction(name, Some(arguments as u16));
    // Longer literals keep their instruction: their length is bounded by the tag's.
    let short = |n: usize| n <= MAX_TOKENS_PER_TAG;
    match instruction {
        I::Add => vec![call(ADD, 2)],
        I::Mul => vec![call(MUL, 2)],
        I::StringConcat => vec![call(CONCAT, 2)],
        I::Slice => vec![call(SLICE, 4)],
        I::BuildList(Some(n)) if short(n) => vec![call(LIST, n)],
        I::BuildTuple(Some(n)) if short(n) => vec![call(TUPLE, n)],
        I::BuildMap(n) if short(n) => vec![call(MAP, 2 * n)],
        built @ (I::ApplyFilter(..) | I::CallMethod(..) | I::BuildList(_) | I::BuildTuple(_)) => {
            vec![built, call(CHECKED, 1)]
        }
        // The namespace lies above the value.
        I::SetAttr(name) => vec![I::Swap, call(ASSIGNABLE, 1), I::Swap, I::SetAttr(name)],
        // Emitted values are charged; raw text would not be.
        I::EmitRaw(text) => vec![I::LoadConst(Value::from(text)), I::Emit],
        search @ (I::In | I::CompareAndPreserve(_)) => {
            vec![I::Swap, call(COMPARABLE, 1), I::Swap, call(SEARCHABLE, 1), search]
        }
        compare @ (I::Eq | I::Ne | I::Lt | I::Lte | I::Gt | I::Gte) => {
            vec![I::Swap, call(COMPARABLE, 1), I::Swap, call(COMPARABLE, 1), compare]
        }
        other => vec![other],
    }
}
