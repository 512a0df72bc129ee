//! Whole lives of groups.

use super::rank::{Rank, state_at};
use super::{any_port, open_group, ranks, relay, service, service_with, until};
use gradsync_formats::identity::{Generation, Position};
use gradsync_rendezvous::client::ClientError;
use gradsync_rendezvous::membership::{Ending, Saved};
use gradsync_rendezvous::server::{EndProof, FilePersist, Limits, LocalAuthenticator, ServicePhase};
use gradsync_rendezvous::wire::{
    Ask, BaseSource, Beat, LeaveCause, MemberMessage, Progress, RankBeat, RecoveryPhases, Refusal, StopCause,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

fn saved(folder: &std::path::Path) -> Saved {
    FilePersist::open(folder).unwrap().saved().unwrap()
}

#[tokio::test]
async fn a_group_of_three_forms_loses_one_recovers_from_a_checkpoint_and_finishes() {
    let folder = tempfile::tempdir().unwrap();
    let service = service(folder.path(), 3).await;
    let mut ranks = ranks(&service, 3);
    open_group(&mut ranks).await;
    until(&service, |s| s.phase == ServicePhase::Running).await;
    let (plan, head) = ranks[1].plan.clone().unwrap();
    assert_eq!(
        (plan.world_size, plan.base.source, head.rank),
        (3, BaseSource::Initial, 1)
    );
    assert_eq!(plan.members[2].addresses, ["127.0.0.1:7002"]);
    let keys: Vec<_> = ranks.iter().map(|r| r.plan.clone().unwrap().1.key).collect();
    assert!(keys.iter().all(|key| *key == keys[0]));

    // Rank 1 is killed at commit 5; a checkpoint of commit 4 is there.
    for rank in &mut ranks {
        rank.commit(5);
        rank.sees_checkpoint(1, 4);
    }
    ranks[1].crash().await;
    for survivor in [0, 2] {
        ranks[survivor].abort("connection to rank 1 was reset").await;
    }
    ranks[1].join().await;
    for rank in &mut ranks {
        let plan = rank.enter().await;
        assert_eq!(plan.generation, Generation(2));
        assert_eq!(
            plan.base.position,
            Position {
                commit: 4,
                generation: Generation(1)
            }
        );
        assert!(plan.reason.contains("signal 9"), "{}", plan.reason);
        rank.establish().await;
        rank.commit(10);
    }
    let phases = |first_step_ms| {
        MemberMessage::Recovered(RecoveryPhases {
            generation: Generation(2),
            reason: "connection to rank 1 was reset".into(),
            detect_ms: 3.0,
            form_ms: 4.0,
            state_ms: 5.0,
            first_step_ms,
        })
    };
    ranks[0].tell(phases(6.0)).await.unwrap();
    ranks[2].tell(phases(60.0)).await.unwrap();
    let snapshot = until(&service, |s| s.recoveries.iter().any(|r| r.members.is_some())).await;
    let recovery = &snapshot.recoveries[0];
    assert_eq!((recovery.from, recovery.to), (Generation(1), Some(Generation(2))));
    assert!(recovery.formed_ms.is_some() && recovery.opened_ms.is_some());
    assert_eq!(snapshot.restarts.charged.len(), 1);

    for rank in &ranks {
        rank.tell(rank.done("digest")).await.unwrap();
        assert!(matches!(
            saved(folder.path()).ending,
            Some(Ending::Complete { .. })
        ));
    }
    let snapshot = until(&service, |s| s.done.len() == 3).await;
    assert_eq!(snapshot.phase, ServicePhase::Complete);
    assert_eq!(
        snapshot.recoveries[0].members.as_ref().unwrap().first_step_ms,
        60.0
    );
    assert!(matches!(ranks[0].news().await.ask, Ask::Finished { .. }));
    let late = Rank::start(&service, 0).send_join().await.unwrap_err();
    assert!(late.to_string().contains("complete after 10 steps"), "{late}");
}

#[tokio::test]
async fn lost_answers_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let service = service(folder.path(), 2).await;
    let lose = Arc::new(AtomicU32::new(0));
    let url = relay::start(service.address(), Arc::clone(&lose)).await;
    let mut ranks: Vec<_> = (0..2)
        .map(|slot| Rank::start_through(&service, slot, &url))
        .collect();
    let lose_one = || lose.store(1, Ordering::SeqCst);
    for rank in &mut ranks {
        lose_one();
        rank.join().await;
    }
    for rank in &mut ranks {
        lose_one();
        assert_eq!(rank.enter().await.generation, Generation(1));
        lose_one();
        rank.establish().await;
    }
    lose_one();
    ranks[1].crash().await;
    assert_eq!(lose.load(Ordering::SeqCst), 0);
    lose_one();
    ranks[1].join().await;
    ranks[0].abort("rank 1 is gone").await;
    for rank in &mut ranks {
        assert_eq!(rank.enter().await.generation, Generation(2));
        rank.establish().await;
    }
    for rank in &ranks {
        lose_one();
        rank.tell(rank.done("digest")).await.unwrap();
    }
    let snapshot = service.snapshot();
    assert_eq!(
        (snapshot.restarts.charged.len(), snapshot.generations.len()),
        (1, 2)
    );
}

