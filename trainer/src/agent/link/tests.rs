use super::*;
use gradsync_formats::identity::{Incarnation, PodUid};
use gradsync_rendezvous::wire::{Ask, MemberNews, StopCause};
use std::io::{BufRead as _, BufReader};
use std::sync::mpsc;

struct Agent {
    stream: BufReader<UnixStream>,
}

impl Agent {
    /// The next message that is not a beat.
    fn read(&mut self) -> FromRank {
        loop {
            let mut line = vec![];
            assert!(
                self.stream.read_until(b'\n', &mut line).unwrap() > 0,
                "the rank closed the link"
            );
            let mut decoder = Decoder::new(job());
            decoder.push(&line);
            let message = decoder.next_message().unwrap().unwrap();
            if !matches!(message, FromRank::Beat { .. }) {
                return message;
            }
        }
    }

    fn say(&mut self, message: &ToRank) {
        self.stream
            .get_mut()
            .write_all(&encode(&job(), message).unwrap())
            .unwrap();
    }
}

fn job() -> JobUid {
    JobUid("j".into())
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn linked(on_lost: OnLost) -> (RankLink, Agent) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let member = MemberId {
        slot: 0,
        local_rank: 0,
        pod: PodUid("p".into()),
        incarnation: Incarnation::fresh(),
    };
    theirs.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let link = RankLink::start(job(), member, ours, on_lost).unwrap();
    let agent = Agent {
        stream: BufReader::new(theirs),
    };
    (link, agent)
}

#[test]
fn a_refused_join_tells_why_and_an_answered_report_returns() {
    let (mut link, mut agent) = linked(Box::new(|_| {}));
    let agent = std::thread::spawn(move || {
        assert!(matches!(agent.read(), FromRank::Join { .. }));
        agent.say(&ToRank::Refused {
            number: None,
            refusal: Refusal::Finished {
                reason: "done".into(),
            },
        });
        let FromRank::Report { number, .. } = agent.read() else {
            panic!("a report was expected");
        };
        agent.say(&ToRank::Accepted { number });
        agent
    });
    let refused = link.join(MemberReport::default(), soon());
    assert!(
        matches!(&refused, Err(GroupError::Refused(why)) if matches!(**why, Refusal::Finished { .. })),
        "{refused:?}"
    );
    let message = MemberMessage::Established {
        generation: Generation(1),
    };
    link.report(message, soon()).unwrap();
    drop(agent.join().unwrap());
}

#[test]
fn the_end_of_the_agent_is_told_once_and_ends_every_wait() {
    let (tell, told) = mpsc::channel();
    let (mut link, agent) = linked(Box::new(move |reason| tell.send(reason.to_owned()).unwrap()));
    drop(agent);
    let error = link.join(MemberReport::default(), soon()).unwrap_err();
    assert!(matches!(error, GroupError::AgentGone(_)), "{error}");
    told.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(
        told.recv_timeout(Duration::from_secs(20)).is_err(),
        "told once, then the sender is dropped"
    );
    assert!(matches!(link.asked(Generation(1)), Asked::AgentGone(_)));
}

#[test]
fn closing_the_link_in_order_is_no_loss() {
    let (tell, told) = mpsc::channel::<String>();
    let (link, _agent) = linked(Box::new(move |reason| tell.send(reason.to_owned()).unwrap()));
    drop(link);
    assert!(told.recv_timeout(Duration::from_secs(20)).is_err());
}

#[test]
fn a_request_to_stop_is_seen_without_waiting_for_it() {
    let (mut link, mut agent) = linked(Box::new(|_| {}));
    assert_eq!(link.asked(Generation(1)), Asked::Nothing);
    agent.say(&ToRank::News {
        plan: None,
        news: MemberNews {
            head: None,
            floor: Generation(0),
            ask: Ask::Stop {
                cause: StopCause {
                    reason: "interrupted".into(),
                    within_ms: 9,
                },
            },
        },
    });
    // An idle member is woken by the same news; afterwards they are known without waiting.
    assert!(matches!(
        link.next(Generation(0), soon()),
        Ok(Next::Ask(Ask::Stop { .. }))
    ));
    assert!(matches!(link.asked(Generation(1)), Asked::Stop(_)));
}

