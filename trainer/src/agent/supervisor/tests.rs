use super::*;
use gradsync_formats::identity::Generation;
use gradsync_formats::identity::Position;
use gradsync_rendezvous::wire::{Ask, MemberNews, Progress};
use gradsync_rendezvous::wire::{MemberReport, Revision};
use uuid::Uuid;

const GRACE: Duration = Duration::from_secs(9);

/// An agent with `count` ranks whose first processes run.
fn agent(count: u32) -> Supervisor {
    let (mut supervisor, first) = Supervisor::new(2, PodUid("p".into()), count);
    assert_eq!(first.len(), count as usize);
    for local in 0..count {
        assert_eq!(start(&mut supervisor, local), []);
    }
    supervisor
}

fn process(number: u128) -> Incarnation {
    Incarnation(Uuid::from_u128(number))
}

fn start(supervisor: &mut Supervisor, local: u32) -> Vec<Action> {
    let number = u128::from(supervisor.ranks[local as usize].started);
    supervisor.handle(Event::Started {
        local,
        incarnation: process(u128::from(local) * 100 + number),
    })
}

fn exit(code: u8) -> ExitStatus {
    ExitStatus {
        code: Some(i32::from(code)),
        ..ExitStatus::default()
    }
}

fn killed() -> ExitStatus {
    ExitStatus {
        signal: Some(9),
        ..ExitStatus::default()
    }
}

fn end(supervisor: &mut Supervisor, local: u32, status: ExitStatus) -> Vec<Action> {
    supervisor.handle(Event::Exited { local, status })
}

fn beat(supervisor: &mut Supervisor, local: u32, thread_counter: u64, commit: Option<u64>) -> Vec<Action> {
    let progress = commit.map(|commit| Progress {
        position: Position {
            commit,
            generation: Generation(1),
        },
        ..Progress::default()
    });
    let message = FromRank::Beat {
        step_counter: 0,
        thread_counter,
        progress,
    };
    supervisor.handle(Event::FromRank { local, message })
}

fn join(supervisor: &mut Supervisor, local: u32) -> JoinRequest {
    let report = Box::new(MemberReport::default());
    let actions = supervisor.handle(Event::FromRank {
        local,
        message: FromRank::Join { report },
    });
    match &actions[..] {
        [Action::Join(request)] => (**request).clone(),
        other => panic!("a join was expected: {other:?}"),
    }
}

fn refuse(supervisor: &mut Supervisor, incarnation: Incarnation, refusal: Refusal) -> Vec<Action> {
    supervisor.handle(Event::Joined {
        incarnation,
        answer: Box::new(Err(refusal)),
    })
}

fn own_news(ask: Ask) -> MemberNews {
    MemberNews {
        head: None,
        floor: Generation(0),
        ask,
    }
}

fn pod_news(members: &[(Incarnation, Ask)]) -> Event {
    Event::News(Box::new(PodNews {
        revision: Revision("r".into()),
        plan: None,
        members: members
            .iter()
            .map(|(i, ask)| (*i, own_news(ask.clone())))
            .collect(),
    }))
}

fn failed() -> Ask {
    Ask::Failed {
        reason: "budget".into(),
    }
}

#[test]
fn a_crashed_rank_is_proven_ended_and_then_started_again_under_its_own_number() {
    let mut agent = agent(1);
    let actions = end(&mut agent, 0, killed());
    assert!(matches!(&actions[0], Action::ReportExit(report) if report.member.incarnation == process(0)));
    assert_eq!(
        actions[1],
        Action::StartAfter {
            local: 0,
            wait: Duration::ZERO
        }
    );
    let actions = agent.handle(Event::StartDue { local: 0 });
    assert_eq!(actions, [Action::Start { local: 0, number: 1 }]);
    start(&mut agent, 0);
    let request = join(&mut agent, 0);
    assert_eq!(request.restart.number, 1);
    assert_eq!(request.restart.replaces, Some(process(0)));
    assert_eq!(request.restart.last.unwrap().signal, Some(9));
}

#[test]
fn a_commit_makes_the_restarts_before_it_forgotten() {
    let mut agent = agent(1);
    for round in 0..20 {
        beat(&mut agent, 0, 1, Some(round));
        beat(&mut agent, 0, 2, Some(round + 1));
        let actions = end(&mut agent, 0, killed());
        assert_eq!(
            actions[1],
            Action::StartAfter {
                local: 0,
                wait: Duration::ZERO
            },
            "round {round}"
        );
        start(&mut agent, 0);
    }
}

#[test]
fn restarts_without_a_commit_end_with_the_last_error_of_the_rank() {
    let mut agent = agent(1);
    let mut status = exit(exit_code::FAULT);
    status.error = Some("no space".into());
    for _ in 0..super::super::after_exit::MOST_FRUITLESS_RESTARTS {
        beat(&mut agent, 0, 1, Some(7));
        assert!(matches!(
            end(&mut agent, 0, status.clone())[1],
            Action::StartAfter { .. }
        ));
        start(&mut agent, 0);
    }
    let actions = end(&mut agent, 0, status);
    assert_eq!(
        actions.last(),
        Some(&Action::Exit {
            code: exit_code::GAVE_UP,
            error: Some("no space".into())
        })
    );
}