#[tokio::test]
async fn a_service_that_is_started_again_finds_its_group_at_work() {
    let folder = tempfile::tempdir().unwrap();
    let authenticator = LocalAuthenticator::default();
    let limits = Limits::default();
    let first = service_with(folder.path(), 3, any_port(), authenticator.clone(), limits).await;
    let mut ranks = ranks(&first, 3);
    open_group(&mut ranks).await;
    let address = first.address();
    first.shut_down().await;

    let second = service_with(folder.path(), 3, address, authenticator, limits).await;
    // The polls go on as before; the ranks do not notice that the client had to introduce them again.
    for rank in &mut ranks {
        assert_eq!(rank.news().await.ask, Ask::None);
    }
    let snapshot = until(&second, |s| s.phase == ServicePhase::Running).await;
    assert_eq!(snapshot.generation, Generation(1));
    assert!(snapshot.generations.is_empty(), "nothing new was formed");

    // And it goes on from there: all held commit 7, so memory is the base.
    for rank in &mut ranks {
        rank.commit(7);
        rank.abort("a link broke").await;
    }
    for rank in &mut ranks {
        let plan = rank.enter().await;
        assert_eq!(
            (plan.generation, plan.base.source),
            (Generation(2), BaseSource::Memory)
        );
        assert_eq!(rank.report.held, Some(state_at(plan.base.position)));
    }
}

#[tokio::test]
async fn a_second_run_of_the_same_directory_waits_for_proof_that_the_first_ones_members_ended() {
    let folder = tempfile::tempdir().unwrap();
    let first = service(folder.path(), 1).await;
    let mut old = ranks(&first, 1);
    open_group(&mut old).await;
    first.shut_down().await;

    let second = service(folder.path(), 1).await;
    let mut new = Rank::start(&second, 0);
    new.sees_checkpoint(1, 4);
    new.join().await;
    let ended = old[0].id.clone();
    assert_eq!(second.snapshot().generation, Generation(1));
    assert_eq!(
        saved(folder.path()).formed.unwrap().members,
        std::slice::from_ref(&ended)
    );
    second.pod_ended(ended.pod, 0, EndProof::default()).await;
    let plan = new.enter().await;
    assert_eq!((plan.generation, plan.base.position.commit), (Generation(2), 4));
}

#[tokio::test]
async fn of_two_services_over_one_directory_only_one_forms_a_generation() {
    let folder = tempfile::tempdir().unwrap();
    let authenticator = LocalAuthenticator::default();
    let limits = Limits::default();
    let first = service_with(folder.path(), 1, any_port(), authenticator.clone(), limits).await;
    let second = service_with(folder.path(), 1, any_port(), authenticator, limits).await;
    let mut ours = Rank::start(&first, 0);
    ours.join().await;
    ours.enter().await;
    let digest = saved(folder.path()).formed.unwrap().plan_digest;
    let mut theirs = Rank::start(&second, 0);
    theirs.join().await;
    // The second one finds that it is not alone, and that only the first one's member holds the state.
    let snapshot = until(&second, |s| s.generation == Generation(1)).await;
    assert!(snapshot.generations.is_empty(), "{snapshot:?}");
    assert_eq!(saved(folder.path()).formed.unwrap().plan_digest, digest);
    assert_eq!(theirs.news().await.head, None);
}

