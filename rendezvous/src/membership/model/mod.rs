//! Model test of the membership machine: random schedules of joins, losses, silences, partitions, restarts
//! of the service, two services at once, lost, repeated and reordered messages, writes that fail, arrive
//! late or are not answered; a checker looks on after every event.
//!
//! The world is simulated with its own small generator, so that a schedule costs microseconds and a seed
//! replays it: `GRADSYNC_MODEL_SEED=N cargo test -p gradsync-rendezvous model`.

mod checker;
mod members;
mod process;
mod services;
mod world;

use world::World;

/// Deliberate mistakes of the machine, to see that the checker finds them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// A generation that did not open is formed anew under the same number.
    pub(crate) reuse_generation: bool,
    /// Groups form without a holder of the state before.
    pub(crate) ignore_holders: bool,
    /// Plans are shown before they are persisted.
    pub(crate) publish_early: bool,
}

/// Schedules of the normal test run.
const SCHEDULES: u64 = 100_000;

/// SplitMix64: every seed gives another, reproducible course.
pub(super) struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// True once in `times`.
    pub(super) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// What a run of many schedules saw, to show that they were not idle.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) events: u64,
    pub(super) generations: u64,
    pub(super) commits: u64,
    pub(super) fenced_waits: u64,
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.events += other.events;
        self.generations += other.generations;
        self.commits += other.commits;
        self.fenced_waits += other.fenced_waits;
    }
}

fn run(seed: u64, faults: Faults, tally: &mut Tally) -> Result<(), String> {
    let mut world = World::new(seed, faults);
    let result = world.chaos().and_then(|()| world.heal());
    tally.add(world.tally());
    result.map_err(|violation| format!("seed {seed}: {violation}"))
}

#[test]
fn no_random_schedule_breaks_an_invariant_or_hinders_a_group_from_forming() {
    let mut tally = Tally::default();
    if let Ok(seed) = std::env::var("GRADSYNC_MODEL_SEED") {
        let seed = seed.parse().expect("GRADSYNC_MODEL_SEED is a number");
        run(seed, Faults::default(), &mut tally).unwrap();
        return;
    }
    let many = std::env::var("GRADSYNC_MODEL_SCHEDULES").ok();
    let schedules = many.map_or(SCHEDULES, |n| {
        n.parse().expect("GRADSYNC_MODEL_SCHEDULES is a number")
    });
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let part = |first: u64| {
        let mut tally = Tally::default();
        for seed in (first..schedules).step_by(threads as usize) {
            if let Err(violation) = run(seed, Faults::default(), &mut tally) {
                panic!("{violation}; replay with GRADSYNC_MODEL_SEED={seed}");
            }
        }
        tally
    };
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads)
            .map(|first| scope.spawn(move || part(first)))
            .collect();
        for part in parts {
            match part.join() {
                Ok(part) => tally.add(&part),
                Err(violation) => std::panic::resume_unwind(violation),
            }
        }
    });
    println!("{schedules} random schedules: {tally:?}");
    // The schedules must have done something, or their silence proves nothing.
    assert!(tally.events > 20 * schedules && tally.generations > 2 * schedules && tally.commits > schedules);
    assert!(tally.fenced_waits > 0);
}

/// The violation that `faults` lead to, and after how many schedules.
fn caught(faults: Faults) -> String {
    let mut tally = Tally::default();
    (0..20_000)
        .find_map(|seed| run(seed, faults, &mut tally).err())
        .expect("the checker finds the mistake")
}

#[test]
fn a_machine_that_uses_a_generation_twice_is_caught() {
    let violation = caught(Faults {
        reuse_generation: true,
        ..Faults::default()
    });
    assert!(violation.contains("another plan"), "{violation}");
}

#[test]
fn a_machine_that_forms_without_a_holder_of_the_old_state_is_caught() {
    let violation = caught(Faults {
        ignore_holders: true,
        ..Faults::default()
    });
    assert!(violation.contains("without a holder"), "{violation}");
}

#[test]
fn a_machine_that_publishes_before_it_persists_is_caught() {
    let violation = caught(Faults {
        publish_early: true,
        ..Faults::default()
    });
    assert!(violation.contains("before it was persisted"), "{violation}");
}
