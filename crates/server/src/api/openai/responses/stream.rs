//! A response as its typed, numbered events.

use super::items::Items;
use super::{Page, status};
use crate::answer::{AnswerEvent, Answers};
use crate::api::sse::{Outbox, Teller};
use crate::wire::responses::{NumberedEvent, ResponseEvent, Status};

pub(super) struct ResponseStream {
    page: Page,
    answers: Answers,
    items: Items,
    started: bool,
    numbers: EventNumbers,
}

/// The number of the next event.
#[derive(Default)]
struct EventNumbers(u64);

impl EventNumbers {
    fn send(&mut self, out: &mut Outbox, event: ResponseEvent<'_>) {
        out.typed(&NumberedEvent { event, sequence_number: self.0 });
        self.0 += 1;
    }
}

impl ResponseStream {
    pub(super) fn new(page: Page, answers: Answers, items: Items) -> Self {
        Self { page, answers, items, started: false, numbers: EventNumbers::default() }
    }

    fn tell(&mut self, out: &mut Outbox, event: AnswerEvent) {
        let Self { page, items, numbers, .. } = self;
        let AnswerEvent::Finished(finish) = event else {
            return items.take(event, &mut |event| numbers.send(out, event));
        };
        let status = status(&finish);
        items.close(status, &mut |event| numbers.send(out, event));
        page.keep(&items.done);
        let response = page.finished(&items.done, &finish);
        let event = match status {
            Status::Incomplete => ResponseEvent::Incomplete { response },
            _ => ResponseEvent::Completed { response },
        };
        numbers.send(out, event);
    }
}

impl Teller for ResponseStream {
    async fn more(&mut self, out: &mut Outbox) -> bool {
        if !std::mem::replace(&mut self.started, true) {
            let view = || self.page.view(Status::InProgress, &[]);
            self.numbers.send(out, ResponseEvent::Created { response: view() });
            self.numbers.send(out, ResponseEvent::InProgress { response: view() });
            return true;
        }
        match self.answers.next().await {
            Some(Ok((_, event))) => self.tell(out, event),
            Some(Err(error)) => {
                let response = self.page.failed(&self.items.done, &error);
                self.numbers.send(out, ResponseEvent::Failed { response });
                return false;
            }
            None => return false,
        }
        true
    }
}