#[tokio::test]
async fn a_stop_reaches_everybody_and_ends_when_all_have_left() {
    let folder = tempfile::tempdir().unwrap();
    let service = service(folder.path(), 2).await;
    let mut ranks = ranks(&service, 2);
    open_group(&mut ranks).await;
    let cause = StopCause {
        reason: "interrupted by the user".into(),
        within_ms: 5000,
    };
    service.stop(cause.clone()).await;
    for rank in &mut ranks {
        while rank.news().await.ask != (Ask::Stop { cause: cause.clone() }) {}
        let position = Position {
            commit: 3,
            generation: Generation(1),
        };
        let checkpoint = Some("step-3-g1".into());
        let cause = LeaveCause::Stopped { position, checkpoint };
        rank.tell(MemberMessage::Leave { cause }).await.unwrap();
    }
    let snapshot = until(&service, |s| s.phase == ServicePhase::Stopped).await;
    assert!(snapshot.reason.contains("interrupted by the user"));
}

#[tokio::test]
async fn beats_carry_progress_and_ask_unknown_ranks_to_join() {
    let folder = tempfile::tempdir().unwrap();
    let service = service(folder.path(), 1).await;
    let mut ranks = ranks(&service, 1);
    open_group(&mut ranks).await;
    let stranger = gradsync_formats::identity::Incarnation::fresh();
    let beat = |incarnation, thread_counter| RankBeat {
        incarnation,
        step_counter: 1,
        thread_counter,
        progress: Some(Progress {
            step: 17,
            loss: "NaN".into(),
            activity: "training".into(),
            ..Progress::default()
        }),
    };
    let reply = ranks[0]
        .client
        .beat(Beat {
            pod: ranks[0].id.pod.clone(),
            ranks: vec![beat(ranks[0].id.incarnation, 1), beat(stranger, 1)],
        })
        .await
        .unwrap();
    assert_eq!(reply.unknown, [stranger]);
    let snapshot = until(&service, |s| s.progress.step == 17).await;
    assert_eq!(
        (
            snapshot.progress.loss.as_str(),
            snapshot.members[0].activity.as_str()
        ),
        ("NaN", "training")
    );
}

#[tokio::test]
async fn a_report_of_a_generation_that_is_over_is_refused_as_stale() {
    let folder = tempfile::tempdir().unwrap();
    let service = service(folder.path(), 1).await;
    let mut ranks = ranks(&service, 1);
    open_group(&mut ranks).await;
    ranks[0].commit(2);
    ranks[0].abort("an error").await;
    ranks[0].enter().await;
    let message = MemberMessage::Established {
        generation: Generation(1),
    };
    let error = ranks[0].tell(message).await.unwrap_err();
    let gradsync_rendezvous::client::ClientError::Refused(refusal) = error else {
        panic!("{error}");
    };
    let (current, given) = (Generation(2), Generation(1));
    assert_eq!(*refusal, Refusal::StaleGeneration { current, given });
}

#[tokio::test]
async fn a_member_that_a_new_service_does_not_take_back_is_told_why() {
    let folder = tempfile::tempdir().unwrap();
    let authenticator = LocalAuthenticator::default();
    let limits = Limits::default();
    let first = service_with(folder.path(), 2, any_port(), authenticator.clone(), limits).await;
    let mut ranks = ranks(&first, 2);
    open_group(&mut ranks).await;
    ranks[0].commit(10);
    ranks[0].tell(ranks[0].done("digest")).await.unwrap();
    let address = first.address();
    first.shut_down().await;

    let _second = service_with(folder.path(), 2, address, authenticator, limits).await;
    let told = ranks[1].client.news(None, std::time::Duration::ZERO).await;
    let Err(ClientError::NotTakenBack { member, refusal }) = told else {
        panic!("the new service is finished with it: {told:?}");
    };
    assert_eq!(member, ranks[1].id);
    assert!(matches!(*refusal, Refusal::Finished { .. }), "{refusal}");
    // It is forgotten: the next call is about those that are left.
    ranks[1]
        .client
        .news(None, std::time::Duration::ZERO)
        .await
        .unwrap();
}
