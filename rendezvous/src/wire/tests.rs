use super::*;
use gradsync_formats::identity::{Generation, Incarnation, MemberId, PodUid, Position};
use gradsync_formats::lineage::Lineage;

fn member(slot: u32) -> MemberId {
    MemberId {
        slot,
        local_rank: 0,
        pod: PodUid(format!("pod-{slot}")),
        incarnation: Incarnation(uuid::Uuid::from_u128(u128::from(slot) + 1)),
    }
}

fn plan() -> Plan {
    let id = member(0);
    Plan {
        version: PLAN_VERSION,
        job_uid: JobUid("job".into()),
        generation: Generation(3),
        world_size: 1,
        members: vec![PlannedMember {
            rank: 0,
            role: Role::Worker,
            id,
            addresses: vec!["127.0.0.1:7001".into(), "[::1]:7001".into()],
        }],
        base: Base {
            position: Position::INITIAL,
            source: BaseSource::Checkpoint {
                path: "step-4-g2".into(),
            },
            state_digest: Some("ab".into()),
            chain: None,
        },
        lineage: Lineage::default().extended(Generation(3), Position::INITIAL),
        run_config_digest: "cd".into(),
        reason: "first forming".into(),
    }
}

#[test]
fn versions_one_minor_apart_talk_to_each_other() {
    let v = |major, minor| ProtocolVersion { major, minor };
    assert!(v(1, 3).talks_to(v(1, 4)) && v(1, 4).talks_to(v(1, 3)) && v(1, 3).talks_to(v(1, 3)));
    assert!(!v(1, 3).talks_to(v(1, 5)) && !v(1, 0).talks_to(v(2, 0)));
}

#[test]
fn a_plan_keeps_its_bytes_and_digest_through_news_and_a_changed_byte_is_found() {
    let encoded = EncodedPlan::encode(&plan()).unwrap();
    let news = PodNews {
        revision: Revision("r-1".into()),
        plan: Some(encoded.clone()),
        members: [(
            member(0).incarnation,
            MemberNews {
                head: None,
                floor: Generation(2),
                ask: Ask::Reform {
                    generation: Generation(2),
                    checkpoint: false,
                    reason: "worker 1 was lost".into(),
                },
            },
        )]
        .into(),
    };
    let back: PodNews = serde_json::from_str(&serde_json::to_string(&news).unwrap()).unwrap();
    assert_eq!(back, news);
    assert_eq!(back.plan.unwrap().decode().unwrap(), plan());
    let forged = EncodedPlan {
        document: encoded.document.replace("7001", "7002").into(),
        ..encoded
    };
    assert!(matches!(forged.decode(), Err(PlanError::Digest { .. })));
    let later = Plan {
        version: PLAN_VERSION + 1,
        ..plan()
    };
    assert!(matches!(
        EncodedPlan::encode(&later).unwrap().decode(),
        Err(PlanError::Version(2))
    ));
}

#[test]
fn unknown_fields_are_ignored_and_names_are_camel_case() {
    let text = r#"{"protocol":{"major":1,"minor":1,"patch":7},"jobUid":"j","colour":"red",
        "body":{"member":{"slot":0,"localRank":0,"pod":"p","incarnation":"00000000-0000-0000-0000-000000000001"},
        "report":{"ready":true,"left":4,"newThing":[1]}}}"#;
    let join: Envelope<JoinRequest> = serde_json::from_str(text).unwrap();
    assert_eq!(join.body.report.left, Generation(4));
    assert_eq!(join.body.restart, RestartReport::default());
    let text = serde_json::to_string(&join).unwrap();
    assert!(
        text.contains("plannedDigest") && text.contains("directoryNonce"),
        "{text}"
    );
}

#[test]
fn a_head_fits_its_bound_and_its_key_is_not_shown() {
    let head = PlanHead {
        generation: Generation(u64::MAX),
        rank: u32::MAX,
        role: Role::Standby,
        share: Some(Share {
            index: u32::MAX,
            of: u32::MAX,
        }),
        key: Secret::new("f".repeat(64)),
    };
    assert!(serde_json::to_vec(&head).unwrap().len() <= MAX_HEAD_BYTES);
    assert!(!format!("{head:?}").contains("ffff"));
}

#[test]
fn refusals_round_trip_and_say_what_to_do() {
    let refusal = Refusal::DifferentData {
        member: member(1),
        peer: member(0).to_string(),
        expected: "60000 samples, 12ab".into(),
        given: "59999 samples, 34cd".into(),
    };
    let back: Refusal = serde_json::from_str(&serde_json::to_string(&refusal).unwrap()).unwrap();
    assert_eq!(back, refusal);
    let text = refusal.to_string();
    for part in [
        "worker 1.0",
        "worker 0.0",
        "60000 samples, 12ab",
        "59999 samples, 34cd",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn only_unforced_ends_are_charged() {
    let end = |code, signal, oom_killed| ExitStatus {
        code,
        signal,
        oom_killed,
        error: None,
    };
    assert!(end(Some(1), None, false).is_charged());
    assert!(end(None, Some(9), false).is_charged());
    assert!(end(None, Some(15), true).is_charged());
    assert!(!end(Some(0), None, false).is_charged());
    assert!(!end(Some(143), None, false).is_charged());
    assert!(!end(None, Some(15), false).is_charged());
}
