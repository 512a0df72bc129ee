//! Signs of life, kept beside the machine so that they cost it nothing.

use crate::wire::{Progress, RankBeat};
use gradsync_formats::identity::{Incarnation, MemberId};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// What is known of one process's life.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) member: MemberId,
    pub(super) heard: Instant,
    /// It is silent when nothing was heard by then.
    due: Instant,
    thread_counter: Option<u64>,
    pub(super) progress: Option<Progress>,
    told: bool,
}

/// The lives of all known processes.
#[derive(Debug)]
pub(super) struct Beats {
    lives: BTreeMap<Incarnation, Life>,
    silent_after: Duration,
}

impl Beats {
    pub(super) fn new(silent_after: Duration) -> Beats {
        Beats {
            lives: BTreeMap::new(),
            silent_after,
        }
    }

    /// A process is expected to be heard of within the timeout and `grace`.
    pub(super) fn expect(&mut self, member: &MemberId, now: Instant, grace: Duration) {
        let due = now + self.silent_after + grace;
        let life = self.lives.entry(member.incarnation).or_insert_with(|| Life {
            member: member.clone(),
            heard: now,
            due,
            thread_counter: None,
            progress: None,
            told: false,
        });
        life.heard = now;
        life.due = due;
        life.told = false;
    }

    /// Takes a beat in; false if the process is not known. A beat whose counter stands still is none.
    pub(super) fn beat(&mut self, beat: RankBeat, now: Instant) -> bool {
        let Some(life) = self.lives.get_mut(&beat.incarnation) else {
            return false;
        };
        if life.thread_counter != Some(beat.thread_counter) {
            life.thread_counter = Some(beat.thread_counter);
            life.heard = now;
            life.due = life.due.max(now + self.silent_after);
        }
        if let Some(progress) = beat.progress {
            life.progress = Some(progress);
        }
        true
    }

    /// Gives everybody `pause` more time: so long this service itself stood still and could hear nobody.
    pub(super) fn excuse(&mut self, pause: Duration) {
        if pause.is_zero() {
            return;
        }
        for life in self.lives.values_mut() {
            life.due += pause;
        }
    }

    pub(super) fn get(&self, incarnation: Incarnation) -> Option<&Life> {
        self.lives.get(&incarnation)
    }

    /// Forgets processes that `known` does not hold for.
    pub(super) fn keep(&mut self, known: impl Fn(Incarnation) -> bool) {
        self.lives.retain(|incarnation, _| known(*incarnation));
    }

    /// Processes whose time is up, each told once.
    pub(super) fn silent(&mut self, now: Instant) -> Vec<MemberId> {
        let mut silent = Vec::new();
        for life in self.lives.values_mut().filter(|l| !l.told && l.due <= now) {
            life.told = true;
            silent.push(life.member.clone());
        }
        silent
    }

    /// When the next process's time is up.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.lives.values().filter(|l| !l.told).map(|l| l.due).min()
    }
}
