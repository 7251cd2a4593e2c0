//! Runs a trace in one engine, each of its requests alone in a fresh one, and compares.

use crate::answer::{ObservedAnswer, ObservedEnding, differs};
use crate::trace::{Action, Ask, EngineChoice, GrammarForm, ModelChoice, Trace};
use forerun_backend::{Backend, Budget};
use forerun_backend_cpu::tuned;
use forerun_base::{DType, SeqId, Token};
use forerun_engine::{
    CacheSettings, CacheUse, Depth, DiskSettings, DraftVocabulary, Engine, Event, FinishReason,
    ModelRunner, Request, Sampling, Settings, Speculation, SpeculationMode, SubmissionBudget,
};
use forerun_grammar::{GrammarSource, Grammars};
use forerun_model::{Blueprint, Model};
use forerun_testkit::Golden;
use forerun_testkit::tiny::{Family, Tiny};
use forerun_text::{GenerationDefaults, Tokenizer, Transcript};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

/// More steps than any trace takes.
const MOST_STEPS: usize = 20_000;
/// The golden whose tokenizer random checkpoints borrow.
const SPELLED: &str = "qwen3_5";

/// A model on disk and what belongs to its text.
struct Opened {
    blueprint: Blueprint,
    tokenizer: Tokenizer,
    grammars: Grammars,
    ends: Vec<Token>,
    /// The folder of random weights, which lives as long as the model.
    _folder: Option<TempDir>,
}

/// Models that were opened, by choice.
#[derive(Default)]
pub(crate) struct Models(HashMap<String, Arc<Opened>>);

impl Models {
    fn open(&mut self, choice: &ModelChoice) -> Arc<Opened> {
        let made = self.0.entry(format!("{choice:?}")).or_insert_with(|| Arc::new(opened(choice)));
        Arc::clone(made)
    }

    /// What differs between a trace's answers and those of the same requests alone, if anything does.
    pub(crate) fn difference(&mut self, trace: &Trace) -> Option<String> {
        let model = self.open(&trace.model);
        let together = match caught(|| together(&model, trace)) {
            Ok(answers) => answers,
            Err(why) => return Some(why),
        };
        let asks = trace.actions.iter().filter_map(|action| match action {
            Action::Ask { id, ask } => Some((id, ask)),
            _ => None,
        });
        for (id, ask) in asks {
            let alone = match caught(|| alone(&model, &trace.engine, ask)) {
                Ok(answer) => answer,
                Err(why) => return Some(format!("request {id}, alone: {why}")),
            };
            // Drafts that are taken unchecked are text of their own.
            let unchecked =
                trace.engine.optimistic && ask.depth != Some(0) && ask.logprobs.is_none();
            if !unchecked && let Some(what) = differs(&together[id], &alone) {
                return Some(format!("request {id}: {what}"));
            }
        }
        None
    }
}

/// The result, or the words of a panic.
fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", text.unwrap_or("without a word")))
    })
}

fn opened(choice: &ModelChoice) -> Opened {
    let mut folder = None;
    let path: PathBuf = match choice {
        ModelChoice::Bundled => {
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tales-28m")
        }
        ModelChoice::Golden(name) => Golden::open(name).checkpoint().to_owned(),
        ModelChoice::Tiny { family, seed, layers } => {
            let known = Family::ALL.into_iter().find(|known| known.model_type() == family);
            let family = known.unwrap_or_else(|| panic!("no family `{family}`"));
            let made = tempfile::tempdir().expect("a folder");
            let mut tiny = Tiny { seed: *seed, layers: *layers, ..Tiny::new(family) };
            tiny.linear.interval = 2;
            tiny.write(made.path());
            let borrowed = Golden::open(SPELLED).checkpoint().join("tokenizer.json");
            std::fs::copy(borrowed, made.path().join("tokenizer.json")).expect("a copy");
            folder.insert(made).path().to_owned()
        }
    };
    let blueprint = Blueprint::open(&path).expect("a model");
    let tokenizer = Tokenizer::open(&path).expect("a tokenizer");
    let mut ends = GenerationDefaults::load(&path).expect("a config").eos_token_ids;
    if ends.is_empty() {
        ends = vec![3];
    }
    let grammars = Grammars::new(&tokenizer, blueprint.spec.vocabulary, &ends).expect("grammars");
    Opened { blueprint, tokenizer, grammars, ends, _folder: folder }
}

