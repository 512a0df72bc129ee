//! When a generation forms, of whom, from which state.

use super::*;
use crate::wire::DamagedCheckpoint;
use gradsync_formats::run_config::ResumePolicy;

#[test]
fn the_first_group_forms_at_once_when_all_are_there_with_ranks_by_slot() {
    let mut bench = Bench::new(settings(3));
    let [a, b, c] = [member(0, 30), member(1, 20), member(2, 10)];
    bench.join(&c, idle(0));
    bench.join(&a, idle(0));
    assert_eq!(bench.reason_id(), "WaitingForWorkers");
    bench.join(&b, idle(0));
    assert_eq!(bench.reason_id(), "Opening");
    assert_eq!(bench.planned(), [a.clone(), b, c]);
    assert_eq!(bench.plan().base.source, BaseSource::Initial);
    assert_eq!(bench.plan().lineage.newest(), Generation(1));
    let head = bench.news(&a).head.expect("a planned member gets a head");
    assert_eq!(
        (head.rank, head.share.map(|s| (s.index, s.of))),
        (0, Some((0, 3)))
    );
}

#[test]
fn a_cold_member_does_not_count_until_it_is_warm() {
    let mut bench = Bench::new(settings(1));
    let cold = MemberReport {
        ready: false,
        ..idle(0)
    };
    bench.join(&member(0, 1), cold);
    assert_eq!(bench.reason_id(), "WaitingForWorkers");
    bench.join(&member(0, 1), idle(0));
    assert_eq!(bench.reason_id(), "Opening");
}

#[test]
fn an_elastic_job_waits_a_window_for_more_and_then_starts_with_what_is_there() {
    let mut bench = Bench::new(elastic(2, 4));
    for slot in 0..3 {
        bench.join(&member(slot, u128::from(slot) + 1), idle(0));
    }
    assert_eq!(bench.reason_id(), "FormationWindow");
    let effects = bench.pass(9);
    assert_eq!(bench.reason_id(), "FormationWindow");
    assert!(effects.contains(&Effect::WakeAt(Monotonic(Duration::from_secs(10)))));
    bench.pass(1);
    assert_eq!(bench.plan().world_size, 3);
}

#[test]
fn a_job_of_fixed_size_never_starts_smaller() {
    let mut bench = Bench::new(settings(3));
    bench.join(&member(0, 1), idle(0));
    bench.join(&member(1, 2), idle(0));
    bench.pass(1000);
    assert_eq!(bench.reason_id(), "WaitingForWorkers");
}

#[test]
fn a_pod_counts_when_all_its_ranks_are_in() {
    let mut bench = Bench::new(Settings {
        ranks_per_pod: 2,
        ..settings(1)
    });
    let second = MemberId {
        local_rank: 1,
        ..member(0, 2)
    };
    bench.join(&second, idle(0));
    assert_eq!(bench.reason_id(), "WaitingForWorkers");
    bench.join(&member(0, 1), idle(0));
    assert_eq!(bench.planned(), [member(0, 1), second]);
}

#[test]
fn survivors_wait_in_memory_and_all_go_back_to_the_newest_checkpoint_with_the_replacement() {
    let (mut bench, members) = Bench::group(settings(2), 2);
    bench.exit(&members[1], 1);
    assert!(matches!(
        bench.news(&members[0]).ask,
        Ask::Reform {
            generation: Generation(1),
            ..
        }
    ));
    let mut survivor = back(1, at(1, 7));
    survivor.checkpoints = vec![checkpoint(1, 5), checkpoint(1, 3)];
    bench.join(&members[0], survivor);
    assert_eq!(bench.reason_id(), "WaitingForWorkers");
    bench.join(&member(1, 9), idle(1));
    let plan = bench.plan();
    assert_eq!(plan.generation, Generation(2));
    assert_eq!(plan.base.position, at(1, 5));
    assert_eq!(
        plan.base.source,
        BaseSource::Checkpoint {
            path: "step-5-g1".into()
        }
    );
    assert!(plan.lineage.contains(at(1, 5)) && !plan.lineage.contains(at(1, 6)));
    assert!(plan.reason.contains("exited with code 1"), "{}", plan.reason);
}

