//! Silence, lost plans, failed writes, links that do not work.

use super::*;

#[test]
fn silence_is_no_proof_and_the_pods_are_named() {
    let (mut bench, members) = Bench::group(settings(2), 2);
    for member in &members {
        bench.send(Event::Silent(member.clone()));
    }
    let pod = |slot: u32| PodUid(format!("new-{slot}"));
    let fresh: Vec<_> = (0..2u32)
        .map(|slot| MemberId {
            pod: pod(slot),
            ..member(slot, 10 + u128::from(slot))
        })
        .collect();
    let mut report = idle(1);
    report.checkpoints = vec![checkpoint(1, 5)];
    for member in &fresh {
        bench.join(member, report.clone());
    }
    let expected = Reason::WaitingForFencing {
        pods: members.iter().map(|m| m.pod.clone()).collect(),
    };
    assert_eq!(*bench.machine.reason(), expected);
    let end = |slot: u32| Event::PodEnded {
        pod: PodUid(format!("pod-{slot}")),
        slot,
        charge: None,
    };
    bench.send(end(0));
    assert_eq!(bench.reason_id(), "WaitingForFencing");
    bench.send(end(1));
    assert_eq!((bench.planned(), bench.plan().base.position), (fresh, at(1, 5)));
}

#[test]
fn a_holder_that_comes_back_makes_proof_needless() {
    let (mut bench, members) = Bench::group(elastic(1, 2), 2);
    bench.send(Event::Silent(members[1].clone()));
    bench.join(&members[0], back(1, at(1, 4)));
    assert_eq!(bench.planned(), members[..1]);
    assert_eq!(bench.plan().base.source, BaseSource::Memory);
}

#[test]
fn holders_of_the_old_state_alone_do_not_pass_a_generation_whose_members_are_silent() {
    let (mut bench, members) = Bench::group(elastic(1, 3), 3);
    // Worker 2 is silent: generation 2 is workers 0 and 1.
    bench.send(Event::Silent(members[2].clone()));
    bench.join(&members[0], back(1, at(1, 4)));
    bench.join(&members[1], back(1, at(1, 4)));
    assert_eq!(bench.machine.generation(), Generation(2));
    // Nobody knows whether it opened; now they are silent, and worker 2 is back with the old state.
    bench.send(Event::Silent(members[0].clone()));
    bench.send(Event::Silent(members[1].clone()));
    bench.join(&members[2], back(1, at(1, 4)));
    assert_eq!(bench.news(&members[2]).floor, Generation(2));
    bench.join(
        &members[2],
        MemberReport {
            left: Generation(2),
            ..back(1, at(1, 4))
        },
    );
    assert_eq!(bench.reason_id(), "WaitingForFencing");
    bench.exit(&members[0], 137);
    assert_eq!(bench.reason_id(), "WaitingForFencing");
    bench.exit(&members[1], 137);
    assert_eq!(bench.planned(), members[2..]);
}

#[test]
fn a_new_service_leaves_a_running_group_alone() {
    let (mut bench, members) = Bench::group(settings(2), 2);
    bench.restart();
    bench.join(&members[0], running(1));
    bench.join(&members[1], running(1));
    assert_eq!(bench.reason_id(), "Running");
    assert_eq!(bench.machine.generation(), Generation(1));
    for member in &members {
        assert_eq!(bench.news(member).ask, Ask::None);
    }
}

#[test]
fn a_plan_that_the_new_service_does_not_hold_is_burnt() {
    let mut bench = Bench::new(settings(2));
    let members = [member(0, 1), member(1, 2)];
    for member in &members {
        bench.join(member, idle(0));
    }
    bench.restart();
    // Worker 0 has the plan and waits in its opening barrier, worker 1 has never seen it.
    let opening = MemberReport {
        planned: Generation(1),
        ..idle(0)
    };
    bench.join(&members[0], opening);
    bench.join(&members[1], idle(0));
    for member in &members {
        let Ask::Reform { generation, .. } = bench.news(member).ask else {
            panic!("{member} is not asked to give generation 1 up");
        };
        assert_eq!(generation, Generation(1));
    }
    bench.join(&members[1], idle(1));
    let left = MemberReport {
        planned: Generation(1),
        ..idle(1)
    };
    bench.join(&members[0], left);
    assert_eq!(bench.machine.generation(), Generation(2));
    assert_eq!(bench.plan().base.source, BaseSource::Initial);
}

#[test]
fn members_that_a_new_service_never_hears_of_are_not_given_up_by_itself() {
    let (mut bench, members) = Bench::group(elastic(1, 2), 2);
    bench.restart();
    bench.join(&members[0], back(1, at(1, 4)));
    assert_eq!(bench.reason_id(), "WaitingForReturn");
    bench.send(Event::Silent(members[1].clone()));
    assert_eq!(bench.planned(), members[..1]);
}

#[test]
fn a_number_that_could_not_be_saved_is_not_used_again() {
    let mut bench = Bench::new(settings(1));
    bench.broken_store = true;
    let effects = bench.join(&member(0, 1), idle(0));
    assert!(
        !effects.iter().any(|e| matches!(e, Effect::Publish(..))),
        "{effects:?}"
    );
    assert_eq!(bench.reason_id(), "NotSaved");
    assert_eq!(bench.news(&member(0, 1)).head, None);
    bench.broken_store = false;
    bench.pass(1);
    assert_eq!(bench.plan().generation, Generation(2));
}

