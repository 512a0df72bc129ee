//! Every broken rule is found, and told by its name, sentence and place.

use super::*;

/// Two members, two epochs, a loss in between.
fn run() -> Simulation {
    let mut s = Simulation::new(Length::Epochs(2));
    s.form(2, None);
    s.steps(5);
    s.form(2, Some(3));
    s.steps(9);
    s
}

/// The rules that `s` breaks, in order.
fn rules(s: &Simulation) -> Vec<Rule> {
    let verdict = s.judge(&complete()).unwrap();
    assert_eq!(verdict.clean, verdict.violations.is_empty());
    verdict.violations.iter().map(|v| v.rule).collect()
}

fn first(s: &Simulation) -> Violation {
    let verdict = s.judge(&complete()).unwrap();
    assert!(!verdict.clean);
    verdict.violations[0].clone()
}

/// What `record` computed for `commit`.
fn parts(record: &mut Record, wanted: u64) -> &mut Vec<ComputedPart> {
    record
        .lines
        .iter_mut()
        .find_map(|line| match line {
            RecordLine::Computed { position, parts, .. } if position.commit == wanted => Some(parts),
            _ => None,
        })
        .unwrap()
}

fn committed(record: &mut Record, wanted: u64) -> (&mut CommitKind, &mut DataProgress, &mut String) {
    record
        .lines
        .iter_mut()
        .find_map(|line| match line {
            RecordLine::Committed {
                position,
                kind,
                progress,
                chain,
                ..
            } if position.commit == wanted => Some((kind, progress, chain)),
            _ => None,
        })
        .unwrap()
}

#[test]
fn the_run_is_clean_before_it_is_broken() {
    assert_eq!(rules(&run()), []);
}

#[test]
fn a_dropped_sample_is_found_with_its_index_and_place() {
    let mut s = run();
    let dropped = parts(&mut s.records[0], 2)[1].indices.pop().unwrap();
    assert_eq!(
        rules(&s),
        [Rule::WrongSamples, Rule::WrongBatch, Rule::SampleDropped]
    );
    let verdict = s.judge(&complete()).unwrap();
    assert_eq!(
        verdict.violations[0].to_string(),
        "part 1 of commit 2 of generation 1 has 2 samples, the grid gives it 3 (records/1-0.jsonl line 5)"
    );
    assert_eq!(
        verdict.violations[2].sentence,
        format!("epoch 0 ended without 1 of its 53 indices: {dropped}")
    );
}

#[test]
fn a_doubled_sample_is_found_with_its_index_and_place() {
    let mut s = run();
    let again = parts(&mut s.records[0], 1)[0].indices[0];
    parts(&mut s.records[1], 2)[0].indices[1] = again;
    assert_eq!(
        rules(&s),
        [Rule::WrongSamples, Rule::SampleDoubled, Rule::SampleDropped]
    );
    let verdict = s.judge(&complete()).unwrap();
    let sentence = verdict.violations[1].to_string();
    assert!(
        sentence.starts_with(&format!(
            "index {again} was used again in epoch 0 by part 2 of commit 2"
        )),
        "{sentence}"
    );
    assert!(sentence.ends_with("(records/1-1.jsonl line 5)"), "{sentence}");
}

#[test]
fn samples_in_another_order_or_of_another_data_set_are_found() {
    let mut s = run();
    parts(&mut s.records[0], 2)[0].indices.swap(0, 1);
    assert_eq!(rules(&s), [Rule::WrongSamples]);
    let mut s = run();
    parts(&mut s.records[0], 2)[0].indices[0] = SAMPLES;
    assert_eq!(
        rules(&s),
        [Rule::WrongSamples, Rule::SampleUnknown, Rule::SampleDropped]
    );
}

#[test]
fn a_wrong_batch_size_is_found() {
    // Both members say 9 where the batch is 10, and compute that.
    let mut s = run();
    for record in &mut s.records[..2] {
        for line in &mut record.lines {
            if let RecordLine::Computed {
                position,
                samples,
                parts,
                ..
            } = line
                && position.commit == 3
            {
                *samples = 9;
                if let Some(last) = parts.iter_mut().find(|p| p.part == 3) {
                    last.indices.pop();
                }
            }
        }
    }
    let found = rules(&s);
    assert_eq!(found[..2], [Rule::WrongBatch, Rule::WrongBatch]);
    assert!(found.contains(&Rule::SampleDropped));
    assert!(
        first(&s).sentence.contains("is 9 samples from sample 20"),
        "{}",
        first(&s)
    );
}