#[test]
fn a_users_mistake_ends_the_agent_with_the_ranks_own_words_after_the_others_have_ended() {
    let mut agent = agent(2);
    let leave = MemberMessage::Leave {
        cause: LeaveCause::Fatal {
            error: "task.parameters.model: no".into(),
        },
    };
    let actions = agent.handle(Event::FromRank {
        local: 0,
        message: FromRank::Report {
            number: 1,
            message: leave,
        },
    });
    assert!(matches!(&actions[..], [Action::Report { number: 1, .. }]));
    let actions = end(&mut agent, 0, exit(exit_code::USER_ERROR));
    assert!(
        matches!(&actions[0], Action::ReportExit(r) if r.status.error.as_deref() == Some("task.parameters.model: no"))
    );
    assert_eq!(actions[1..], [Action::KillAfter(GIVE_UP_GRACE)]);
    assert!(matches!(
        agent.handle(Event::KillDue)[..],
        [Action::Kill { local: 1, .. }]
    ));
    let actions = end(&mut agent, 1, killed());
    let error = Some("task.parameters.model: no".to_owned());
    assert_eq!(
        actions.last(),
        Some(&Action::Exit {
            code: exit_code::USER_ERROR,
            error
        })
    );
}

#[test]
fn a_rank_that_was_told_that_the_job_has_failed_is_not_started_again() {
    let mut agent = agent(1);
    agent.handle(pod_news(&[(process(0), failed())]));
    let actions = end(&mut agent, 0, exit(exit_code::FAULT));
    assert!(
        matches!(
            actions.last(),
            Some(Action::Exit {
                code: exit_code::FAULT,
                ..
            })
        ),
        "{actions:?}"
    );
}

#[test]
fn a_rank_refused_for_good_is_not_started_again_but_one_that_shall_join_again_is() {
    for (refusal, again) in [
        (Refusal::Failed { reason: "x".into() }, false),
        (
            Refusal::BadToken {
                problem: "old".into(),
            },
            true,
        ),
    ] {
        let mut agent = agent(1);
        join(&mut agent, 0);
        assert!(matches!(
            refuse(&mut agent, process(0), refusal)[..],
            [Action::Tell { .. }]
        ));
        let actions = end(&mut agent, 0, exit(exit_code::FAULT));
        assert_eq!(
            matches!(actions[1], Action::StartAfter { .. }),
            again,
            "{actions:?}"
        );
    }
}

#[test]
fn all_finished_is_zero_and_one_stopped_is_stopped() {
    for (codes, expected) in [([0, 0], 0), ([0, exit_code::STOPPED], exit_code::STOPPED)] {
        let mut agent = agent(2);
        end(&mut agent, 0, exit(codes[0]));
        let actions = end(&mut agent, 1, exit(codes[1]));
        assert_eq!(
            actions.last(),
            Some(&Action::Exit {
                code: expected,
                error: None
            })
        );
    }
}

#[test]
fn a_signal_asks_the_ranks_to_stop_whatever_the_service_says_and_starts_no_more() {
    let mut agent = agent(2);
    end(&mut agent, 1, killed());
    let signal = || Event::StopSignal {
        name: "SIGTERM".into(),
        grace: GRACE,
    };
    let actions = agent.handle(signal());
    let stops = |action: &Action| match action {
        Action::Tell {
            local: 0,
            message: ToRank::News { news, .. },
        } => matches!(news.ask, Ask::Stop { .. }),
        _ => false,
    };
    assert!(
        stops(&actions[0]) && actions[1] == Action::KillAfter(GRACE),
        "{actions:?}"
    );
    assert_eq!(agent.handle(Event::StartDue { local: 1 }), []);
    // The same news from the service change nothing for the rank.
    assert_eq!(agent.handle(pod_news(&[(process(0), Ask::None)])), []);
    assert!(matches!(
        agent.handle(signal())[..],
        [Action::Kill { local: 0, .. }]
    ));
    let actions = end(&mut agent, 0, killed());
    assert!(
        matches!(
            actions.last(),
            Some(Action::Exit {
                code: exit_code::STOPPED,
                ..
            })
        ),
        "{actions:?}"
    );
}

#[test]
fn an_agent_that_was_told_to_stop_says_so_with_its_last_word() {
    let mut agent = agent(1);
    agent.handle(Event::StopSignal {
        name: "SIGTERM".into(),
        grace: GRACE,
    });
    let actions = end(&mut agent, 0, exit(exit_code::STOPPED));
    assert_eq!(
        actions.last(),
        Some(&Action::Exit {
            code: exit_code::STOPPED,
            error: Some("the agent of worker 2 received SIGTERM".into())
        })
    );
}