#[test]
fn a_write_whose_answer_was_lost_counts_when_it_is_found() {
    let mut bench = Bench::new(settings(1));
    let outcome = decide(
        &mut bench.machine,
        Event::Join {
            member: member(0, 1),
            report: Box::new(idle(0)),
            restart: RestartReport::default(),
        },
        bench.now,
    );
    let [Effect::Persist(new)] = &outcome.effects[..] else {
        panic!("{outcome:?}");
    };
    bench.send(Event::PersistRefused {
        generation: Generation(1),
        found: Some(Box::new(new.formed.clone())),
    });
    assert_eq!(bench.plan().generation, Generation(1));
}

#[test]
fn another_services_generation_is_taken_over_and_its_number_not_used_again() {
    let mut bench = Bench::new(settings(1));
    bench.join(&member(0, 1), idle(0));
    let mut theirs = bench.saved.formed.clone().unwrap();
    theirs.generation = Generation(5);
    theirs.plan_digest = "theirs".into();
    bench.saved.formed = Some(theirs);
    // The member was in their generation 5 and has left it.
    let effects = bench.join(&member(0, 1), back(5, Position::INITIAL));
    assert!(effects.contains(&Effect::ReadBack));
    assert_eq!(bench.machine.generation(), Generation(6));
}

#[test]
fn a_late_report_does_not_undo_a_newer_one() {
    let (mut bench, members) = Bench::group(settings(2), 2);
    bench.join(&members[0], back(1, at(1, 4)));
    bench.join(&members[0], idle(0));
    bench.join(&members[1], back(1, at(1, 4)));
    assert_eq!(bench.plan().base.position, at(1, 4));
}

/// Worker `from` could not reach `to` in the opening barrier of `generation`.
fn unreached(generation: u64, to: &[&MemberId]) -> MemberReport {
    MemberReport {
        planned: Generation(generation),
        unreachable: to.iter().copied().cloned().collect(),
        ..idle(generation)
    }
}

#[test]
fn after_a_failed_opening_the_one_that_others_cannot_reach_is_left_out_for_a_growing_time() {
    let mut bench = Bench::new(elastic(1, 3));
    let members: Vec<_> = (0..3u32).map(|slot| member(slot, u128::from(slot) + 1)).collect();
    for member in &members {
        bench.join(member, idle(0));
    }
    bench.join(&members[0], unreached(1, &[&members[2]]));
    bench.join(&members[1], unreached(1, &[&members[2]]));
    bench.join(&members[2], unreached(1, &[&members[0], &members[1]]));
    assert_eq!(bench.planned(), members[..2]);
    // It is left out for 5 s, then taken in again, which a running group does only where it may grow.
    let mut grows = bench.machine.settings().clone();
    grows.grows = true;
    bench.machine.settings = grows;
    bench.establish(2, &members[..2]);
    bench.join(&members[2], idle(2));
    assert_eq!(bench.reason_id(), "Running");
    bench.pass(5);
    assert!(matches!(bench.news(&members[0]).ask, Ask::Reform { .. }));
    for member in &members {
        bench.join(
            member,
            MemberReport {
                planned: Generation(2),
                ..idle(2)
            },
        );
    }
    assert_eq!(bench.plan().world_size, 3);
    // The same again: twice as long.
    bench.join(&members[0], unreached(3, &[&members[2]]));
    bench.join(&members[1], unreached(3, &[]));
    let effects = bench.join(&members[2], unreached(3, &[&members[0]]));
    assert!(
        effects.contains(&Effect::WakeAt(bench.now.after(Duration::from_secs(10)))),
        "{effects:?}"
    );
}

#[test]
fn a_fixed_group_that_cannot_connect_names_the_link_and_tries_again_later() {
    let mut bench = Bench::new(settings(2));
    let members = [member(0, 1), member(1, 2)];
    for member in &members {
        bench.join(member, idle(0));
    }
    bench.join(&members[0], unreached(1, &[&members[1]]));
    bench.join(&members[1], unreached(1, &[&members[0]]));
    let text = bench.machine.reason().to_string();
    assert!(
        text.contains("worker 0.0") && text.contains("cannot reach worker 1.0"),
        "{text}"
    );
    bench.pass(5);
    assert_eq!(
        (bench.reason_id(), bench.machine.generation()),
        ("Opening", Generation(2))
    );
}

#[test]
fn a_lost_link_while_training_leaves_nobody_out() {
    let (mut bench, members) = Bench::group(elastic(1, 2), 2);
    for member in &members {
        bench.join(
            member,
            MemberReport {
                unreachable: members.clone(),
                ..back(1, at(1, 3))
            },
        );
    }
    assert_eq!(bench.plan().world_size, 2);
}

#[test]
fn one_that_went_away_by_itself_in_the_opening_is_not_left_out() {
    let mut bench = Bench::new(settings(2));
    let members = [member(0, 1), member(1, 2)];
    for member in &members {
        bench.join(member, idle(0));
    }
    // Worker 1 found its checkpoint damaged and left; worker 0 only sees that it is gone.
    bench.join(&members[1], unreached(1, &[]));
    bench.join(&members[0], unreached(1, &[&members[1]]));
    assert_eq!(
        (bench.reason_id(), bench.machine.generation()),
        ("Opening", Generation(2))
    );
}

#[test]
fn a_member_that_threw_its_state_away_is_no_holder_of_it() {
    let (mut bench, members) = Bench::group(elastic(1, 2), 2);
    bench.send(Event::Silent(members[1].clone()));
    let report = MemberReport {
        held: None,
        ..back(1, at(1, 4))
    };
    bench.join(&members[0], report);
    assert_eq!(bench.reason_id(), "WaitingForFencing");
    bench.exit(&members[1], 1);
    assert_eq!(bench.planned(), members[..1]);
}
