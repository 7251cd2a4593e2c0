//! What was posted to the host, held to its rule: nothing writes over a posted view before it can be read.

use forerun_backend::{BackendError, Ticket, View};

/// A view on its way to the host.
#[derive(Clone, Copy, Debug)]
struct Post {
    view: View,
    /// Of the submission that holds it; none before that.
    ticket: Option<Ticket>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Posts {
    posts: Vec<Post>,
    /// The last ticket that was waited for.
    passed: Ticket,
}

impl Posts {
    pub(super) fn post(&mut self, view: View) {
        self.posts.retain(|post| post.view != view);
        self.posts.push(Post { view, ticket: None });
    }

    pub(super) fn submitted(&mut self, ticket: Ticket) {
        self.posts.iter_mut().for_each(|post| post.ticket = post.ticket.or(Some(ticket)));
    }

    /// Forgets what was posted with a submission that failed.
    pub(super) fn abandon(&mut self) {
        self.posts.retain(|post| post.ticket.is_some());
    }

    pub(super) fn passed(&mut self, ticket: Ticket) {
        self.passed = self.passed.max(ticket);
    }

    /// Whether a view can be read whatever else is queued or in flight. It is read once.
    pub(super) fn take(&mut self, view: View) -> bool {
        let passed = self.passed;
        let there = |post: &Post| post.view == view && post.ticket.is_some_and(|t| t <= passed);
        let found = self.posts.iter().position(there);
        found.map(|at| self.posts.swap_remove(at)).is_some()
    }

    /// Refuses a write over a view that nobody can have read yet; forgets those that arrived and were left.
    pub(super) fn written(&mut self, view: View) -> Result<(), BackendError> {
        let passed = self.passed;
        self.posts.retain(|post| post.ticket.is_none_or(|ticket| ticket > passed));
        match self.posts.iter().find(|post| overlap(post.view, view)) {
            None => Ok(()),
            Some(post) => Err(BackendError::Protocol(format!(
                "a write of {view:?} over {:?}, which was posted and not yet waited for",
                post.view
            ))),
        }
    }
}

fn overlap(a: View, b: View) -> bool {
    a.buffer == b.buffer && a.start < b.start + b.len && b.start < a.start + a.len
}