#[test]
fn news_are_told_once_and_again_after_each_join() {
    let mut agent = agent(1);
    let reform = Ask::Reform {
        generation: Generation(1),
        checkpoint: false,
        reason: "r".into(),
    };
    let news = || pod_news(&[(process(0), reform.clone())]);
    assert_eq!(agent.handle(news()).len(), 1);
    assert_eq!(agent.handle(news()), []);
    join(&mut agent, 0);
    let refused = refuse(
        &mut agent,
        process(0),
        Refusal::BadToken {
            problem: "old".into(),
        },
    );
    assert_eq!(refused.len(), 2, "the answer and the news: {refused:?}");
}

/// Lets the agent work for so many seconds; what came of it.
fn work(agent: &mut Supervisor, seconds: u64) -> Vec<Action> {
    let start = agent.ticked;
    (1..=seconds)
        .flat_map(|second| {
            let now = start + Duration::from_secs(second);
            agent.handle(Event::Tick { now })
        })
        .collect()
}

#[test]
fn a_silent_rank_is_killed_once() {
    let mut agent = agent(2);
    work(&mut agent, 100);
    for local in 0..2 {
        beat(&mut agent, local, 5, None);
    }
    for second in 0..SILENCE_LIMIT.as_secs() {
        assert_eq!(work(&mut agent, 1), []);
        // Beats whose thread counter stands still are no sign of life.
        beat(&mut agent, 0, 5, None);
        beat(&mut agent, 1, 6 + second, None);
    }
    assert!(matches!(work(&mut agent, 1)[..], [Action::Kill { local: 0, .. }]));
    assert_eq!(work(&mut agent, 5), []);
}

#[test]
fn a_rank_that_has_left_may_take_its_time_to_end_but_not_for_ever() {
    let mut agent = agent(1);
    beat(&mut agent, 0, 1, None);
    let message = FromRank::Report {
        number: 1,
        message: MemberMessage::Leave {
            cause: LeaveCause::Fatal {
                error: "read /data: no such file".into(),
            },
        },
    };
    agent.handle(Event::FromRank { local: 0, message });
    // It unloads its libraries on a machine that is busy: what it ended with must not be lost to a kill.
    assert_eq!(work(&mut agent, FIRST_SIGN_LIMIT.as_secs()), []);
    assert!(matches!(work(&mut agent, 1)[..], [Action::Kill { local: 0, .. }]));
}

#[test]
fn an_agent_that_stood_still_itself_kills_nobody_and_then_counts_on() {
    let mut agent = agent(1);
    for counter in 1..=5 {
        beat(&mut agent, 0, counter, None);
        work(&mut agent, 1);
    }
    // The agent, or the whole machine, was stopped for an hour: the first tick comes before any beat.
    for stop in 1..=3 {
        let now = agent.ticked + Duration::from_secs(3600);
        assert_eq!(agent.handle(Event::Tick { now }), [], "stop {stop}");
    }
    beat(&mut agent, 0, 6, None);
    assert_eq!(work(&mut agent, SILENCE_LIMIT.as_secs()), []);
    assert!(matches!(work(&mut agent, 1)[..], [Action::Kill { local: 0, .. }]));
}

#[test]
fn a_process_that_hangs_before_its_first_sign_of_life_is_killed_and_its_end_says_so() {
    let mut agent = agent(2);
    beat(&mut agent, 1, 1, None);
    for counter in 0..FIRST_SIGN_LIMIT.as_secs() {
        assert_eq!(work(&mut agent, 1), [], "second {counter}");
        beat(&mut agent, 1, 2 + counter, None);
    }
    assert!(matches!(work(&mut agent, 1)[..], [Action::Kill { local: 0, .. }]));
    let actions = end(&mut agent, 0, killed());
    let Action::ReportExit(report) = &actions[0] else {
        panic!("{actions:?}");
    };
    let error = report.status.error.as_deref().unwrap();
    assert!(
        error.contains("no first sign of life since its start for 300 s"),
        "{error}"
    );
    // The next process has the whole time again.
    start(&mut agent, 0);
    assert_eq!(work(&mut agent, 9), []);
}

#[test]
fn a_rank_that_the_service_does_not_take_back_is_told_and_not_started_again() {
    for refusal in [
        Refusal::Finished { reason: "x".into() },
        Refusal::Failed { reason: "x".into() },
        Refusal::BadToken {
            problem: "its pod has ended".into(),
        },
    ] {
        let mut agent = agent(1);
        join(&mut agent, 0);
        let actions = agent.handle(Event::NotTakenBack {
            incarnation: process(0),
            refusal: Box::new(refusal.clone()),
        });
        let [
            Action::Tell {
                local: 0,
                message: ToRank::News { news, .. },
            },
        ] = &actions[..]
        else {
            panic!("{actions:?}");
        };
        assert_eq!(
            matches!(news.ask, Ask::Finished { .. }),
            matches!(refusal, Refusal::Finished { .. }),
        );
        assert_ne!(news.ask, Ask::None);
        assert_eq!(agent.beat(), None, "the service does not know it");
        let actions = end(&mut agent, 0, exit(exit_code::REFUSED));
        assert!(matches!(actions.last(), Some(Action::Exit { .. })), "{actions:?}");
    }
}

#[test]
fn only_joined_ranks_are_in_the_beat() {
    let mut agent = agent(2);
    assert_eq!(agent.beat(), None);
}
