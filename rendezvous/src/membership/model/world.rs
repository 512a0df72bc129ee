//! The simulated world: services, store, processes, links, and the messages under way.

use super::super::{Backoff, Event, Formed, Membership, Monotonic, NewGeneration, Settings, SizeBounds};
use super::checker::Checker;
use super::process::{Checkpoint, Process};
use super::{Faults, Random, Tally};
use crate::wire::MemberNews;
use gradsync_formats::identity::{Generation, JobUid};
use std::sync::Arc;
use std::time::Duration;

/// A service and the write that it waits for.
pub(super) struct Service {
    pub(super) machine: Membership,
    pub(super) writing: Option<Arc<NewGeneration>>,
    pub(super) wants_to_read: bool,
    /// The newest number that it tried.
    pub(super) tried: Generation,
}

/// News on their way to a process.
pub(super) struct Reply {
    pub(super) to: usize,
    pub(super) news: MemberNews,
    pub(super) offer: Option<Arc<NewGeneration>>,
}

pub(super) struct World {
    pub(super) random: Random,
    pub(super) faults: Faults,
    pub(super) settings: Settings,
    pub(super) slots: u32,
    pub(super) now: Monotonic,
    pub(super) services: [Option<Service>; 2],
    pub(super) store: Option<Formed>,
    /// Writes that nobody waits for any more, but that may still arrive.
    pub(super) late: Vec<Arc<NewGeneration>>,
    pub(super) processes: Vec<Process>,
    pub(super) pods: u32,
    pub(super) requests: Vec<Event>,
    pub(super) replies: Vec<Reply>,
    /// Pairs of slots that cannot reach each other.
    pub(super) cuts: Vec<(u32, u32)>,
    pub(super) checkpoints: Vec<Checkpoint>,
    pub(super) checker: Checker,
    pub(super) tally: Tally,
}

impl World {
    pub(super) fn new(seed: u64, faults: Faults) -> World {
        let mut random = Random(seed.wrapping_mul(0xD134_2543_DE82_EF95));
        let slots = 1 + random.below(4) as u32;
        let mut bounds = SizeBounds::fixed(slots);
        if random.once_in(2) {
            bounds.min = 1 + random.below(slots as usize) as u32;
        }
        let mut settings = Settings::new(JobUid("j".into()), bounds, "c".into());
        settings.max_restarts = u32::MAX;
        settings.grows = random.once_in(2);
        settings.backoff = Backoff {
            first: Duration::from_secs(2),
            largest: Duration::from_secs(8),
        };
        let mut world = World {
            random,
            faults,
            settings,
            slots,
            now: Monotonic::default(),
            services: [None, None],
            store: None,
            late: Vec::new(),
            processes: Vec::new(),
            pods: 0,
            requests: Vec::new(),
            replies: Vec::new(),
            cuts: Vec::new(),
            checkpoints: Vec::new(),
            checker: Checker::default(),
            tally: Tally::default(),
        };
        world.start_service(0);
        for slot in 0..slots {
            world.start_pod(slot);
        }
        world
    }

    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Some dozens of random things; mostly after a group has formed, and with quiet stretches between.
    pub(super) fn chaos(&mut self) -> Result<(), String> {
        if !self.random.once_in(4) {
            for p in 0..self.processes.len() {
                self.processes[p].ready = true;
                self.say_hello(p);
            }
            self.quiet_stretch(8)?;
        }
        for _ in 0..20 + self.random.below(80) {
            match self.random.once_in(16) {
                true => self.quiet_stretch(3)?,
                false => self.something()?,
            }
        }
        Ok(())
    }

    fn quiet_stretch(&mut self, longest: usize) -> Result<(), String> {
        for _ in 0..1 + self.random.below(longest) {
            self.calm_round()?;
        }
        Ok(())
    }