#[test]
fn a_missing_doubled_or_unknown_part_is_found() {
    let mut s = run();
    parts(&mut s.records[1], 2).clear();
    assert_eq!(
        rules(&s),
        [Rule::PartMissing, Rule::WrongBatch, Rule::SampleDropped]
    );
    assert!(
        first(&s)
            .sentence
            .contains("2 of the 4 parts of commit 2 of generation 1 were computed by nobody: 2, 3")
    );

    let mut s = run();
    let part = parts(&mut s.records[0], 2)[0].clone();
    parts(&mut s.records[1], 2).push(part);
    let found = rules(&s);
    assert_eq!(found[0], Rule::PartDoubled);
    assert!(found.contains(&Rule::SampleDoubled) && found.contains(&Rule::WrongBatch));
    assert!(
        first(&s)
            .to_string()
            .contains("also in records/1-0.jsonl line 5 (records/1-1.jsonl line 5)")
    );

    let mut s = run();
    parts(&mut s.records[1], 2)[1].part = 4;
    let found = rules(&s);
    assert_eq!(found[..2], [Rule::PartUnknown, Rule::PartMissing]);
}

#[test]
fn disagreeing_chains_kinds_progress_and_digests_are_found() {
    let mut s = run();
    *committed(&mut s.records[1], 2).2 = "other".into();
    assert_eq!(rules(&s), [Rule::MembersDisagree]);
    assert!(
        first(&s)
            .sentence
            .contains("the chain value of commit 2 of generation 1 is other")
    );
    let mut s = run();
    *committed(&mut s.records[1], 2).0 = CommitKind::Skip;
    assert_eq!(rules(&s), [Rule::MembersDisagree]);
    let mut s = run();
    committed(&mut s.records[1], 2).1.cursor += 1;
    assert_eq!(rules(&s), [Rule::MembersDisagree]);
    let mut s = run();
    for line in &mut s.records[1].lines {
        if let RecordLine::Agreed { position, digest } = line
            && position.commit == 2
        {
            *digest = "other".into();
        }
    }
    assert_eq!(rules(&s), [Rule::MembersDisagree]);
}

#[test]
fn disagreement_in_a_superseded_commit_breaks_no_rule() {
    let mut s = run();
    *committed(&mut s.records[1], 5).2 = "other".into();
    parts(&mut s.records[1], 4).clear();
    assert_eq!(rules(&s), []);
}

#[test]
fn superseded_steps_that_are_counted_after_all_are_found() {
    // The lineage claims that generation 2 began from commit 5, so that 4 and 5 of generation 1 count too.
    let s = run();
    let mut lineage = s.lineage.clone();
    lineage.0[1].base.commit = 5;
    let given = Given {
        lineage: Some(lineage),
        ..complete()
    };
    let verdict = s.judge(&given).unwrap();
    assert!(!verdict.clean);
    assert!(
        verdict.violations.iter().any(|v| v.rule == Rule::LineageBroken),
        "{verdict}"
    );
}

#[test]
fn a_commit_that_nobody_recorded_is_found() {
    for without_computed in [false, true] {
        let mut s = run();
        for record in &mut s.records[2..] {
            record.lines.retain(|line| match line {
                RecordLine::Computed { position, .. } => position.commit != 6 || !without_computed,
                RecordLine::Committed { position, .. } | RecordLine::Agreed { position, .. } => {
                    position.commit != 6
                }
                _ => true,
            });
        }
        let given = Given {
            final_position: Some(s.position),
            ..complete()
        };
        let verdict = s.judge(&given).unwrap();
        assert_eq!(verdict.violations[0].rule, Rule::CommitMissing, "{verdict}");
        // Without a known end, the commits after the gap give it away.
        assert_eq!(rules(&s)[0], Rule::CommitMissing);
    }
    // All records of a generation are lost.
    let mut s = run();
    s.records.drain(..2);
    let verdict = s.judge(&complete()).unwrap();
    assert!(
        verdict.violations[0]
            .sentence
            .starts_with("commits 1 to 3 of generation 1 count"),
        "{verdict}"
    );
}

