//! The crate's promises on the bundled model.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use forerun::{
    Answer, CancelToken, Ending, Error, GenerationOptions, GrammarSource, Messages, Model, Options,
    Pooling, RejectError, StreamEvent,
};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tales-28m")
}

fn model(sequences: usize) -> Model {
    let options = Options { sequences, context: Some(512), ..Options::default() };
    Model::open_with(folder(), &options).unwrap()
}

fn options(tokens: usize) -> GenerationOptions {
    GenerationOptions::new().max_tokens(tokens).seed(11)
}

fn told(answer: &Answer) -> (&[u32], &str) {
    (&answer.token_ids, &answer.text)
}

#[test]
fn answers_read_in_turn_are_those_read_alone() {
    let model = model(3);
    let prompts = ["The king", "Once upon a time there was a miller who", "A"];
    let alone = prompts.map(|p| model.complete(p, options(24)).unwrap().answer().unwrap());
    let together = model.batch(prompts.map(|p| (p, options(24)))).unwrap().answers();
    for (alone, together) in alone.iter().zip(&together) {
        assert_eq!(told(alone), told(together.as_ref().unwrap()));
    }
    let mut streams = prompts.map(|p| model.complete(p, options(24)).unwrap());
    let mut texts = [const { String::new() }; 3];
    for _ in 0..200 {
        for (stream, text) in streams.iter_mut().zip(&mut texts) {
            text.extend(stream.next().map(|event| event.unwrap().text().to_owned()));
        }
    }
    assert_eq!(texts.each_ref().map(String::as_str), alone.each_ref().map(|a| a.text.as_str()));
}

#[test]
fn a_chat_that_lost_its_place_says_the_same_as_one_that_kept_it() {
    let model = model(1);
    let turns = ["I want to book a table for two.", "In Berkeley.", "Tomorrow."];
    // Penalties count what a retained sequence holds and never reads again.
    let mut options = options(24).temperature(0.8);
    options.sampling.repetition_penalty = Some(1.3);
    options.sampling.frequency_penalty = Some(0.2);
    let talk = |disturbed: bool| -> (Vec<Vec<u32>>, Vec<bool>) {
        let mut chat = model.chat().with_options(options.clone());
        let turn = |text: &&str| {
            let finish = chat.send(*text).unwrap().answer().unwrap();
            if disturbed {
                let other = GenerationOptions::new().max_tokens(2);
                model.complete("The king", other).unwrap().answer().unwrap();
            }
            let read_less = finish.finish.read_tokens < finish.finish.prompt_tokens;
            (finish.token_ids, read_less)
        };
        turns.iter().map(turn).unzip()
    };
    let (kept, kept_reads) = talk(false);
    let (lost, lost_reads) = talk(true);
    assert_eq!(kept, lost);
    assert_eq!((kept_reads, lost_reads), (vec![false, true, true], vec![false; 3]));
}

#[test]
fn a_chat_gives_its_place_to_an_answer_that_waits() {
    let model = model(1);
    let mut chat = model.chat().with_options(options(16));
    let mut reply = chat.send("Hello").unwrap();
    let waiting = model.complete("The king", options(4)).unwrap();
    assert!(reply.by_ref().count() > 1);
    assert_eq!(waiting.answer().unwrap().token_ids.len(), 4);
    drop(reply);
    assert_eq!(chat.messages().len(), 2);
}

#[test]
fn a_dropped_stream_ends_its_answer() {
    let model = model(1);
    let mut stream = model.complete("The king", options(400)).unwrap();
    stream.next().unwrap().unwrap();
    drop(stream);
    let answer = model.complete("The fox", options(3)).unwrap().answer().unwrap();
    assert_eq!(answer.token_ids.len(), 3);
}

