//! The simulated world: services, store, processes, links, and the messages under way.

use super::super::{Backoff, Reason, decide, news_of};
use super::super::{
    Effect, Event, Formed, Membership, Monotonic, NewGeneration, Saved, Settings, SizeBounds,
};
use super::checker::Checker;
use super::process::{Checkpoint, Process};
use super::{Faults, Random, Tally};
use crate::wire::{ExitStatus, MemberNews, RestartReport, Secret};
use gradsync_formats::identity::{Generation, JobUid, Position};
use std::sync::Arc;
use std::time::Duration;

/// A service and the write that it waits for.
struct Service {
    machine: Membership,
    writing: Option<Arc<NewGeneration>>,
    wants_to_read: bool,
    /// The newest number that it tried.
    tried: Generation,
}

/// News on their way to a process.
struct Reply {
    to: usize,
    news: MemberNews,
    offer: Option<Arc<NewGeneration>>,
}

pub(super) struct World {
    random: Random,
    faults: Faults,
    settings: Settings,
    slots: u32,
    now: Monotonic,
    services: [Option<Service>; 2],
    store: Option<Formed>,
    /// Writes that nobody waits for any more, but that may still arrive.
    late: Vec<Arc<NewGeneration>>,
    processes: Vec<Process>,
    pods: u32,
    requests: Vec<Event>,
    replies: Vec<Reply>,
    /// Pairs of slots that cannot reach each other.
    cuts: Vec<(u32, u32)>,
    checkpoints: Vec<Checkpoint>,
    checker: Checker,
    tally: Tally,
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

    pub(super) fn add_to(&self, tally: &mut Tally) {
        tally.events += self.tally.events;
        tally.generations += self.tally.generations;
        tally.commits += self.tally.commits;
        tally.fenced_waits += self.tally.fenced_waits;
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

    // ----- services and store

    fn start_service(&mut self, which: usize) {
        let saved = Saved {
            formed: self.store.clone(),
            ..Saved::default()
        };
        let mut machine = Membership::restore(self.settings.clone(), saved);
        machine.faults = self.faults;
        self.services[which] = Some(Service {
            machine,
            writing: None,
            wants_to_read: false,
            tried: Generation::NONE,
        });
    }

    fn upset_services(&mut self) -> Result<(), String> {
        let which = self.random.below(2);
        match &mut self.services[which] {
            // What a dying service was writing may or may not arrive.
            Some(service) => {
                self.late.extend(service.writing.take());
                self.services[which] = None;
                if self.services.iter().all(Option::is_none) && self.random.once_in(2) {
                    self.start_service(which);
                }
            }
            None => self.start_service(which),
        }
        if self.services[0].is_none() && self.services[1].is_none() && self.random.once_in(4) {
            self.requests.clear();
        }
        Ok(())
    }

    fn some_service(&mut self) -> Option<usize> {
        let which = self.random.below(2);
        [which, 1 - which]
            .into_iter()
            .find(|&w| self.services[w].is_some())
    }

    /// Hands an event to one of the services.
    fn tell(&mut self, event: Event) -> Result<(), String> {
        match self.some_service() {
            Some(which) => self.tell_service(which, event),
            None => Ok(()),
        }
    }

    fn tell_service(&mut self, which: usize, event: Event) -> Result<(), String> {
        let Some(service) = &mut self.services[which] else {
            return Ok(());
        };
        self.tally.events += 1;
        let outcome = decide(&mut service.machine, event, self.now);
        if matches!(outcome.reason, Reason::WaitingForFencing { .. }) {
            self.tally.fenced_waits += 1;
        }
        for effect in outcome.effects {
            match effect {
                Effect::Persist(new) => {
                    let before = std::mem::replace(&mut service.tried, new.formed.generation);
                    if before >= service.tried {
                        return Err(format!(
                            "generation {before} was tried, and now {} with another plan",
                            service.tried
                        ));
                    }
                    service.writing = Some(new);
                }
                Effect::Publish(generation, plan) => self.checker.on_publish(generation, &plan.digest)?,
                Effect::ReadBack => service.wants_to_read = true,
                Effect::Latch(ending) => return Err(format!("the job ended by itself: {ending:?}")),
                Effect::Refuse(..) | Effect::WakeAt(_) | Effect::Record(_) | Effect::SaveRestarts(_) => {}
            }
        }
        Ok(())
    }

    /// The store takes a write if it still holds what the writer believed.
    fn write(&mut self, new: &Arc<NewGeneration>) -> Result<bool, String> {
        let held = self.store.as_ref().map_or(Generation::NONE, |f| f.generation);
        // A machine that uses a number twice must be caught by what it writes, not be saved by the store.
        if held != new.follows {
            return Ok(false);
        }
        if self
            .store
            .as_ref()
            .is_some_and(|f| f.plan_digest == new.formed.plan_digest)
        {
            return Ok(true);
        }
        self.checker
            .on_persist(self.store.as_ref(), new, &self.processes)?;
        self.store = Some(new.formed.clone());
        self.tally.generations += 1;
        Ok(true)
    }

    /// A pending write, late write or read comes to something.
    fn finish_write(&mut self) -> Result<(), String> {
        if self.random.once_in(4) && !self.late.is_empty() {
            let at = self.random.below(self.late.len());
            let new = self.late.swap_remove(at);
            return self.write(&new).map(|_| ());
        }
        let Some(which) = self.some_service() else {
            return Ok(());
        };
        let Some(service) = &mut self.services[which] else {
            return Ok(());
        };
        if std::mem::take(&mut service.wants_to_read) {
            let found = self.store.clone().map(Box::new);
            return self.tell_service(which, Event::Found(found));
        }
        let Some(new) = service.writing.take() else {
            return Ok(());
        };
        let generation = new.formed.generation;
        match self.random.below(6) {
            // The write fails, or arrives when nobody waits for it any more.
            0 => self.refuse_write(which, generation),
            1 => {
                self.late.push(new);
                self.refuse_write(which, generation)
            }
            // It arrives but its answer is lost; it is read back.
            2 => {
                self.write(&new)?;
                self.refuse_write(which, generation)
            }
            _ => match self.write(&new)? {
                true => self.tell_service(which, Event::Persisted(generation)),
                false => self.refuse_write(which, generation),
            },
        }
    }

    fn refuse_write(&mut self, which: usize, generation: Generation) -> Result<(), String> {
        let found = self.store.clone().map(Box::new);
        self.tell_service(which, Event::PersistRefused { generation, found })
    }

    // ----- messages

    fn say_hello(&mut self, p: usize) {
        let process = &self.processes[p];
        if process.alive && process.linked {
            self.requests.push(Event::Join {
                member: process.id.clone(),
                report: Box::new(process.report(&self.checkpoints)),
                restart: process.restart.clone(),
            });
        }
    }

    fn deliver_request(&mut self) -> Result<(), String> {
        if self.requests.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.requests.len());
        let event = match self.random.below(16) {
            0 => self.requests[at].clone(),
            _ => self.requests.swap_remove(at),
        };
        match self.random.once_in(32) {
            true => Ok(()),
            false => self.tell(event),
        }
    }

