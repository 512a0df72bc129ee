//! Runs that keep the rules are called clean, whatever happened to them.

use super::*;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn whole_epochs_with_a_short_last_step_are_clean_for_any_world() {
    for world in 1..=5 {
        let mut s = Simulation::new(Length::Epochs(3));
        s.form(world, None);
        s.steps(18);
        let verdict = s.judge(&complete()).unwrap();
        assert!(verdict.clean, "{verdict}");
        assert_eq!((verdict.steps, verdict.skips, verdict.whole_epochs), (18, 0, 3));
        assert_eq!(verdict.partial_epoch, None);
        assert_eq!(verdict.final_position.commit, 18);
        assert!(
            verdict
                .to_string()
                .contains("each used every one of 53 indices exactly once")
        );
    }
}

#[test]
fn a_run_by_steps_may_end_in_the_middle_of_an_epoch() {
    let mut s = Simulation::new(Length::Steps(8));
    s.form(2, None);
    s.steps(8);
    let verdict = s.judge(&complete()).unwrap();
    assert!(verdict.clean, "{verdict}");
    assert_eq!(verdict.whole_epochs, 1);
    assert_eq!(verdict.partial_epoch, Some((1, 20)));
}

#[test]
fn superseded_steps_are_counted_apart_and_not_as_samples() {
    let mut s = Simulation::new(Length::Epochs(2));
    s.form(3, None);
    s.steps(7);
    s.compute();
    s.form(2, Some(5));
    s.steps(4);
    s.form(5, Some(5));
    s.steps(7);
    let verdict = s.judge(&complete()).unwrap();
    assert!(verdict.clean, "{verdict}");
    assert_eq!(verdict.commits, 12);
    let g = &verdict.generations;
    assert_eq!((g[0].commits, g[0].superseded), (Some((1, 5)), Some((6, 8))));
    assert_eq!((g[1].commits, g[1].superseded), (None, Some((6, 9))));
    assert_eq!((g[2].commits, g[2].superseded), (Some((6, 12)), None));
    assert!(
        verdict.to_string().contains("commits 6 to 8 were superseded"),
        "{verdict}"
    );
}

#[test]
fn skips_use_no_samples() {
    let mut s = Simulation::new(Length::Epochs(1));
    s.form(2, None);
    s.steps(2);
    s.compute();
    s.commit(CommitKind::Skip);
    s.steps(4);
    let verdict = s.judge(&complete()).unwrap();
    assert!(verdict.clean, "{verdict}");
    assert_eq!((verdict.commits, verdict.steps, verdict.skips), (7, 6, 1));
}

#[test]
fn a_member_killed_while_writing_or_before_it_wrote_breaks_no_rule() {
    let mut s = Simulation::new(Length::Epochs(1));
    s.form(2, None);
    s.steps(3);
    s.compute();
    s.records[0].tail = br#"{"type":"computed","position":{"commit":5,"#.to_vec();
    // The other never came to record the last commit.
    let kept = s.records[1].lines.len() - 3;
    s.records[1].lines.truncate(kept);
    s.form(1, None);
    s.steps(3);
    s.records.push(Record {
        name: "records/2-dead.jsonl".into(),
        generation: 2,
        lines: vec![],
        tail: b"{\"type\":\"op".to_vec(),
    });
    let verdict = s.judge(&complete()).unwrap();
    assert!(verdict.clean, "{verdict}");
    assert_eq!(verdict.generations[0].superseded, Some((4, 4)));
    assert_eq!(verdict.notes.len(), 2, "{:?}", verdict.notes);
}

#[test]
fn an_end_that_was_cut_off_is_told_and_not_judged() {
    let mut s = Simulation::new(Length::Epochs(1));
    s.form(2, None);
    s.steps(3);
    s.compute();
    let verdict = s.judge(&Given::default()).unwrap();
    assert!(verdict.clean, "{verdict}");
    assert_eq!(verdict.commits, 3);
    assert_eq!(verdict.generations[0].uncommitted, Some(4));
}

#[test]
fn the_generation_from_anothers_checkpoint_continues_its_epoch() {
    let origin = DataProgress {
        step: 2,
        epoch: 0,
        cursor: 20,
    };
    let mut s = Simulation::from_origin(Length::Epochs(2), origin);
    s.form(2, None);
    s.steps(4);
    s.form(3, None);
    // A member that was started anew does not know where the lineage began.
    if let RecordLine::Opened { origin, .. } = &mut s.records[3].lines[0] {
        *origin = DataProgress::default();
    }
    s.steps(6);
    let verdict = s.judge(&complete()).unwrap();
    assert!(verdict.clean, "{verdict}");
    assert_eq!(verdict.whole_epochs, 2);
    assert!(verdict.notes[0].contains("another job's checkpoint, at sample 20"));
}

#[test]
fn a_generation_that_never_got_going_and_lines_of_later_versions_break_no_rule() {
    let mut s = Simulation::new(Length::Epochs(1));
    s.form(2, None);
    s.steps(2);
    s.form(2, None);
    s.form(1, None);
    s.steps(4);
    s.records[0].lines.push(RecordLine::Evaluated {
        position: s.lineage.0[1].base,
        step: 2,
        loss: "NaN".into(),
        metrics: [("accuracy".to_owned(), f64::NAN)].into(),
    });
    s.records[1].tail = b"{\"type\":\"fromTheFuture\",\"x\":1}\n".to_vec();
    let verdict = s.judge(&complete()).unwrap();
    assert!(verdict.clean, "{verdict}");
    assert_eq!(verdict.lineage.0.len(), 2, "generation 2 contributed nothing");
}

/// A record that counts how many of its kind are open.
struct Counted(Cursor<Vec<u8>>, Arc<AtomicUsize>);

impl std::io::Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl std::io::BufRead for Counted {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        self.0.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.0.consume(amount);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn no_more_records_are_open_at_once_than_a_generation_has_members() {
    let mut s = Simulation::new(Length::Epochs(1));
    for _ in 0..6 {
        s.form(3, None);
        s.steps(1);
    }
    let (open, most) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
    let files: Vec<RecordFile<'_>> = s
        .records
        .iter()
        .map(|record| RecordFile {
            name: record.name.clone(),
            open: Box::new(|| {
                most.fetch_max(open.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                Ok(Box::new(Counted(Cursor::new(record.bytes()), open.clone())))
            }),
        })
        .collect();
    assert!(audit(&files, &complete()).unwrap().clean);
    assert_eq!(most.load(Ordering::Relaxed), 3);
    assert_eq!(open.load(Ordering::Relaxed), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_history_of_losses_and_resumes_is_clean(
        happenings in prop::collection::vec((1..6u32, 0..9u64, 0..4u64, any::<bool>()), 1..8),
    ) {
        let mut s = Simulation::new(Length::Epochs(1000));
        for (world, steps, back, cut_off) in happenings {
            let commit = s.position.commit.saturating_sub(back);
            s.form(world, Some(commit));
            s.steps(steps);
            if cut_off {
                s.compute();
            }
        }
        let verdict = s.judge(&Given::default()).unwrap();
        prop_assert!(verdict.clean, "{}", verdict);
        let committed: u64 = s.position.commit;
        prop_assert_eq!(verdict.commits, committed);
        prop_assert_eq!(verdict.whole_epochs, committed / 6);
    }
}
