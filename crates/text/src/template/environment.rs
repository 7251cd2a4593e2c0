//! The surroundings Hugging Face chat templates expect: their filters, functions and methods,
//! with everything that can make text grow bounded before it runs.

use super::bytecode;
use super::clock::{Clock, strftime};
use super::growth;
use super::json;
use super::meter;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{FunctionArgs, FunctionResult, Kwargs, Rest, ValueOrKwargs, from_args};
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value,
};
use minijinja::{filters, functions, tests};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Instructions one render may execute. Measured: about 400 for a message in a large template.
const FUEL: u64 = 10_000_000;

/// Marks an error as the template's own words; see [`exception_message`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct RaisedByTemplate(String);

/// The syntax of chat templates: `trim_blocks` and `lstrip_blocks` as in `transformers`.
pub(crate) fn syntax() -> SyntaxConfig {
    let mut builder = SyntaxConfig::builder();
    builder.trim_blocks(true).lstrip_blocks(true);
    builder.build().unwrap_or_default()
}

/// An environment for metered programs.
pub(crate) fn environment(clock: Clock) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax());
    environment.set_fuel(Some(FUEL));
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_formatter(emit);
    environment.set_unknown_method_callback(method);
    bytecode::add_operators(&mut environment);
    environment.add_filter("tojson", json::tojson);
    add_text_filters(&mut environment);
    add_list_filters(&mut environment);
    add_comparisons(&mut environment);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", move |state: &mut State, format: &str| {
        // The longest field is the full date and time.
        meter::charge(state, format.len().saturating_mul(16))?;
        Ok::<_, Error>(strftime(format, clock()))
    });
    environment.add_function("namespace", namespace);
    environment.add_function("dict", dict);
    // Prints the whole state: of no use in a prompt, and not metered.
    environment.remove_global("debug");
    environment
}

/// The message of `raise_exception`, when that is what ended the render.
pub(crate) fn exception_message(error: &Error) -> Option<String> {
    let source = std::error::Error::source(error)?;
    source.downcast_ref::<RaisedByTemplate>().map(|raised| raised.0.clone())
}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let raised = RaisedByTemplate(message.as_str().unwrap_or_default().to_owned());
    Err(Error::new(ErrorKind::InvalidOperation, "raised by the template").with_source(raised))
}

fn emit(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(text) => {
            meter::charge(state, text.len())?;
            out.write_str(text)
        }
        None => {
            let text = meter::text_of(state, value)?;
            meter::charge(state, text.len())?;
            out.write_str(&text)
        }
    };
    written.map_err(|_| Error::new(ErrorKind::WriteFailure, "cannot write the prompt"))
}

fn namespace(state: &mut State, start: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let start = dict(state, start, named)?;
    let (start,) = from_args(std::slice::from_ref(&start))?;
    functions::namespace(start)
}

fn dict(state: &mut State, start: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let value = functions::dict(start, named)?;
    meter::checked(state, value)
}

/// Filters that print their input or multiply it: each pays before it runs.
fn add_text_filters(environment: &mut Environment<'_>) {
    metered_filter(environment, "string", "library string", filters::string);
    metered_filter(environment, "safe", "library safe", filters::safe);
    metered_filter(environment, "escape", "library escape", filters::escape);
    metered_filter(environment, "e", "library escape", filters::escape);
    metered_filter(environment, "upper", "library upper", filters::upper);
    metered_filter(environment, "lower", "library lower", filters::lower);
    metered_filter(environment, "title", "library title", filters::title);
    metered_filter(environment, "capitalize", "library capitalize", filters::capitalize);
    metered_filter(environment, "trim", "library trim", filters::trim);
    metered_filter(environment, "pprint", "library pprint", filters::pprint);
    metered_filter(environment, "replace", "library replace", filters::replace);
    metered_filter(environment, "join", "library join", filters::join);
    metered_filter(environment, "indent", "library indent", filters::indent);
    metered_filter(environment, "format", "library format", filters::format);
}

/// Filters that build lists, of as many entries as a number says or a text has: each pays before it runs.
fn add_list_filters(environment: &mut Environment<'_>) {
    metered_filter(environment, "slice", "library slice", filters::slice);
    metered_filter(environment, "batch", "library batch", filters::batch);
    metered_filter(environment, "list", "library list", filters::list);
    metered_filter(environment, "reverse", "library reverse", filters::reverse);
    metered_filter(environment, "split", "library split", filters::split);
    metered_filter(environment, "lines", "library lines", filters::lines);
    metered_filter(environment, "sum", "library sum", filters::sum);
}

/// Filters and tests that compare: each pays for what it reads.
fn add_comparisons(environment: &mut Environment<'_>) {
    metered_filter(environment, "sort", "library sort", filters::sort);
    metered_filter(environment, "dictsort", "library dictsort", filters::dictsort);
    metered_filter(environment, "unique", "library unique", filters::unique);
    metered_filter(environment, "groupby", "library groupby", filters::groupby);
    metered_filter(environment, "min", "library min", filters::min);
    metered_filter(environment, "max", "library max", filters::max);
    type Comparison = fn(&Value, &Value) -> bool;
    const TESTS: [(&[&str], Comparison); 6] = [
        (&["eq", "equalto", "=="], |a, b| a == b),
        (&["ne", "!="], |a, b| a != b),
        (&["lt", "lessthan", "<"], |a, b| a < b),
        (&["le", "<="], |a, b| a <= b),
        (&["gt", "greaterthan", ">"], |a, b| a > b),
        (&["ge", ">="], |a, b| a >= b),
    ];
    for (names, compare) in TESTS {
        for &name in names {
            environment.add_test(name, move |state: &mut State, a: Value, b: Value| {
                let (a, b) = (meter::comparable(state, a)?, meter::comparable(state, b)?);
                Ok::<_, Error>(compare(&a, &b))
            });
        }
    }
    environment.add_test("in", |state: &mut State, a: Value, b: Value| {
        let (a, b) = (meter::comparable(state, a)?, meter::searchable(state, b)?);
        tests::is_in(state, &a, &b)
    });
}

/// Registers a filter of the library under a name no template can spell, and under its own name
/// a version that pays first.
fn metered_filter<F, Rv, Args>(
    environment: &mut Environment<'_>,
    name: &'static str,
    library_name: &'static str,
    filter: F,
) where
    F: functions::Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    environment.add_filter(library_name, filter);
    environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        growth::pay_for_filter(state, name, &args)?;
        state.apply_filter(library_name, &args)
    });
}

/// Python's methods on texts, lists and maps.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    growth::pay_for_method(state, value, name, args)?;
    unknown_method_callback(state, value, name, args)
}
