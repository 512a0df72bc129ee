//! The simulated members' doings: messages to and from the services, barriers, commits, deaths.

use super::super::{Event, news_of};
use super::process::{Checkpoint, Process};
use super::world::{Reply, World};
use crate::wire::{ExitStatus, RestartReport, Secret};
use gradsync_formats::identity::Position;

impl World {
    pub(super) fn say_hello(&mut self, p: usize) {
        let process = &self.processes[p];
        if process.alive && process.linked {
            self.requests.push(Event::Join {
                member: process.id.clone(),
                report: Box::new(process.report(&self.checkpoints)),
                restart: process.restart.clone(),
            });
        }
    }

    pub(super) fn deliver_request(&mut self) -> Result<(), String> {
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

    pub(super) fn poll(&mut self, p: usize) -> Result<(), String> {
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

    pub(super) fn deliver_reply(&mut self) -> Result<(), String> {
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

    pub(super) fn start_pod(&mut self, slot: u32) {
        self.pods += 1;
        self.start_process(slot, self.pods, RestartReport::default());
    }

    pub(super) fn start_process(&mut self, slot: u32, pod: u32, restart: RestartReport) {
        let number = self.processes.len() as u128 + 1;
        self.processes.push(Process::new(slot, pod, number, restart));
    }

    pub(super) fn proof_of(&self, p: usize) -> Event {
        Event::Exited {
            member: self.processes[p].id.clone(),
            status: ExitStatus::default(),
        }
    }

    /// The process dies; its agent tells, or starts another one, or both.
    pub(super) fn kill(&mut self, p: usize) {
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
    pub(super) fn lose_pod(&mut self, p: usize) {
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
    pub(super) fn fail(&mut self, p: usize) {
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

    pub(super) fn pass_barrier(&mut self, p: usize) -> Result<(), String> {
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
    pub(super) fn commit(&mut self, p: usize) -> Result<(), String> {
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

    pub(super) fn save_checkpoint(&mut self, p: usize) {
        let process = &self.processes[p];
        if let (Some(plan), Some(position), true) = (&process.plan, process.held, process.alive) {
            self.checkpoints.push(Checkpoint {
                position,
                lineage: plan.formed.lineage.clone(),
            });
        }
    }
}