#[test]
fn memory_is_the_base_only_if_all_planned_members_hold_the_same() {
    for (second, expected) in [(at(1, 7), BaseSource::Memory), (at(1, 6), BaseSource::Initial)] {
        let (mut bench, members) = Bench::group(settings(2), 2);
        bench.join(&members[0], back(1, at(1, 7)));
        bench.join(&members[1], back(1, second));
        assert_eq!(bench.plan().base.source, expected);
    }
}

#[test]
fn a_checkpoint_that_is_further_than_the_common_memory_is_the_base() {
    let (mut bench, members) = Bench::group(settings(1), 1);
    let mut report = back(1, at(1, 7));
    report.checkpoints = vec![checkpoint(1, 8), checkpoint(4, 99)];
    bench.join(&members[0], report);
    assert_eq!(
        bench.plan().base.position,
        at(1, 8),
        "generation 4 is not on the lineage"
    );
}

#[test]
fn a_damaged_checkpoint_is_passed_over_for_the_one_before() {
    let (mut bench, members) = Bench::group(settings(2), 2);
    bench.exit(&members[1], 1);
    let mut survivor = back(1, at(1, 7));
    survivor.checkpoints = vec![checkpoint(1, 5), checkpoint(1, 3)];
    bench.join(&members[0], survivor);
    let joiner = MemberReport {
        damaged: vec![DamagedCheckpoint {
            path: "step-5-g1".into(),
            problem: "part-0 has another digest".into(),
        }],
        ..idle(1)
    };
    bench.join(&member(1, 9), joiner);
    assert_eq!(bench.plan().base.position, at(1, 3));
}

#[test]
fn a_group_that_falls_back_to_the_start_loses_no_number_and_keeps_one_entry_of_lineage() {
    let (mut bench, members) = Bench::group(settings(2), 2);
    bench.join(&members[0], back(1, at(1, 7)));
    bench.exit(&members[1], 1);
    bench.join(&member(1, 9), idle(1));
    assert_eq!(bench.plan().base.position, Position::INITIAL);
    assert_eq!(
        bench.plan().lineage,
        Lineage::default().extended(Generation(2), Position::INITIAL)
    );
}

#[test]
fn a_group_that_went_on_from_a_checkpoint_does_not_fall_back_to_the_start_when_none_is_seen() {
    for (resume, refused) in [(ResumePolicy::Latest, true), (ResumePolicy::Never, false)] {
        let (mut bench, members) = Bench::group(
            Settings {
                resume,
                ..settings(1)
            },
            1,
        );
        bench.exit(&members[0], 1);
        let mut report = idle(1);
        report.checkpoints = vec![checkpoint(1, 5)];
        bench.join(&member(0, 9), report);
        assert_eq!(bench.plan().base.position, at(1, 5));
        bench.establish(2, &[member(0, 9)]);
        bench.exit(&member(0, 9), 1);
        bench.join(&member(0, 10), idle(2));
        match bench.machine.ending() {
            Some(Ending::Failed { error }) => {
                assert!(refused, "{error}");
                assert!(
                    error.contains("step-5-g1") && error.contains("checkpoint.directory"),
                    "{error}"
                );
            }
            other => assert!(
                !refused && bench.plan().base.position == Position::INITIAL,
                "{other:?}"
            ),
        }
    }
}

#[test]
fn an_elastic_group_goes_on_smaller_at_once() {
    let (mut bench, members) = Bench::group(elastic(1, 3), 3);
    bench.exit(&members[0], 1);
    bench.join(&members[1], back(1, at(1, 4)));
    assert_eq!(
        bench.reason_id(),
        "WaitingForReturn",
        "worker 2 lives and is not back yet"
    );
    bench.join(&members[2], back(1, at(1, 4)));
    assert_eq!(bench.planned(), members[1..]);
    assert_eq!(bench.plan().base.source, BaseSource::Memory);
}

