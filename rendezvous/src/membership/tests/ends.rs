//! Completion, failure, stops and restarts.

use super::*;

fn done(generation: u64) -> DoneReport {
    DoneReport {
        generation: Generation(generation),
        rank: 0,
        world_size: 2,
        position: at(generation, 90),
        total_steps: 90,
        epochs: 3,
        state_digest: "d".into(),
        final_loss: "0.5".into(),
        metrics: [("accuracy".to_owned(), 0.9)].into(),
        checkpoint: None,
    }
}

#[test]
fn completion_is_latched_once_it_is_persisted_and_outlives_the_service() {
    let (mut bench, members) = Bench::group(settings(2), 2);
    let report = || Event::Done {
        member: members[0].clone(),
        report: Box::new(done(1)),
    };
    let outcome = decide(&mut bench.machine, report(), bench.now);
    assert!(matches!(
        outcome.effects[..],
        [Effect::Latch(Ending::Complete { .. })]
    ));
    assert_eq!(bench.news(&members[1]).ask, Ask::None, "not persisted yet");
    bench.saved.ending = Some(Ending::Complete { done: done(1) });
    bench.send(Event::EndingPersisted);
    assert!(matches!(bench.news(&members[1]).ask, Ask::Finished { .. }));
    assert_eq!(bench.send(report()), [], "repeated");
    bench.exit(&members[1], 9);
    assert_eq!(bench.reason_id(), "Complete");
    assert!(bench.machine.restarts().charged.is_empty());
    bench.restart();
    let effects = bench.join(&member(0, 9), idle(0));
    assert!(
        matches!(&effects[..], [Effect::Refuse(_, Refusal::Finished { .. })]),
        "{effects:?}"
    );
}

#[test]
fn a_generation_that_is_over_cannot_complete() {
    let (mut bench, members) = Bench::group(settings(2), 2);
    for member in &members {
        bench.join(member, back(1, at(1, 4)));
    }
    let effects = bench.send(Event::Done {
        member: members[0].clone(),
        report: Box::new(done(1)),
    });
    assert!(
        matches!(&effects[..], [Effect::Refuse(_, Refusal::StaleGeneration { .. })]),
        "{effects:?}"
    );
}

#[test]
fn an_end_is_charged_once_whoever_tells_of_it_also_to_a_new_service() {
    let (mut bench, members) = Bench::group(settings(1), 1);
    bench.exit(&members[0], 3);
    bench.exit(&members[0], 3);
    bench.join_after(&member(0, 7), idle(1), &members[0], 1, 3);
    assert_eq!(bench.machine.restarts().charged.len(), 1);
    bench.restart();
    bench.join_after(&member(0, 7), idle(1), &members[0], 1, 3);
    assert_eq!(bench.machine.restarts().charged.len(), 1);
}

#[test]
fn polite_ends_are_not_charged() {
    let (mut bench, members) = Bench::group(settings(1), 1);
    bench.exit(&members[0], 143);
    let restarts = bench.machine.restarts();
    assert_eq!((restarts.charged.len(), restarts.uncharged), (0, 1));
}

#[test]
fn more_charged_ends_than_allowed_fail_the_job_and_say_which() {
    let mut bench = Bench::new(Settings {
        max_restarts: 1,
        ..settings(1)
    });
    let processes: Vec<_> = (1..=3).map(|number| member(0, number)).collect();
    bench.join(&processes[0], idle(0));
    bench.join_after(&processes[1], idle(1), &processes[0], 1, 3);
    assert_ne!(bench.reason_id(), "Failed");
    bench.join_after(&processes[2], idle(2), &processes[1], 2, 9);
    let text = bench.machine.reason().to_string();
    assert!(
        text.contains("exited with code 9") && text.contains("maxRestarts allows 1"),
        "{text}"
    );
}