    fn poll(&mut self, p: usize) -> Result<(), String> {
        if !self.processes[p].alive || !self.processes[p].linked {
            return Ok(());
        }
        let Some(which) = self.some_service() else {
            return Ok(());
        };
        let Some(service) = &self.services[which] else {
            return Ok(());
        };
        let incarnation = self.processes[p].id.incarnation;
        match news_of(&service.machine, incarnation, |_| Secret::new(String::new())) {
            None => self.say_hello(p),
            Some((news, _)) => {
                let taken_for_lost = !service.machine.members()[&incarnation].live;
                let offer = news.head.as_ref().and(service.machine.offer()).cloned();
                if let Some(offer) = &offer {
                    self.checker
                        .on_publish(offer.formed.generation, &offer.encoded.digest)?;
                }
                self.replies.push(Reply { to: p, news, offer });
                if taken_for_lost {
                    self.say_hello(p);
                }
            }
        }
        Ok(())
    }

    fn deliver_reply(&mut self) -> Result<(), String> {
        if self.replies.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.replies.len());
        let reply = self.replies.swap_remove(at);
        let process = &mut self.processes[reply.to];
        if process.alive && process.hear(&reply.news, reply.offer.as_ref())? {
            self.say_hello(reply.to);
        }
        Ok(())
    }

    // ----- processes

    fn start_pod(&mut self, slot: u32) {
        self.pods += 1;
        self.start_process(slot, self.pods, RestartReport::default());
    }

    fn start_process(&mut self, slot: u32, pod: u32, restart: RestartReport) {
        let number = self.processes.len() as u128 + 1;
        self.processes.push(Process::new(slot, pod, number, restart));
    }

    fn proof_of(&self, p: usize) -> Event {
        Event::Exited {
            member: self.processes[p].id.clone(),
            status: ExitStatus::default(),
        }
    }

    /// The process dies; its agent tells, or starts another one, or both.
    fn kill(&mut self, p: usize) {
        if !std::mem::replace(&mut self.processes[p].alive, false) {
            return;
        }
        let (proof, id) = (self.proof_of(p), self.processes[p].id.clone());
        let restart = RestartReport {
            number: self.processes[p].restart.number + 1,
            replaces: Some(id.incarnation),
            last: None,
        };
        if self.random.once_in(2) {
            self.requests.push(proof);
        }
        self.start_process(id.slot, id.pod.0.parse().unwrap_or(0), restart);
    }

    /// The pod is gone from sight, dead or not, and another one takes its slot.
    fn lose_pod(&mut self, p: usize) {
        let slot = self.processes[p].id.slot;
        let last_of_slot = self.processes.iter().rposition(|q| q.id.slot == slot);
        if last_of_slot != Some(p) {
            return;
        }
        self.processes[p].alive = self.processes[p].alive && self.random.once_in(2);
        self.processes[p].linked = false;
        self.start_pod(slot);
    }

    /// Something goes wrong in the data plane: the process aborts and comes back.
    fn fail(&mut self, p: usize) {
        let process = &self.processes[p];
        if !process.alive || process.is_idle() {
            return;
        }
        let (planned, slot) = (process.planned, process.id.slot);
        let peers = process.plan.iter().flat_map(|plan| plan.formed.members.clone());
        let cut = |other: u32| {
            self.cuts
                .iter()
                .any(|&(a, b)| (a, b) == (slot, other) || (b, a) == (slot, other))
        };
        let unreachable = match process.established == planned {
            true => Vec::new(),
            false => peers.filter(|peer| cut(peer.slot)).collect(),
        };
        self.processes[p].unreachable = unreachable;
        self.processes[p].leave(planned);
        self.say_hello(p);
    }

    fn pass_barrier(&mut self, p: usize) -> Result<(), String> {
        let process = &self.processes[p];
        let Some(plan) = process
            .plan
            .as_ref()
            .filter(|_| process.alive && !process.is_idle())
        else {
            return Ok(());
        };
        let generation = plan.formed.generation;
        // Once all have arrived, each passes by itself, even if another has left again since.
        let arrived = |id| {
            self.processes
                .iter()
                .any(|q| &q.id == id && q.planned >= generation)
        };
        let slots: Vec<u32> = plan.formed.members.iter().map(|m| m.slot).collect();
        let cut = self
            .cuts
            .iter()
            .any(|(a, b)| slots.contains(a) && slots.contains(b));
        if process.established == generation || cut || !plan.formed.members.iter().all(arrived) {
            return Ok(());
        }
        let (member, linked) = (process.id.clone(), process.linked);
        self.processes[p].established = generation;
        if linked {
            self.requests.push(Event::Established { member, generation });
        }
        Ok(())
    }

    /// All members of `p`'s group commit a step; now and then only some of them live to apply it.
    fn commit(&mut self, p: usize) -> Result<(), String> {
        let Some(plan) = self.processes[p].plan.clone() else {
            return Ok(());
        };
        let generation = plan.formed.generation;
        let members: Vec<usize> = (0..self.processes.len())
            .filter(|&q| plan.formed.members.contains(&self.processes[q].id))
            .collect();
        let held = self.processes[p].held;
        let agree = |&q: &usize| self.processes[q].runs_in(generation) && self.processes[q].held == held;
        if members.len() != plan.formed.members.len() || !members.iter().all(agree) {
            return Ok(());
        }
        self.checker.on_commit(generation)?;
        self.tally.commits += 1;
        let next = Some(Position {
            commit: held.map_or(0, |h| h.commit) + 1,
            generation,
        });
        let torn = self.random.once_in(4);
        for q in members {
            if torn && self.random.once_in(2) {
                self.fail(q);
            } else {
                self.processes[q].held = next;
            }
        }
        Ok(())
    }

    fn save_checkpoint(&mut self, p: usize) {
        let process = &self.processes[p];
        if let (Some(plan), Some(position), true) = (&process.plan, process.held, process.alive) {
            self.checkpoints.push(Checkpoint {
                position,
                lineage: plan.formed.lineage.clone(),
            });
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
