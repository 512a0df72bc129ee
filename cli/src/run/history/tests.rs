use super::*;
use gradsync_formats::identity::{Incarnation, JobUid, PodUid};

fn opened(generation: u64, rank: u32, lineage: &Lineage) -> RecordLine {
    RecordLine::Opened {
        version: 1,
        job_uid: JobUid("u".into()),
        generation: Generation(generation),
        member: MemberId {
            slot: rank,
            local_rank: 0,
            pod: PodUid("p".into()),
            incarnation: Incarnation::fresh(),
        },
        rank,
        world_size: 2,
        lineage: lineage.clone(),
        epoch_samples: 10,
        global_batch_size: 4,
        micro_batch_size: 2,
        seed: 1,
        origin: DataProgress::default(),
        length: Length::Epochs(2),
        at: "2026-01-01T00:00:00Z".into(),
    }
}

fn step(generation: u64, commit: u64, loss: &str) -> [RecordLine; 2] {
    let position = at(generation, commit);
    [
        RecordLine::Computed {
            position,
            epoch: 0,
            cursor: 0,
            samples: 4,
            parts: vec![],
        },
        RecordLine::Committed {
            position,
            kind: CommitKind::Apply,
            progress: DataProgress {
                step: commit,
                epoch: 0,
                cursor: 4 * commit,
            },
            loss: loss.into(),
            chain: String::new(),
            seconds: 0.5,
            compute_seconds: 0.3,
            wait_seconds: 0.1,
        },
    ]
}

fn at(generation: u64, commit: u64) -> Position {
    Position {
        commit,
        generation: Generation(generation),
    }
}

/// One generation of two ranks that committed three steps.
pub(in crate::run) fn history() -> History {
    let mut history = History::default();
    let first = Lineage::default().extended(Generation(1), Position::INITIAL);
    for rank in [0, 1] {
        let file = format!("1-{rank}");
        history.take(&file, opened(1, rank, &first));
        for commit in 1..=3 {
            for line in step(1, commit, "1.5") {
                history.take(&file, line);
            }
        }
    }
    history
}

#[test]
fn commits_that_a_later_generation_undid_do_not_count() {
    let mut history = history();
    assert_eq!(history.steps().count(), 3);
    let second = history.lineage().extended(Generation(2), at(1, 2));
    history.take("2-0", opened(2, 0, &second));
    for line in step(2, 3, "nan") {
        history.take("2-0", line);
    }
    let seen: Vec<(u64, u64, Option<f64>)> = history
        .steps()
        .map(|m| (m.commit, m.generation.0, m.loss))
        .collect();
    assert_eq!(seen, [(1, 1, Some(1.5)), (2, 1, Some(1.5)), (3, 2, None)]);
}

#[test]
fn total_and_speed_come_from_the_record() {
    let history = history();
    assert_eq!(history.total_steps(), Some(6), "two epochs of ceil(10 / 4) steps");
    assert_eq!(history.samples_per_second(2), Some(8.0));
    assert_eq!(history.world_size(), Some(2));
}

#[test]
fn digests_are_those_of_the_newest_state_only() {
    let mut history = history();
    for (rank, commit, digest) in [(0, 2, "old"), (0, 3, "a"), (1, 3, "b")] {
        let line = RecordLine::Agreed {
            position: at(1, commit),
            digest: digest.into(),
        };
        history.take(&format!("1-{rank}"), line);
    }
    let seen: Vec<(u32, String)> = history
        .digests()
        .into_iter()
        .map(|d| (d.rank, d.digest))
        .collect();
    assert_eq!(seen, [(0, "a".into()), (1, "b".into())]);
}

#[test]
fn lines_of_a_file_without_its_first_line_are_ignored() {
    let mut history = History::default();
    for line in step(1, 1, "1") {
        history.take("torn", line);
    }
    assert_eq!(history.steps().count(), 0);
}

#[test]
fn a_recovery_that_was_interrupted_is_listed_without_its_phases() {
    let mut history = history();
    let second = history.lineage().extended(Generation(2), at(1, 2));
    history.take("2-0", opened(2, 0, &second));
    let third = history.lineage().extended(Generation(3), at(1, 2));
    history.take("3-0", opened(3, 0, &third));
    for detect_ms in [1.0, 5.0] {
        let line = RecordLine::Recovered {
            generation: Generation(3),
            reason: "lost".into(),
            detect_ms,
            form_ms: 1.0,
            state_ms: 1.0,
            first_step_ms: 1.0,
        };
        history.take("3-0", line);
    }
    let seen: Vec<(u64, Option<f64>)> = history
        .recoveries()
        .iter()
        .map(|r| (r.generation.0, r.total_ms()))
        .collect();
    assert_eq!(seen, [(2, None), (3, Some(8.0))]);
}

#[test]
fn going_back_beyond_the_newest_checkpoint_is_noticed_once() {
    let mut history = history();
    let checkpoint = |generation, commit| RecordLine::Checkpointed {
        position: at(generation, commit),
        path: format!("step-{commit}-g{generation}"),
        seconds: 0.1,
    };
    history.take("1-0", checkpoint(1, 2));
    history.take("1-0", checkpoint(1, 3));
    assert_eq!(history.fallbacks(), []);
    let second = history.lineage().extended(Generation(2), at(1, 2));
    history.take("2-0", opened(2, 0, &second));
    history.take("2-0", checkpoint(2, 3));
    let third = history.lineage().extended(Generation(3), at(2, 3));
    history.take("3-0", opened(3, 0, &third));
    let seen = history.fallbacks();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(
        seen[0].to_string(),
        "checkpoint step-3-g1 could not be used: generation 2 went back to step-2-g1"
    );
}
