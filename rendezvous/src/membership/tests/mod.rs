//! Single stories about the machine. A bench persists at once and keeps the time.

mod ends;
mod forming;
mod trouble;

use super::*;
use crate::wire::{Ask, BaseSource, MemberNews, MemberReport, Plan, Secret, SeenCheckpoint};
use gradsync_formats::identity::{Incarnation, JobUid, Position};
use gradsync_formats::lineage::Lineage;
use gradsync_formats::manifest::Fingerprints;
use std::time::Duration;

/// A machine, its clock and its store.
struct Bench {
    machine: Membership,
    now: Monotonic,
    saved: Saved,
    /// While set, the store takes nothing.
    broken_store: bool,
}

fn settings(pods: u32) -> Settings {
    Settings::new(JobUid("job".into()), SizeBounds::fixed(pods), "config".into())
}

fn elastic(min: u32, max: u32) -> Settings {
    Settings {
        bounds: SizeBounds {
            min,
            max,
            desired: max,
        },
        ..settings(max)
    }
}

/// The process with this number in pod `slot`.
fn member(slot: u32, number: u128) -> MemberId {
    MemberId {
        slot,
        local_rank: 0,
        pod: PodUid(format!("pod-{slot}")),
        incarnation: Incarnation(uuid::Uuid::from_u128(number)),
    }
}

fn fingerprints(data: &str) -> Fingerprints {
    Fingerprints {
        task: "count".into(),
        parameter_layout: "layout".into(),
        data: data.into(),
    }
}

/// An idle, warm member that is out of everything up to `left`.
fn idle(left: u64) -> MemberReport {
    MemberReport {
        ready: true,
        left: Generation(left),
        run_config_digest: Some("config".into()),
        fingerprints: Some(fingerprints("data")),
        addresses: vec!["127.0.0.1:1".into()],
        ..MemberReport::default()
    }
}

/// An idle member that was in generation `left` and holds `held`.
fn back(left: u64, held: Position) -> MemberReport {
    MemberReport {
        established: Generation(left),
        planned: Generation(left),
        held: Some(state_at(held)),
        ..idle(left)
    }
}

/// A member that trains in `generation`.
fn running(generation: u64) -> MemberReport {
    MemberReport {
        established: Generation(generation),
        planned: Generation(generation),
        ..idle(generation - 1)
    }
}

fn state_at(position: Position) -> HeldState {
    HeldState {
        position,
        chain: format!("chain {position}"),
        state_digest: format!("digest {position}"),
    }
}

fn at(generation: u64, commit: u64) -> Position {
    Position {
        commit,
        generation: Generation(generation),
    }
}

fn checkpoint(generation: u64, commit: u64) -> SeenCheckpoint {
    SeenCheckpoint {
        position: at(generation, commit),
        path: format!("step-{commit}-g{generation}"),
        state_digest: "d".into(),
        chain: "c".into(),
        lineage: Lineage::default().extended(Generation(generation), Position::INITIAL),
    }
}

fn exited(code: i32) -> ExitStatus {
    ExitStatus {
        code: Some(code),
        ..ExitStatus::default()
    }
}

impl Bench {
    fn new(settings: Settings) -> Bench {
        Bench {
            machine: Membership::restore(settings, Saved::default()),
            now: Monotonic::default(),
            saved: Saved::default(),
            broken_store: false,
        }
    }

    /// Feeds `event` and everything that the store answers; gives back all effects.
    fn send(&mut self, event: Event) -> Vec<Effect> {
        let mut all = Vec::new();
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for effect in decide(&mut self.machine, event, self.now).effects {
                match &effect {
                    Effect::Persist(new) if self.broken_store => events.push(Event::PersistRefused {
                        generation: new.formed.generation,
                        found: self.saved.formed.clone().map(Box::new),
                    }),
                    Effect::Persist(new) => {
                        self.saved.formed = Some(new.formed.clone());
                        events.push(Event::Persisted(new.formed.generation));
                    }
                    Effect::Latch(ending) => {
                        self.saved.ending = Some(ending.clone());
                        events.push(Event::EndingPersisted);
                    }
                    Effect::SaveRestarts(restarts) => self.saved.restarts = restarts.clone(),
                    Effect::ReadBack => events.push(Event::Found(self.saved.formed.clone().map(Box::new))),
                    Effect::Publish(..) | Effect::Refuse(..) | Effect::WakeAt(_) | Effect::Record(_) => {}
                }
                all.push(effect);
            }
        }
        all
    }

    fn join(&mut self, member: &MemberId, report: MemberReport) -> Vec<Effect> {
        self.send(Event::Join {
            member: member.clone(),
            report: Box::new(report),
            restart: RestartReport::default(),
        })
    }

    /// `member` in the place of `before`, which exited with `code`.
    fn join_after(
        &mut self,
        member: &MemberId,
        report: MemberReport,
        before: &MemberId,
        number: u32,
        code: i32,
    ) {
        self.send(Event::Join {
            member: member.clone(),
            report: Box::new(report),
            restart: RestartReport {
                number,
                replaces: Some(before.incarnation),
                last: Some(exited(code)),
            },
        });
    }

    fn exit(&mut self, member: &MemberId, code: i32) -> Vec<Effect> {
        self.send(Event::Exited {
            member: member.clone(),
            status: exited(code),
        })
    }

    fn establish(&mut self, generation: u64, members: &[MemberId]) {
        for member in members {
            self.send(Event::Established {
                member: member.clone(),
                generation: Generation(generation),
            });
        }
    }

    /// A running group of `pods` members in generation 1.
    fn group(settings: Settings, pods: u32) -> (Bench, Vec<MemberId>) {
        let mut bench = Bench::new(settings);
        let members: Vec<_> = (0..pods).map(|slot| member(slot, u128::from(slot) + 1)).collect();
        for member in &members {
            bench.join(member, idle(0));
        }
        bench.pass(10);
        bench.establish(1, &members);
        assert_eq!(bench.reason_id(), "Running", "{}", bench.machine.reason());
        (bench, members)
    }

    fn pass(&mut self, seconds: u64) -> Vec<Effect> {
        self.now = self.now.after(Duration::from_secs(seconds));
        self.send(Event::Tick)
    }

    fn reason_id(&self) -> &'static str {
        self.machine.reason().id()
    }

    fn plan(&self) -> &Plan {
        &self.machine.offer().expect("a plan is on offer").plan
    }

    fn planned(&self) -> Vec<MemberId> {
        self.plan().members.iter().map(|m| m.id.clone()).collect()
    }

    fn news(&self, member: &MemberId) -> MemberNews {
        let news = news_of(&self.machine, member.incarnation, |_| Secret::new("key".into()));
        news.expect("the member is known").0
    }

    /// The same job with a new service.
    fn restart(&mut self) {
        self.machine = Membership::restore(self.machine.settings().clone(), self.saved.clone());
    }
}