fn settings(choice: &EngineChoice, vocabulary: usize) -> Settings {
    let mode = match (choice.drafts, choice.head || choice.ngram, choice.optimistic) {
        (0, ..) | (_, false, _) => SpeculationMode::Off,
        (_, _, true) => SpeculationMode::Optimistic,
        _ => SpeculationMode::Verified,
    };
    let speculation = Speculation {
        mode,
        max_drafts: choice.drafts,
        mtp: choice.head,
        // A repetition taken unchecked would repeat for ever.
        text: choice.ngram && mode == SpeculationMode::Verified,
        vocabulary: match choice.draft_vocabulary {
            0 => DraftVocabulary::Auto,
            tokens => DraftVocabulary::First(tokens.min(vocabulary)),
        },
    };
    Settings {
        context: choice.context,
        sequences: choice.sequences,
        prefill_chunk: choice.chunk,
        speculation: if mode == SpeculationMode::Off { Speculation::OFF } else { speculation },
        kv: kv(&choice.kv),
        step_budget: Duration::from_millis(choice.budget),
        submission_budget: if choice.cut {
            SubmissionBudget::Work(Budget { bytes: 1, flops: 1 })
        } else {
            SubmissionBudget::default()
        },
        cache: CacheSettings {
            bytes: choice.cache << 10,
            interval: Some(choice.interval).filter(|&tokens| tokens > 0),
        },
    }
}

fn kv(name: &str) -> DType {
    match name {
        "f32" => DType::F32,
        "f16" => DType::F16,
        "bf16" => DType::BF16,
        "i8" => DType::I8,
        other => panic!("no type of cache `{other}`"),
    }
}

fn engine(
    model: &Opened,
    choice: &EngineChoice,
    folder: Option<&Path>,
) -> Result<Engine<ModelRunner>, String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let mut backend: Box<dyn Backend> = Box::new(tuned(Some(choice.threads.max(1))));
    let loaded = Model::load(&model.blueprint, &mut *backend, &mut |_| {}).map_err(|e| said(&e))?;
    let settings = settings(choice, model.blueprint.spec.vocabulary);
    let runner = ModelRunner::new(backend, loaded, &settings).map_err(|e| said(&e))?;
    let mut engine = Engine::new(runner);
    if choice.calibrate && engine.speculation_off().is_none() {
        engine.calibrate(Duration::from_millis(5)).map_err(|e| said(&e))?;
    }
    if let Some(folder) = folder {
        let settings = DiskSettings {
            folder: folder.to_owned(),
            bytes: choice.disk << 10,
            identity: model.blueprint.fingerprint(),
        };
        engine.open_disk_cache(&settings).map_err(|e| said(&e))?;
    }
    Ok(engine)
}

/// The request, and the text its answer becomes.
fn request(model: &Opened, ask: &Ask) -> Result<(Request, Arc<Mutex<Transcript>>), String> {
    let constraint = match &ask.form {
        None => None,
        Some(form) => {
            let source = match form.clone() {
                GrammarForm::Json(schema) => GrammarSource::JsonSchema(schema),
                GrammarForm::Regex(expression) => GrammarSource::Regex(expression),
                GrammarForm::Choice(texts) => GrammarSource::Choice(texts),
                GrammarForm::Lark(grammar) => GrammarSource::Lark(grammar),
            };
            Some(model.grammars.compile(&source).map_err(|e| e.to_string())?)
        }
    };
    let ends = if ask.ends { model.ends.clone() } else { Vec::new() };
    let transcript = Transcript::new(Some(&model.tokenizer), ask.stops.clone(), ends.clone());
    let transcript = Arc::new(Mutex::new(transcript.map_err(|e| e.to_string())?));
    let watched = Arc::clone(&transcript);
    let watch = move |token| watched.lock().unwrap_or_else(PoisonError::into_inner).take(token);
    let request = Request {
        sampling: Sampling {
            temperature: ask.temperature,
            top_k: ask.top_k,
            top_p: ask.top_p.unwrap_or(1.0),
            min_p: ask.min_p,
            repetition_penalty: ask.repetition.unwrap_or(1.0),
            presence_penalty: ask.presence,
            frequency_penalty: ask.frequency,
            logit_bias: ask.bias.clone(),
            seed: ask.seed,
        },
        end_tokens: ends,
        watch: Some(Box::new(watch)),
        depth: ask.depth.map_or(Depth::Auto, Depth::Fixed),
        priority: ask.priority,
        constraint,
        logprobs: ask.logprobs,
        cache: if ask.uncached {
            CacheUse::OFF
        } else {
            CacheUse { marks: ask.marks.clone(), ..CacheUse::default() }
        },
        ..Request::greedy(ask.prompt.clone(), ask.max_tokens)
    };
    Ok((request, transcript))
}

/// An engine, and the answers it has given so far.
struct Session<'a> {
    model: &'a Opened,
    engine: Engine<ModelRunner>,
    running: HashMap<SeqId, (usize, Arc<Mutex<Transcript>>)>,
    answers: HashMap<usize, ObservedAnswer>,
    events: Vec<Event>,
    steps: usize,
}

