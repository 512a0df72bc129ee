//! The simulated services and their store: failing, late and unanswered writes, two services at once.

use super::super::{Effect, Event, Membership, NewGeneration, Reason, Saved, decide};
use super::world::{Service, World};
use gradsync_formats::identity::Generation;
use std::sync::Arc;

impl World {
    pub(super) fn start_service(&mut self, which: usize) {
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

    pub(super) fn upset_services(&mut self) -> Result<(), String> {
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

    pub(super) fn some_service(&mut self) -> Option<usize> {
        let which = self.random.below(2);
        [which, 1 - which]
            .into_iter()
            .find(|&w| self.services[w].is_some())
    }

    /// Hands an event to one of the services.
    pub(super) fn tell(&mut self, event: Event) -> Result<(), String> {
        match self.some_service() {
            Some(which) => self.tell_service(which, event),
            None => Ok(()),
        }
    }

    pub(super) fn tell_service(&mut self, which: usize, event: Event) -> Result<(), String> {
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
    pub(super) fn write(&mut self, new: &Arc<NewGeneration>) -> Result<bool, String> {
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
    pub(super) fn finish_write(&mut self) -> Result<(), String> {
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

    pub(super) fn refuse_write(&mut self, which: usize, generation: Generation) -> Result<(), String> {
        let found = self.store.clone().map(Box::new);
        self.tell_service(which, Event::PersistRefused { generation, found })
    }
}