#[test]
fn a_fatal_error_of_a_member_fails_the_job_with_its_text_and_is_not_charged_besides() {
    let (mut bench, members) = Bench::group(settings(2), 2);
    bench.send(Event::Leave {
        member: members[1].clone(),
        cause: LeaveCause::Fatal {
            error: "the loss of step 12 is not a number".into(),
        },
    });
    bench.exit(&members[1], 1);
    let text = bench.machine.reason().to_string();
    assert!(
        text.contains("worker 1.0") && text.contains("the loss of step 12"),
        "{text}"
    );
    assert!(matches!(bench.news(&members[0]).ask, Ask::Failed { .. }));
    assert!(bench.machine.restarts().charged.is_empty());
}

#[test]
fn before_the_first_generation_a_member_with_other_data_fails_the_job_and_both_are_named() {
    let mut bench = Bench::new(settings(2));
    bench.join(&member(0, 1), idle(0));
    let other = MemberReport {
        fingerprints: Some(fingerprints("other data")),
        ..idle(0)
    };
    let effects = bench.join(&member(1, 2), other);
    assert!(
        effects
            .iter()
            .any(|e| matches!(e, Effect::Refuse(_, Refusal::DifferentData { .. })))
    );
    let text = bench.machine.reason().to_string();
    for part in ["worker 0.0", "worker 1.0", "is other data", "is data"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn later_a_member_with_another_model_is_refused_alone_also_by_a_new_service() {
    let (mut bench, members) = Bench::group(settings(2), 2);
    bench.restart();
    bench.exit(&members[1], 1);
    let mut other = idle(1);
    other.fingerprints.as_mut().unwrap().parameter_layout = "another".into();
    bench.join(&member(1, 9), other);
    assert!(matches!(
        bench.news(&member(1, 9)).ask,
        Ask::Refused {
            refusal: Refusal::DifferentLayout { .. }
        }
    ));
    assert_ne!(bench.reason_id(), "Failed");
}

#[test]
fn directories_that_are_not_shared_are_found_before_the_first_step() {
    let mut bench = Bench::new(settings(2));
    for (slot, nonce) in [(0, "a"), (1, "b")] {
        let report = MemberReport {
            directory_nonce: Some(nonce.into()),
            ..idle(0)
        };
        bench.join(&member(slot, u128::from(slot) + 1), report);
    }
    let text = bench.machine.reason().to_string();
    assert!(
        text.contains("another checkpoint directory") && text.contains("checkpoint.shared"),
        "{text}"
    );
}

#[test]
fn a_member_with_an_old_configuration_joins_again_to_obtain_the_new_one() {
    let (mut bench, members) = Bench::group(settings(1), 1);
    bench.send(Event::ConfigChanged {
        digest: "new config".into(),
    });
    assert!(matches!(bench.news(&members[0]).ask, Ask::Reform { .. }));
    let effects = bench.join(&members[0], back(1, at(1, 4)));
    assert!(
        !effects.iter().any(|e| matches!(e, Effect::Refuse(..))),
        "the answer brings the new one"
    );
    assert!(matches!(bench.news(&members[0]).ask, Ask::Rejoin { .. }));
    let report = MemberReport {
        run_config_digest: Some("new config".into()),
        ..back(1, at(1, 4))
    };
    bench.join(&members[0], report);
    assert_eq!(bench.plan().run_config_digest, "new config");
    assert_eq!(bench.plan().base.source, BaseSource::Memory);
}

#[test]
fn a_stop_asks_all_and_is_over_when_all_have_gone() {
    let (mut bench, members) = Bench::group(settings(2), 2);
    bench.send(Event::StopWanted(StopCause {
        reason: "interrupted".into(),
        within_ms: 1000,
    }));
    for member in &members {
        assert!(matches!(bench.news(member).ask, Ask::Stop { .. }));
        assert_eq!(bench.reason_id(), "Stopping");
        bench.send(Event::Leave {
            member: member.clone(),
            cause: LeaveCause::Stopped {
                position: at(1, 6),
                checkpoint: Some("step-6-g1".into()),
            },
        });
    }
    assert_eq!(bench.reason_id(), "Stopped");
    bench.exit(&members[0], 0);
    bench.join(&member(0, 9), idle(1));
    assert_eq!(
        bench.machine.generation(),
        Generation(1),
        "nothing forms any more"
    );
}

#[test]
fn a_process_that_was_replaced_cannot_come_back() {
    let (mut bench, members) = Bench::group(settings(1), 1);
    bench.join_after(&member(0, 7), idle(1), &members[0], 1, 1);
    let effects = bench.join(&members[0], back(1, at(1, 4)));
    assert!(
        matches!(&effects[..], [Effect::Refuse(_, Refusal::UnknownMember { .. })]),
        "{effects:?}"
    );
    assert_eq!(bench.planned(), [member(0, 7)]);
}

#[test]
fn the_end_of_a_pod_ends_all_its_ranks_and_is_charged_as_one() {
    let (mut bench, members) = Bench::group(
        Settings {
            ranks_per_pod: 1,
            ..settings(2)
        },
        2,
    );
    let end = || Event::PodEnded {
        pod: members[0].pod.clone(),
        slot: 0,
        charge: Some(exited(137)),
    };
    bench.send(end());
    bench.send(end());
    assert_eq!(bench.machine.restarts().charged.len(), 1);
    assert!(!bench.machine.members().contains_key(&members[0].incarnation));
    assert!(matches!(bench.news(&members[1]).ask, Ask::Reform { .. }));
}

#[test]
fn a_fatal_error_of_one_outside_a_group_at_work_is_its_own_affair() {
    let (mut bench, members) = Bench::group(elastic(1, 3), 2);
    let stranger = member(2, 9);
    bench.join(&stranger, idle(1));
    let fatal = |member: &MemberId| Event::Leave {
        member: member.clone(),
        cause: LeaveCause::Fatal {
            error: "data is missing".into(),
        },
    };
    bench.send(fatal(&stranger));
    assert_eq!(bench.reason_id(), "Running");
    bench.exit(&stranger, 3);
    assert_eq!(bench.reason_id(), "Running");
    assert!(
        bench.machine.restarts().charged.is_empty(),
        "the group does without it"
    );
    // Nor can a process that has ended, or one that nobody knows.
    bench.send(fatal(&stranger));
    bench.send(fatal(&member(2, 10)));
    assert_eq!(bench.reason_id(), "Running");
    bench.send(fatal(&members[1]));
    assert_eq!(bench.reason_id(), "Failed", "one of the group can");
}

#[test]
fn before_any_group_was_at_work_every_fatal_error_is_the_jobs_also_when_it_is_resumed() {
    let leave = |member: &MemberId| Event::Leave {
        member: member.clone(),
        cause: LeaveCause::Fatal {
            error: "data is missing".into(),
        },
    };
    let mut bench = Bench::new(settings(2));
    bench.join(&member(0, 1), idle(0));
    bench.send(leave(&member(0, 1)));
    assert_eq!(bench.reason_id(), "Failed");

    let (mut bench, members) = Bench::group(settings(1), 1);
    bench.restart();
    bench.join(&member(1, 9), idle(1));
    bench.send(leave(&member(1, 9)));
    assert_ne!(bench.reason_id(), "Failed", "the group may be at work");
    bench.send(Event::PodEnded {
        pod: members[0].pod.clone(),
        slot: 0,
        charge: None,
    });
    bench.join(&member(1, 10), idle(1));
    bench.send(leave(&member(1, 10)));
    assert_eq!(bench.reason_id(), "Failed");
}

#[test]
fn a_refused_worker_is_charged_only_while_the_group_cannot_do_without_it() {
    let other = || MemberReport {
        fingerprints: Some(fingerprints("other data")),
        ..idle(1)
    };
    let (mut bench, members) = Bench::group(elastic(2, 3), 2);
    bench.join(&member(2, 9), other());
    bench.exit(&member(2, 9), 5);
    assert_eq!(bench.machine.restarts().charged.len(), 0);
    bench.exit(&members[1], 9);
    bench.join_after(&member(1, 10), other(), &members[1], 1, 9);
    bench.exit(&member(1, 10), 5);
    let charged = &bench.machine.restarts().charged;
    assert_eq!(
        charged.len(),
        2,
        "the crash, and the refusal in its place: {charged:?}"
    );
}

#[test]
fn each_end_is_counted_once_whatever_is_told_again_after_the_next_generation() {
    let (mut bench, members) = Bench::group(settings(2), 2);
    // Rank 1 says goodbye and exits; rank 0 is stopped politely.
    bench.send(Event::Leave {
        member: members[1].clone(),
        cause: LeaveCause::Draining,
    });
    bench.exit(&members[1], 1);
    bench.exit(&members[0], 143);
    let next = [member(0, 7), member(1, 8)];
    for (slot, code) in [(0, 143), (1, 1)] {
        bench.join_after(&next[slot], idle(1), &members[slot], 1, code);
    }
    assert_eq!(bench.plan().generation, Generation(2));
    bench.establish(2, &next);
    let again = |bench: &mut Bench| {
        for (slot, code) in [(0, 143), (1, 1)] {
            bench.exit(&members[slot], code);
            bench.join_after(&next[slot], running(2), &members[slot], 1, code);
        }
        let restarts = bench.machine.restarts();
        assert_eq!(
            (restarts.charged.len(), restarts.uncharged),
            (0, 1),
            "{restarts:?}"
        );
    };
    again(&mut bench);
    bench.restart();
    again(&mut bench);
}

#[test]
fn ends_for_which_nobody_is_to_blame_are_never_charged() {
    for code in [0, 4, 5, 6, 129, 130, 143] {
        let (mut bench, members) = Bench::group(settings(1), 1);
        bench.exit(&members[0], code);
        let restarts = bench.machine.restarts();
        assert_eq!((restarts.charged.len(), restarts.uncharged), (0, 1), "{code}");
    }
    for code in [1, 3, 7, 101, 137, 139] {
        let (mut bench, members) = Bench::group(settings(1), 1);
        bench.exit(&members[0], code);
        assert_eq!(bench.machine.restarts().charged.len(), 1, "{code}");
    }
}

#[test]
fn a_pod_that_gave_up_on_ranks_whose_ends_cost_nothing_is_charged_and_one_that_paid_is_not() {
    for (code, charged) in [(4, 1), (9, 2)] {
        let (mut bench, members) = Bench::group(settings(2), 2);
        // Rank 0 is started again in place, once more joins a group, and ends again.
        bench.exit(&members[0], code);
        bench.join_after(&member(0, 7), idle(1), &members[0], 1, code);
        bench.join(&members[1], back(1, at(1, 4)));
        assert_eq!(bench.plan().generation, Generation(2));
        bench.exit(&member(0, 7), code);
        let proof = || Event::PodEnded {
            pod: members[0].pod.clone(),
            slot: 0,
            charge: Some(exited(7)),
        };
        bench.send(proof());
        bench.send(proof());
        let restarts = bench.machine.restarts();
        assert_eq!(restarts.charged.len(), charged, "{code}: {restarts:?}");
    }
}

#[test]
fn a_pod_whose_end_is_told_again_after_the_next_generation_is_charged_once() {
    let (mut bench, members) = Bench::group(settings(2), 2);
    let end = || Event::PodEnded {
        pod: members[0].pod.clone(),
        slot: 0,
        charge: Some(exited(137)),
    };
    bench.send(end());
    let fresh = MemberId {
        pod: PodUid("pod-0b".into()),
        ..member(0, 7)
    };
    bench.join(&fresh, idle(1));
    bench.join(&members[1], back(1, at(1, 4)));
    assert_eq!(bench.plan().generation, Generation(2));
    bench.send(end());
    assert_eq!(bench.machine.restarts().charged.len(), 1);
}

#[test]
fn one_that_joins_while_the_end_is_being_saved_hears_of_it() {
    let (mut bench, members) = Bench::group(settings(2), 2);
    let report = Event::Done {
        member: members[0].clone(),
        report: Box::new(done(1)),
    };
    decide(&mut bench.machine, report, bench.now);
    let late = member(1, 9);
    bench.join_after(&late, idle(1), &members[1], 1, 9);
    assert_eq!(bench.news(&late).ask, Ask::None, "not persisted yet");
    bench.send(Event::EndingPersisted);
    assert!(matches!(bench.news(&late).ask, Ask::Finished { .. }));
}