#[test]
fn a_running_group_takes_in_more_workers_at_a_boundary_after_a_checkpoint() {
    let (mut bench, members) = Bench::group(
        Settings {
            grows: true,
            ..elastic(1, 2)
        },
        1,
    );
    bench.join(&member(1, 9), idle(1));
    assert!(matches!(
        bench.news(&members[0]).ask,
        Ask::Reform { checkpoint: true, .. }
    ));
    let mut donor = back(1, at(1, 4));
    donor.checkpoints = vec![checkpoint(1, 4)];
    bench.join(&members[0], donor);
    assert_eq!(
        (bench.plan().world_size, bench.plan().base.position),
        (2, at(1, 4))
    );
}

#[test]
fn a_group_shrinks_to_the_lowest_slots() {
    let (mut bench, members) = Bench::group(elastic(1, 3), 3);
    bench.send(Event::SizeChanged(SizeBounds {
        min: 1,
        max: 3,
        desired: 2,
    }));
    for member in &members {
        bench.join(member, back(1, at(1, 4)));
    }
    assert_eq!(bench.planned(), members[..2]);
}

#[test]
fn another_jobs_checkpoint_starts_an_own_lineage() {
    let mut bench = Bench::new(Settings {
        resume: ResumePolicy::Path,
        ..settings(1)
    });
    let mut report = idle(0);
    bench.join(&member(0, 1), report.clone());
    assert_eq!(
        bench.reason_id(),
        "WaitingForWorkers",
        "it has not read the checkpoint yet"
    );
    report.planned_digest = None;
    report.resume_from = Some(SeenCheckpoint {
        path: "/other/step-40-g6".into(),
        ..checkpoint(6, 40)
    });
    bench.join(&member(0, 1), report);
    let plan = bench.plan();
    assert_eq!((plan.generation, plan.base.position), (Generation(1), at(0, 40)));
    bench.establish(1, &[member(0, 1)]);
    // Before the first commit that state is the only one, and still counts.
    bench.join(&member(0, 1), back(1, at(0, 40)));
    assert_eq!(bench.plan().base.source, BaseSource::Memory);
    assert_eq!(bench.plan().base.position, at(0, 40));
}

#[test]
fn a_job_whose_record_was_lost_goes_on_from_its_newest_checkpoint_under_a_new_number() {
    let mut bench = Bench::new(settings(1));
    let mut report = idle(0);
    report.checkpoints = vec![checkpoint(6, 40)];
    bench.join(&member(0, 1), report);
    assert_eq!(
        (bench.plan().generation, bench.plan().base.position),
        (Generation(7), at(6, 40))
    );
    assert!(bench.plan().lineage.contains(at(6, 40)));
}

#[test]
fn with_policy_never_old_checkpoints_do_not_count_at_the_first_start_only() {
    let mut bench = Bench::new(Settings {
        resume: ResumePolicy::Never,
        ..settings(1)
    });
    let mut report = idle(0);
    report.checkpoints = vec![checkpoint(6, 40)];
    bench.join(&member(0, 1), report);
    assert_eq!(bench.plan().base.source, BaseSource::Initial);
    bench.establish(7, &[member(0, 1)]);
    let mut report = back(7, at(7, 3));
    report.held = None;
    report.checkpoints = vec![checkpoint(6, 40), checkpoint(7, 2)];
    bench.join(&member(0, 1), report);
    assert_eq!(bench.plan().base.position, at(7, 2));
}

#[test]
fn once_a_checkpoint_was_seen_no_job_begins_anew_also_after_generations_from_memory() {
    for seen in [true, false] {
        let (mut bench, members) = Bench::group(settings(1), 1);
        let mut report = back(1, at(1, 7));
        if seen {
            report.checkpoints = vec![checkpoint(1, 5)];
        }
        bench.join(&members[0], report);
        assert_eq!(bench.plan().base.source, BaseSource::Memory);
        bench.establish(2, &members);
        // It sees none for a moment, which does not make it forgotten.
        bench.join(&members[0], back(2, at(2, 9)));
        bench.establish(3, &members);
        bench.restart();
        bench.join_after(&member(0, 7), idle(3), &members[0], 1, 9);
        if seen {
            let text = bench.machine.reason().to_string();
            assert!(
                bench.reason_id() == "Failed" && text.contains("step-5-g1"),
                "{text}"
            );
        } else {
            assert_eq!(bench.plan().base.source, BaseSource::Initial);
        }
    }
}