#[test]
fn a_cancelled_answer_keeps_what_it_has_and_its_chat_goes_on_from_it() {
    let model = model(1);
    let cancel = CancelToken::new();
    let mut chat = model.chat().with_options(options(200).cancel(cancel.clone()));
    let mut reply = chat.send("Tell me a story.").unwrap();
    for event in reply.by_ref() {
        if event.unwrap().token().is_some() {
            cancel.cancel();
        }
    }
    let answer = reply.answer().unwrap();
    assert_eq!(answer.finish.ending, Ending::Cancelled);
    assert!((1..200).contains(&answer.token_ids.len()));
    assert!(cancel.reset());
    assert_eq!(chat.messages().len(), 2);
    let next = chat.send("Go on.").unwrap().answer().unwrap();
    assert_ne!(next.finish.ending, Ending::Cancelled);
    assert!(next.token_ids.len() > 1);
}

#[test]
fn a_stop_string_is_no_part_of_the_text_and_ends_it() {
    let model = model(1);
    let whole = model.complete("The king", options(40)).unwrap().answer().unwrap();
    let stop = whole.text.get(10..14).unwrap().to_owned();
    let cut = model.complete("The king", options(40).stop(&stop)).unwrap().answer().unwrap();
    assert_eq!(cut.finish.ending, Ending::StopString(stop.clone()));
    assert_eq!(cut.text, whole.text[..whole.text.find(&stop).unwrap()]);
}

#[test]
fn events_come_in_order_and_their_texts_are_the_answer() {
    let model = model(1);
    let stream = model.complete("The king", options(12).logprobs(2)).unwrap();
    assert_eq!(stream.sampling().seed, 11);
    let events: Vec<StreamEvent> = stream.map(Result::unwrap).collect();
    assert!(matches!(events.first(), Some(StreamEvent::Started(_))));
    let Some(StreamEvent::Finished(finish)) = events.last() else { panic!("{events:?}") };
    assert_eq!((finish.ending.reason(), finish.completion_tokens), ("length", 12));
    let text: String = events.iter().map(StreamEvent::text).collect();
    let ids: Vec<u32> = events.iter().filter_map(StreamEvent::token).collect();
    assert_eq!(text, model.detokenize(&ids).unwrap());
    let answer = model.complete("The king", options(12).logprobs(2)).unwrap().answer().unwrap();
    assert_eq!(answer.token_ids, ids);
    assert!(answer.logprobs.iter().all(|p| p.logprob <= 0.0 && p.top.len() == 2));
    assert_eq!(answer.logprobs.len(), ids.len());
}

#[test]
fn a_constraint_holds_in_a_chat_and_on_a_text() {
    let model = model(2);
    let yes_or_no = GrammarSource::Choice(vec!["yes".to_owned(), "no".to_owned()]);
    let options = options(20).constraint(yes_or_no);
    let messages = Messages::new().user("Was it good?");
    let answers = [
        model.complete(messages, options.clone()).unwrap().answer().unwrap(),
        model.complete("Was it good?", options).unwrap().answer().unwrap(),
    ];
    for answer in answers {
        assert!(["yes", "no"].contains(&answer.content.as_str()), "{answer:?}");
        assert_eq!(answer.finish.ending, Ending::EndToken);
    }
}

#[test]
fn errors_have_types() {
    let model = model(1);
    let failed = |prompt: &str, options| model.complete(prompt, options).err().unwrap();
    let long = "word ".repeat(600);
    assert!(matches!(failed(&long, options(1)), Error::Reject(RejectError::PromptTooLong { .. })));
    assert!(matches!(failed("", options(1)), Error::Reject(RejectError::EmptyPrompt)));
    let hot = options(1).temperature(-1.0);
    assert!(matches!(failed("a", hot), Error::Reject(RejectError::Sampling { .. })));
    let open = options(1).constraint(GrammarSource::Regex("a[".to_owned()));
    assert!(matches!(failed("a", open), Error::Grammar(_)));
    assert!(matches!(failed("a", options(1).stop("")), Error::Text(_)));
    assert!(matches!(model.complete(vec![1 << 30], options(1)).err(), Some(Error::Reject(_))));
    assert!(matches!(Model::open("no/such/model").err(), Some(Error::Open { .. })));
}