#[test]
fn a_step_that_begins_elsewhere_is_found_once_and_its_samples_too() {
    // Step 6 computes the samples of step 5 again.
    let mut skipped = Simulation::new(Length::Epochs(2));
    skipped.form(2, None);
    skipped.steps(5);
    let progress = skipped.progress();
    skipped.states.last_mut().unwrap().1 = DataProgress {
        cursor: progress.cursor - BATCH,
        ..progress
    };
    skipped.steps(2);
    let found = rules(&skipped);
    assert_eq!(found[0], Rule::WrongCursor);
    assert!(found.contains(&Rule::SampleDoubled), "{found:?}");
    assert!(
        first(&skipped)
            .sentence
            .contains("begins at sample 40 of epoch 0"),
        "{}",
        first(&skipped)
    );
}

#[test]
fn broken_lineages_and_strange_members_are_found() {
    let mut s = run();
    if let RecordLine::Opened { rank, .. } = &mut s.records[1].lines[0] {
        *rank = 0;
    }
    assert_eq!(rules(&s), [Rule::LineageBroken], "two members of one rank");
    let mut s = run();
    if let RecordLine::Opened { lineage, .. } = &mut s.records[1].lines[0] {
        lineage.0[0].base.commit = 1;
    }
    assert_eq!(rules(&s), [Rule::LineageBroken], "told another lineage");
    let mut s = run();
    let line = s.records[0].lines[1].clone();
    s.records[0].lines.push(line);
    let verdict = s.judge(&complete()).unwrap();
    assert!(verdict.clean, "a superseded line: {verdict}");
    let mut s = run();
    let line = s.records[3].lines[1].clone();
    s.records[3].lines.push(line);
    assert_eq!(rules(&s), [Rule::LineageBroken], "a line out of order");
}

#[test]
fn members_with_other_settings_are_found_and_other_jobs_refused() {
    let mut s = run();
    if let RecordLine::Opened { seed, .. } = &mut s.records[3].lines[0] {
        *seed += 1;
    }
    assert_eq!(rules(&s), [Rule::SettingsDiffer]);
    if let RecordLine::Opened { job_uid, .. } = &mut s.records[3].lines[0] {
        *job_uid = JobUid("job-2".into());
    }
    assert!(matches!(
        s.judge(&complete()),
        Err(AuditError::SeveralJobs { .. })
    ));
}

#[test]
fn a_run_that_only_says_that_it_is_complete_is_found() {
    let mut s = Simulation::new(Length::Epochs(2));
    s.form(2, None);
    s.steps(11);
    assert_eq!(rules(&s), [Rule::NotComplete]);
    s.steps(1);
    assert_eq!(rules(&s), []);
    let given = Given {
        steps: Some(13),
        ..complete()
    };
    assert_eq!(s.judge(&given).unwrap().violations[0].rule, Rule::NotComplete);
    s.steps(1);
    assert_eq!(rules(&s), [Rule::NotComplete], "one step too many");
}

#[test]
fn what_is_no_record_is_refused_with_file_and_line() {
    let refusal = |records: &[Record]| judge(records, &complete()).unwrap_err().to_string();
    let mut s = run();
    s.records[1].tail = b"{\"type\":\"computed\"}\n".to_vec();
    assert!(
        refusal(&s.records).contains("records/1-1.jsonl, line 17"),
        "{}",
        refusal(&s.records)
    );
    s.records[1].tail = b"garbage\n{}\n".to_vec();
    assert!(refusal(&s.records).contains("records/1-1.jsonl, line 17"));
    let mut s = run();
    s.records[1].lines.remove(0);
    assert!(refusal(&s.records).contains("line 1: the first line does not say"));
    let mut s = run();
    let opened = s.records[1].lines[0].clone();
    s.records[0].lines.push(opened);
    assert!(refusal(&s.records).contains("two members wrote one file"));
    let mut s = run();
    if let RecordLine::Opened { version, .. } = &mut s.records[1].lines[0] {
        *version += 1;
    }
    assert!(refusal(&s.records).contains("record version 2"));
    assert!(matches!(judge(&[], &complete()), Err(AuditError::NoRecords)));
}
