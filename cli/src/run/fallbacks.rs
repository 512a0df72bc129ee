//! Tells of generations that began before the newest checkpoint, and why that one could not be used. Finding the
//! reason means to read a whole checkpoint, which may be large or lie on a mount that does not answer: that is
//! done aside, and nothing else waits for it.

use super::history::Fallback;
use super::view::View;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long the reason is waited for before the first worker starts, and when all else is done.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Finds out why the checkpoint in a folder cannot be used; may take long.
pub(super) type Look = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// See the module.
pub(super) struct Fallbacks {
    look: Look,
    /// The checkpoint that this start found to be damaged before it began, and how. Later there may be nothing
    /// left of it: a generation that goes on without it deletes it.
    damaged: Option<(String, String)>,
    /// How many of the run's fallbacks were taken in.
    taken: usize,
    /// Those whose reason is not known yet, in order. The first one is being looked at.
    open: VecDeque<Fallback>,
    looking: Option<oneshot::Receiver<Option<String>>>,
    told: Vec<Fallback>,
}

impl Fallbacks {
    pub(super) fn new(look: Look, damaged: Option<(String, String)>) -> Fallbacks {
        Fallbacks {
            look,
            damaged,
            taken: 0,
            open: VecDeque::new(),
            looking: None,
            told: vec![],
        }
    }

    /// Takes in all fallbacks of the run so far, and tells those whose reason is known.
    pub(super) fn take(&mut self, all: Vec<Fallback>, view: &View) {
        let more = all.into_iter().skip(self.taken);
        let before = self.open.len();
        self.open.extend(more);
        self.taken += self.open.len() - before;
        self.go_on(view);
    }

    /// Waits for the reason that is being looked for, and tells it. For ever where there is none.
    pub(super) async fn next(&mut self, view: &View) {
        let Some(looking) = &mut self.looking else {
            return std::future::pending().await;
        };
        // One that ended without an answer has panicked, which is logged: the reason stays unknown.
        let reason = looking.await.unwrap_or_default();
        self.looking = None;
        if let Some(mut fallback) = self.open.pop_front() {
            fallback.reason = reason;
            self.tell(fallback, view);
        }
        self.go_on(view);
    }

    /// Waits for all reasons, but not for ever.
    pub(super) async fn rest(&mut self, view: &View) {
        let all = async {
            while self.looking.is_some() {
                self.next(view).await;
            }
        };
        // What is not found by then is told without.
        let _ = tokio::time::timeout(LONGEST_WAIT, all).await;
    }

    /// Tells the ones that are left without their reasons.
    pub(super) fn give_up(&mut self, view: &View) {
        self.looking = None;
        while let Some(fallback) = self.open.pop_front() {
            self.tell(fallback, view);
        }
    }

    /// All that were told.
    pub(super) fn told(self) -> Vec<Fallback> {
        self.told
    }

    /// Tells what is known, and has the next one looked at.
    fn go_on(&mut self, view: &View) {
        while self.looking.is_none()
            && let Some(first) = self.open.front()
        {
            let known = self
                .damaged
                .as_ref()
                .filter(|(path, _)| *path == first.passed_over)
                .map(|(_, reason)| reason.clone());
            if known.is_none() {
                self.looking = Some(aside(&self.look, first.passed_over.clone()));
            } else if let Some(mut first) = self.open.pop_front() {
                first.reason = known;
                self.tell(first, view);
            }
        }
    }

    fn tell(&mut self, fallback: Fallback, view: &View) {
        tracing::warn!("{fallback}");
        view.say(&fallback.to_string());
        self.told.push(fallback);
    }
}

/// What was damaged before this start begins: the checkpoint in `folder`, if it cannot be used. None too where
/// that is not found in time.
pub(super) async fn damaged(look: &Look, folder: &str) -> Option<(String, String)> {
    let looked = tokio::time::timeout(LONGEST_WAIT, aside(look, folder.to_owned())).await;
    let reason = looked.ok()?.ok()??;
    Some((folder.to_owned(), reason))
}

/// Looks on a thread of its own, which nothing waits for at the end of the process.
fn aside(look: &Look, folder: String) -> oneshot::Receiver<Option<String>> {
    let (send, answer) = oneshot::channel();
    let look = Arc::clone(look);
    // Whoever asked may have gone on without the answer.
    std::thread::spawn(move || drop(send.send(look(&folder))));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradsync_formats::identity::Generation;
    use std::sync::{Mutex, mpsc};

    fn fallback(generation: u64, folder: &str) -> Fallback {
        Fallback {
            generation: Generation(generation),
            passed_over: folder.into(),
            reason: None,
            used: None,
        }
    }

    /// A look that waits for a word, which is then the reason. It waits no longer than a minute.
    fn waiting() -> (mpsc::Sender<String>, Look) {
        let (send, words) = mpsc::channel();
        let words = Mutex::new(words);
        let look = move |_: &str| words.lock().unwrap().recv_timeout(Duration::from_secs(60)).ok();
        (send, Arc::new(look))
    }

    #[tokio::test]
    async fn a_reason_that_takes_long_holds_nothing_up_and_is_told_when_it_is_found() {
        let (word, look) = waiting();
        let view = View::new(true);
        let mut fallbacks = Fallbacks::new(look, Some(("b".into(), "torn".into())));
        let all = vec![fallback(2, "a"), fallback(3, "b")];
        fallbacks.take(all.clone(), &view);
        fallbacks.take(all, &view);
        assert!(fallbacks.told.is_empty());
        word.send("cut".into()).unwrap();
        fallbacks.next(&view).await;
        let told: Vec<_> = fallbacks
            .told()
            .into_iter()
            .map(|f| (f.generation.0, f.reason.unwrap()))
            .collect();
        assert_eq!(told, [(2, "cut".to_owned()), (3, "torn".to_owned())]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reason_that_is_not_found_in_time_is_left_out_at_the_end() {
        let (_word, look) = waiting();
        let view = View::new(true);
        let mut fallbacks = Fallbacks::new(look, None);
        fallbacks.take(vec![fallback(2, "a")], &view);
        fallbacks.rest(&view).await;
        fallbacks.give_up(&view);
        let told = fallbacks.told();
        assert_eq!((told.len(), &told[0].reason), (1, &None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_does_not_wait_for_a_look_that_does_not_end() {
        let (word, look) = waiting();
        assert_eq!(damaged(&look, "a").await, None);
        drop(word);
    }
}