#[test]
fn a_link_that_can_only_be_read_is_lost_too() {
    let (tell, told) = mpsc::channel();
    let (mut link, agent) = linked(Box::new(move |reason| tell.send(reason.to_owned()).unwrap()));
    agent.stream.get_ref().shutdown(std::net::Shutdown::Read).unwrap();
    // Nobody but the beat writes, and nobody else would ever notice.
    told.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(matches!(link.asked(Generation(1)), Asked::AgentGone(_)));
}

#[test]
fn a_request_to_stop_does_not_wait_for_the_answer_to_a_join() {
    let (mut link, mut agent) = linked(Box::new(|_| {}));
    let stopping = std::thread::spawn(move || {
        assert!(matches!(agent.read(), FromRank::Join { .. }));
        agent.say(&ToRank::News {
            plan: None,
            news: MemberNews {
                head: None,
                floor: Generation(0),
                ask: Ask::Stop {
                    cause: StopCause {
                        reason: "drained".into(),
                        within_ms: 9,
                    },
                },
            },
        });
        agent
    });
    let never = Instant::now() + Duration::from_secs(3600);
    for _ in 0..2 {
        let error = link.join(MemberReport::default(), never).unwrap_err();
        assert!(matches!(error, GroupError::Overtaken), "{error}");
        assert!(matches!(
            link.next(Generation(0), soon()),
            Ok(Next::Ask(Ask::Stop { .. }))
        ));
    }
    drop(stopping.join().unwrap());
}

#[test]
fn what_is_told_is_sent_without_an_answer_and_the_next_answer_is_not_taken_for_its_own() {
    let (mut link, mut agent) = linked(Box::new(|_| {}));
    let established = |generation| MemberMessage::Established {
        generation: Generation(generation),
    };
    link.tell(established(1)).unwrap();
    let FromRank::Report { number: told, .. } = agent.read() else {
        panic!("a report was expected");
    };
    let agent = std::thread::spawn(move || {
        let FromRank::Report { number, .. } = agent.read() else {
            panic!("a report was expected");
        };
        agent.say(&ToRank::Refused {
            number: Some(told),
            refusal: Refusal::Failed {
                reason: "not this one".into(),
            },
        });
        agent.say(&ToRank::Accepted { number });
        agent
    });
    link.report(established(2), soon()).unwrap();
    drop(agent.join().unwrap());
}

#[test]
fn a_deadline_names_what_was_waited_for() {
    let (mut link, _agent) = linked(Box::new(|_| {}));
    let error = link.next(Generation(0), Instant::now()).unwrap_err().to_string();
    assert!(error.contains("a plan"), "{error}");
}

#[test]
fn beats_carry_both_counters_and_progress_only_when_it_changed() {
    let (mut link, mut agent) = linked(Box::new(|_| {}));
    link.alive(Some(Progress {
        step: 3,
        ..Progress::default()
    }));
    let mut beats = vec![];
    while beats.len() < 3 {
        let mut line = vec![];
        agent.stream.read_until(b'\n', &mut line).unwrap();
        let mut decoder = Decoder::new(job());
        decoder.push(&line);
        let FromRank::Beat {
            step_counter,
            thread_counter,
            progress,
        } = decoder.next_message().unwrap().unwrap()
        else {
            panic!("only beats were expected");
        };
        beats.push((step_counter, thread_counter, progress.map(|p| p.step)));
    }
    let threads: Vec<u64> = beats.iter().map(|b| b.1).collect();
    assert_eq!(threads, [1, 2, 3]);
    assert_eq!(beats.iter().filter(|b| b.2 == Some(3)).count(), 1, "{beats:?}");
    assert_eq!(
        beats.last().unwrap().0,
        1,
        "one call said that the step loop is alive"
    );
}
