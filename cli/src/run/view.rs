//! The live view of a run: a progress bar with one line for each worker on a terminal, plain lines at most
//! every few seconds elsewhere.

use super::summary::duration;
use crate::terminal::put;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::{Duration, Instant};

/// What there is to show.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Optimiser steps applied.
    pub step: u64,
    /// Steps of the whole run, once known.
    pub total_steps: Option<u64>,
    /// Epoch of the last step, from 1.
    pub epoch: u64,
    /// Loss of the last step.
    pub loss: Option<f64>,
    /// Samples per second over all workers, lately.
    pub samples_per_second: Option<f64>,
    /// Seconds left.
    pub eta_seconds: Option<f64>,
    /// What the group does or waits for.
    pub phase: String,
    /// One text for each worker, in order of slots.
    pub workers: Vec<String>,
}

/// Plain output: least time between two lines of progress.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);

/// Where the view is shown.
pub enum View {
    /// A terminal.
    Terminal(Box<Terminal>),
    /// A file or pipe: lines.
    Plain(Plain),
}

/// The bars of a terminal.
pub struct Terminal {
    screen: MultiProgress,
    bar: ProgressBar,
    workers: Vec<ProgressBar>,
}

/// What plain output has shown.
#[derive(Default)]
pub struct Plain {
    shown_at: Option<Instant>,
    shown: Option<Snapshot>,
}

impl View {
    /// A view on standard error: bars if it is a terminal and `plain` is not asked for.
    #[must_use]
    pub fn new(plain: bool) -> View {
        use std::io::IsTerminal as _;
        if plain || !std::io::stderr().is_terminal() {
            return View::Plain(Plain::default());
        }
        let screen = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(8));
        let bar = screen.add(ProgressBar::no_length());
        View::Terminal(Box::new(Terminal {
            screen,
            bar,
            workers: vec![],
        }))
    }

    /// Shows the state of things at `now`.
    pub fn show(&mut self, snapshot: &Snapshot, now: Instant) {
        match self {
            View::Terminal(terminal) => terminal.show(snapshot),
            View::Plain(plain) => {
                if plain.is_due(snapshot, now) {
                    put(&format!("{}\n", line(snapshot)));
                    plain.shown_at = Some(now);
                    plain.shown = Some(snapshot.clone());
                }
            }
        }
    }

    /// Prints a line that stays.
    pub fn say(&self, text: &str) {
        match self {
            // An error of the terminal has nowhere to go.
            View::Terminal(terminal) => drop(terminal.screen.println(text)),
            View::Plain(_) => put(&format!("{text}\n")),
        }
    }

    /// Removes the bars, so that the summary stands alone.
    pub fn finish(&mut self) {
        if let View::Terminal(terminal) = self {
            for worker in &terminal.workers {
                worker.finish_and_clear();
            }
            terminal.bar.finish_and_clear();
        }
    }
}

impl Plain {
    /// A line is due when something other than numbers has changed, or numbers have and the last line is
    /// long enough ago.
    fn is_due(&self, snapshot: &Snapshot, now: Instant) -> bool {
        let (Some(at), Some(shown)) = (self.shown_at, &self.shown) else {
            return true;
        };
        if shown.phase != snapshot.phase || shown.total_steps != snapshot.total_steps {
            return true;
        }
        now.saturating_duration_since(at) >= PLAIN_INTERVAL && shown.step != snapshot.step
    }
}

impl Terminal {
    fn show(&mut self, snapshot: &Snapshot) {
        let template = if snapshot.total_steps.is_some() {
            "{bar:28} {pos}/{len} steps  {msg}"
        } else {
            "{spinner} {msg}"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
        match snapshot.total_steps {
            Some(total) => {
                self.bar.set_length(total);
                self.bar.set_position(snapshot.step);
            }
            None => self.bar.tick(),
        }
        self.bar.set_message(numbers(snapshot));
        while self.workers.len() < snapshot.workers.len() {
            let bar = self.screen.add(ProgressBar::no_length());
            if let Ok(style) = ProgressStyle::with_template("  {msg}") {
                bar.set_style(style);
            }
            self.workers.push(bar);
        }
        for (slot, (bar, text)) in self.workers.iter().zip(&snapshot.workers).enumerate() {
            bar.set_message(format!("worker {slot}  {text}"));
        }
    }
}

/// One line of plain output.
#[must_use]
pub fn line(snapshot: &Snapshot) -> String {
    match snapshot.total_steps {
        Some(total) => format!("step {}/{total}  {}", snapshot.step, numbers(snapshot)),
        None => numbers(snapshot),
    }
}

fn numbers(snapshot: &Snapshot) -> String {
    let mut parts = vec![];
    if snapshot.epoch > 0 {
        parts.push(format!("epoch {}", snapshot.epoch));
    }
    if let Some(loss) = snapshot.loss {
        parts.push(format!("loss {loss:.4}"));
    }
    if let Some(speed) = snapshot.samples_per_second {
        parts.push(format!("{speed:.0} samples/s"));
    }
    if let Some(eta) = snapshot.eta_seconds {
        parts.push(format!("{} left", duration(eta)));
    }
    if !snapshot.phase.is_empty() {
        parts.push(snapshot.phase.clone());
    }
    parts.join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(step: u64, phase: &str) -> Snapshot {
        Snapshot {
            step,
            total_steps: Some(100),
            epoch: 2,
            loss: Some(0.5),
            samples_per_second: Some(1234.4),
            eta_seconds: Some(75.0),
            phase: phase.into(),
            workers: vec![],
        }
    }

    #[test]
    fn a_line_tells_step_epoch_loss_speed_time_left_and_phase() {
        assert_eq!(
            line(&snapshot(7, "training")),
            "step 7/100  epoch 2  loss 0.5000  1234 samples/s  1 min 15 s left  training"
        );
    }

    #[test]
    fn plain_lines_are_rare_but_a_change_of_phase_is_told_at_once() {
        let start = Instant::now();
        let mut plain = Plain::default();
        assert!(plain.is_due(&snapshot(1, "training"), start));
        plain.shown_at = Some(start);
        plain.shown = Some(snapshot(1, "training"));
        assert!(!plain.is_due(&snapshot(2, "training"), start));
        assert!(plain.is_due(&snapshot(2, "stopping"), start));
        assert!(plain.is_due(&snapshot(2, "training"), start + PLAIN_INTERVAL));
        assert!(!plain.is_due(&snapshot(1, "training"), start + PLAIN_INTERVAL));
    }
}
