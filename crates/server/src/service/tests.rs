//! The engine's thread over a runner that breaks when it is told to.

use super::*;
use crate::answer::{AnswerEvent, Answers, Reader};
use forerun_base::DType;
use forerun_engine::{
    CacheUse, DraftPlan, DraftTokens, EngineError, Follow, SampledTokens, Scheduler, Speculation,
    StateCopies, StateShape, StateStore, StepPlan,
};
use forerun_model::Limits;

/// Says token 0 for ever.
struct Breaking {
    steps: usize,
    /// The step that fails.
    fails: Option<usize>,
    /// The step that panics.
    panics: Option<usize>,
}

impl Runner for Breaking {
    fn run(&mut self, plan: &StepPlan, sampled: &mut SampledTokens) -> Result<(), EngineError> {
        self.steps += 1;
        assert!(Some(self.steps) != self.panics, "the runner is broken");
        if Some(self.steps) == self.fails {
            return Err(EngineError::Settings("the device is on fire".to_owned()));
        }
        sampled.reset(plan);
        Ok(())
    }

    fn draft(
        &mut self,
        plan: &mut DraftPlan,
        drafts: &mut DraftTokens,
        _follow: &mut Follow<'_>,
    ) -> Result<usize, EngineError> {
        drafts.reset(plan);
        Ok(0)
    }

    fn shape(&self) -> StateShape {
        StateShape::default()
    }

    fn copies(&mut self) -> &mut dyn StateCopies {
        unreachable!("there is no cache")
    }
}

fn start(fails: Option<usize>, panics: Option<usize>) -> Started<Breaking> {
    let limits = Limits {
        context: 64,
        sequences: 2,
        rows: 8,
        sampled: 8,
        log_rows: 0,
        kv: DType::F16,
        mtp: false,
        window: 0,
    };
    let runner = Breaking { steps: 0, fails, panics };
    let scheduler = Scheduler::new(limits, 100, Speculation::OFF);
    let engine = Engine::with_parts(scheduler, StateStore::new(&limits), runner);
    let tokenizer = br#"{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}"#;
    let watchers = Watchers { metrics: Arc::new(Metrics::new(None)), traces: Arc::default() };
    let tokenizer = Tokenizer::from_bytes(tokenizer).unwrap();
    Service::start(engine, tokenizer, Places::new(2), watchers).unwrap()
}

fn job(max_tokens: usize) -> Job {
    let generation = Generation { cache: CacheUse::OFF, ..Generation::greedy(vec![0], max_tokens) };
    Job { generation, tell_end: false, request_id: "".into(), owner: None }
}

async fn ask(service: &Service<Breaking>, max_tokens: usize) -> Result<String, ServerError> {
    let places = service.places(1)?;
    let mut answers = Answers::accepted(
        service.submit(vec![job(max_tokens)], places)?,
        vec![Reader::new(None, false)],
    )
    .await?;
    let mut text = String::new();
    while let Some(event) = answers.next().await {
        if let (_, AnswerEvent::Content { text: piece, .. }) = event? {
            text.push_str(&piece);
        }
    }
    Ok(text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_failed_step_ends_its_answers_and_the_next_one_works() {
    let Started { service, warmed, thread, .. } = start(Some(4), None);
    warmed.await.unwrap();
    let failed = ask(&service, 20).await.unwrap_err();
    assert!(failed.to_string().contains("the device is on fire"), "{failed}");
    assert_eq!(ask(&service, 5).await.unwrap(), "a a a a a");
    assert_eq!(service.places.taken(), 0);
    assert!(service.answers_within(Duration::from_secs(60)).await);
    service.stop();
    thread.join().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_step_that_panics_ends_its_answers_and_the_next_one_works() {
    let Started { service, warmed, thread, .. } = start(None, Some(4));
    warmed.await.unwrap();
    let failed = ask(&service, 20).await.unwrap_err();
    assert!(matches!(failed, ServerError::Failed(_)), "{failed:?}");
    assert!(failed.to_string().contains("running the model: the runner is broken"), "{failed}");
    assert_eq!(ask(&service, 5).await.unwrap(), "a a a a a");
    assert_eq!(service.places.taken(), 0);
    assert!(service.answers_within(Duration::from_secs(60)).await);
    service.stop();
    thread.join().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_device_that_makes_no_first_token_is_told_at_start() {
    let Started { warmed, thread, .. } = start(Some(1), None);
    assert!(warmed.await.is_err());
    assert!(thread.join().unwrap().unwrap_err().contains("the device is on fire"));
}