impl Session<'_> {
    fn ask(&mut self, id: usize, ask: &Ask) -> Result<(), String> {
        let (request, transcript) = request(self.model, ask)?;
        let reason = match self.engine.submit(request) {
            Ok(seq) => {
                self.running.insert(seq, (id, transcript));
                ObservedEnding::None
            }
            Err(error) => ObservedEnding::Refused(error.to_string()),
        };
        let answer = ObservedAnswer {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            text: String::new(),
            reason,
        };
        self.answers.insert(id, answer);
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return Err(format!("not done after {MOST_STEPS} steps"));
        }
        self.engine.step(&mut self.events);
        self.take_events();
        Ok(())
    }

    fn take_events(&mut self) {
        for event in self.events.drain(..) {
            match event {
                Event::Started { .. } => {}
                Event::Token { seq, token, logprobs } => {
                    let answer = self.answers.get_mut(&self.running[&seq].0).expect("asked");
                    answer.tokens.push(token);
                    answer.logprobs.push(logprobs);
                }
                Event::Finished { seq, reason, .. } => {
                    let (id, transcript) = self.running.remove(&seq).expect("runs");
                    let answer = self.answers.get_mut(&id).expect("asked");
                    let mut transcript = transcript.lock().unwrap_or_else(PoisonError::into_inner);
                    answer.text = match transcript.finish() {
                        Ok(()) => transcript.text().to_owned(),
                        Err(error) => error.to_string(),
                    };
                    answer.reason = match reason {
                        FinishReason::Cancelled => ObservedEnding::Interrupted,
                        reason => ObservedEnding::Finished(reason),
                    };
                }
            }
        }
    }

    fn cancel(&mut self, id: usize) {
        let found = self.running.iter().find(|(_, (running, _))| *running == id);
        if let Some(seq) = found.map(|(&seq, _)| seq) {
            self.engine.cancel(seq, &mut self.events);
            self.take_events();
        }
    }

    /// Whatever still runs is lost.
    fn lose(&mut self) {
        for (_, (id, _)) in self.running.drain() {
            self.answers.get_mut(&id).expect("asked").reason = ObservedEnding::Interrupted;
        }
    }

    fn finish(mut self) -> Result<HashMap<usize, ObservedAnswer>, String> {
        while !self.engine.is_idle() {
            self.step()?;
        }
        match self.running.len() {
            0 => Ok(self.answers),
            left => Err(format!("idle, but {left} requests have no end")),
        }
    }
}

fn session<'a>(model: &'a Opened, engine: Engine<ModelRunner>) -> Session<'a> {
    let (running, answers, events) = (HashMap::new(), HashMap::new(), Vec::new());
    Session { model, engine, running, answers, events, steps: 0 }
}

/// All requests of a trace, as it says.
fn together(model: &Opened, trace: &Trace) -> Result<HashMap<usize, ObservedAnswer>, String> {
    let folder = (trace.engine.disk > 0 && trace.engine.cache > 0)
        .then(|| tempfile::tempdir().expect("a folder"));
    let folder = folder.as_ref().map(TempDir::path);
    let mut session = session(model, engine(model, &trace.engine, folder)?);
    for action in &trace.actions {
        match action {
            Action::Ask { id, ask } => {
                let mut ask = ask.clone();
                if trace.planted && !session.running.is_empty() && ask.temperature > 0.1 {
                    ask.seed += 1;
                }
                session.ask(*id, &ask)?;
            }
            Action::Step(count) => (0..*count).try_for_each(|_| session.step())?,
            Action::Cancel(id) => session.cancel(*id),
            Action::Restart => {
                session.lose();
                // The folder's lock goes with the engine that held it.
                let Session { engine: old, answers, steps, .. } = session;
                drop(old);
                let engine = engine(model, &trace.engine, folder)?;
                let (running, events) = (HashMap::new(), Vec::new());
                session = Session { model, engine, running, answers, events, steps };
            }
        }
    }
    session.finish()
}

/// One request in an engine of its own: no drafts, no cache, no other request, its prompt read at once.
fn alone(model: &Opened, choice: &EngineChoice, ask: &Ask) -> Result<ObservedAnswer, String> {
    let plain = EngineChoice {
        context: choice.context,
        sequences: 1,
        chunk: choice.context,
        kv: choice.kv.clone(),
        threads: 1,
        ..EngineChoice::default()
    };
    let mut session = session(model, engine(model, &plain, None)?);
    session.ask(0, ask)?;
    Ok(session.finish()?.remove(&0).expect("asked"))
}