    fn something(&mut self) -> Result<(), String> {
        let p = self.random.below(self.processes.len());
        match self.random.below(64) {
            0..=19 => self.deliver_request(),
            20..=27 => self.poll(p),
            28..=37 => self.deliver_reply(),
            38..=41 => self.finish_write(),
            42..=46 => self.pass_barrier(p),
            47..=50 => self.commit(p),
            51 => {
                self.save_checkpoint(p);
                Ok(())
            }
            52..=54 => {
                self.processes[p].ready = true;
                self.say_hello(p);
                Ok(())
            }
            55..=56 => {
                self.now = self
                    .now
                    .after(Duration::from_millis(self.random.below(6000) as u64));
                self.tell(Event::Tick)
            }
            57 => {
                self.fail(p);
                Ok(())
            }
            58 => {
                self.processes[p].linked ^= true;
                Ok(())
            }
            59 => self.tell(Event::Silent(self.processes[p].id.clone())),
            60 => {
                self.kill(p);
                Ok(())
            }
            61 => {
                self.lose_pod(p);
                Ok(())
            }
            62 => self.upset_services(),
            _ => {
                let cut = (
                    self.random.below(self.slots as usize) as u32,
                    self.processes[p].id.slot,
                );
                self.cuts.retain(|_| false);
                if cut.0 != cut.1 && self.random.once_in(2) {
                    self.cuts.push(cut);
                }
                Ok(())
            }
        }
    }

    // ----- the end

    /// Everything is mended and every message flows: a group must form and commit.
    pub(super) fn heal(&mut self) -> Result<(), String> {
        self.cuts.clear();
        self.late.clear();
        if self.services.iter().all(Option::is_none) {
            self.start_service(0);
        }
        if self.services.iter().all(Option::is_some) {
            self.services[self.random.below(2)] = None;
        }
        for slot in 0..self.slots {
            let inside = (0..self.processes.len()).filter(|&p| self.processes[p].id.slot == slot);
            let inside: Vec<usize> = inside.collect();
            let newest = inside.last().copied();
            for p in inside {
                if Some(p) != newest {
                    self.processes[p].alive = false;
                }
                self.processes[p].linked = true;
                self.processes[p].ready = true;
            }
            if newest.is_some_and(|p| !self.processes[p].alive) {
                self.start_pod(slot);
            }
        }
        for p in 0..self.processes.len() {
            self.processes[p].ready = true;
            if self.processes[p].alive {
                self.say_hello(p);
            } else {
                self.requests.push(self.proof_of(p));
            }
        }
        for _ in 0..80 {
            let commits = self.tally.commits;
            self.calm_round()?;
            if self.tally.commits > commits {
                return Ok(());
            }
        }
        let machine = self.services.iter().flatten().next().map(|s| &s.machine);
        Err(format!(
            "no group forms although all is well: {:?}",
            machine.map(|m| (m.reason(), m.generation(), m.settings().bounds))
        ))
    }

    fn calm_round(&mut self) -> Result<(), String> {
        while let Some(event) = (!self.requests.is_empty()).then(|| self.requests.remove(0)) {
            self.tell(event)?;
        }
        for which in 0..2 {
            let Some(service) = &mut self.services[which] else {
                continue;
            };
            if std::mem::take(&mut service.wants_to_read) {
                let found = self.store.clone().map(Box::new);
                self.tell_service(which, Event::Found(found))?;
            } else if let Some(new) = service.writing.take() {
                let generation = new.formed.generation;
                match self.write(&new)? {
                    true => self.tell_service(which, Event::Persisted(generation))?,
                    false => self.refuse_write(which, generation)?,
                }
            }
        }
        for p in 0..self.processes.len() {
            self.poll(p)?;
        }
        while !self.replies.is_empty() {
            self.deliver_reply()?;
        }
        for p in 0..self.processes.len() {
            self.pass_barrier(p)?;
        }
        for p in 0..self.processes.len() {
            self.commit(p)?;
        }
        self.stuck_members_give_up();
        self.now = self.now.after(Duration::from_secs(1));
        self.tell(Event::Tick)
    }

    /// A member in a barrier or group of which another member has left or died notices at its deadline.
    fn stuck_members_give_up(&mut self) {
        for p in 0..self.processes.len() {
            let process = &self.processes[p];
            let Some(plan) = process.plan.as_ref().filter(|_| process.alive) else {
                continue;
            };
            let generation = plan.formed.generation;
            let gone = |q: &Process| !q.alive || q.left >= generation;
            let broken = self
                .processes
                .iter()
                .any(|q| plan.formed.members.contains(&q.id) && gone(q));
            if broken {
                self.fail(p);
            }
        }
    }
}