#[test]
fn a_text_is_scored_while_chats_are_open() {
    let model = model(1);
    let mut chat = model.chat().with_options(options(4));
    chat.send("Hello").unwrap().answer().unwrap();
    let scores = model.score("The king had three sons.").unwrap();
    assert_eq!(scores.logprobs.len(), scores.token_ids.len());
    assert_eq!((scores.logprobs[0], scores.scored().count()), (None, scores.token_ids.len() - 1));
    assert!(scores.perplexity().unwrap() > 1.0);
    chat.send("Are you still there?").unwrap().answer().unwrap();
    assert_eq!(chat.messages().len(), 4);
}

#[test]
fn a_long_prompt_tells_how_much_is_read_and_a_cancelled_one_how_much_was() {
    let options_of_model =
        Options { context: Some(512), prefill_chunk: 32, sequences: 1, ..Options::default() };
    let model = Model::open_with(folder(), &options_of_model).unwrap();
    let prompt = "The king had three sons. ".repeat(20);
    let mut stream = model.complete(prompt.as_str(), options(2)).unwrap();
    let of = stream.to_read();
    let mut told = Vec::new();
    while let Some(event) = stream.next() {
        if let StreamEvent::Reading(progress) = event.unwrap() {
            assert_eq!((progress.of, stream.so_far().token_ids.len()), (of, 0));
            told.push(progress.read);
        }
    }
    assert!(told.len() > 2 && told.is_sorted() && told.iter().all(|&read| read < of), "{told:?}");
    let cancel = CancelToken::new();
    let mut stream = model.complete(prompt.as_str(), options(2).cancel(cancel.clone())).unwrap();
    let read = stream.find_map(|event| match event.unwrap() {
        StreamEvent::Reading(progress) => Some(progress.read),
        _ => None,
    });
    cancel.cancel();
    let finish = stream.answer().unwrap().finish;
    assert_eq!((finish.ending, Some(finish.read_tokens)), (Ending::Cancelled, read));
}

#[test]
fn a_turn_that_is_taken_back_is_as_if_it_had_not_been() {
    let model = model(1);
    let mut chat = model.chat().with_options(options(6));
    assert_eq!(chat.take_back(), None);
    let first = chat.send("Hello").unwrap().answer().unwrap();
    let before = chat.messages().to_vec();
    let second = chat.send("A table").unwrap().answer().unwrap();
    assert_eq!(chat.take_back().as_deref(), Some("A table"));
    assert_eq!(chat.messages(), before);
    assert_eq!(told(&chat.send("A table").unwrap().answer().unwrap()), told(&second));
    chat.set_messages(Vec::new());
    assert_eq!(told(&chat.send("Hello").unwrap().answer().unwrap()), told(&first));
}

#[test]
fn an_embedding_is_the_same_bits_whatever_the_chunk_and_says_what_is_alike() {
    let text = "The king had three sons, and the youngest was called Hans. ".repeat(3);
    let with = |prefill_chunk| {
        let options =
            Options { sequences: 1, context: Some(256), prefill_chunk, ..Options::default() };
        let model = Model::open_with(folder(), &options).unwrap();
        [Pooling::Mean, Pooling::Last].map(|pooling| model.embed(&text, pooling).unwrap())
    };
    let [mean, last] = with(512);
    assert_eq!(with(7), [mean.clone(), last.clone()]);
    assert!(mean.tokens > 20 && mean != last);
    let model = model(1);
    let embed = |text: &str| model.embed(text, Pooling::Mean).unwrap();
    let (king, queen, bread) =
        (embed("The king was old."), embed("The queen was old."), embed("Bake it."));
    assert!(king.cosine(&queen) > king.cosine(&bread));
    assert!(matches!(model.embed_tokens(Vec::new(), Pooling::Mean), Err(Error::Engine(_))));
}
