//! A trainer that trains nothing: the real agent, and ranks that speak the real protocol but follow a
//! script instead of computing. Tests of launcher, agent and rendezvous use it to bring about faults at
//! exact places. The script is `task.parameters` of the manifest.

use clap::Parser;
use gradsync_formats::identity::{Generation, Position};
use gradsync_formats::manifest::{DataProgress, Fingerprints};
use gradsync_formats::record::{CommitKind, RecordLine, record_file_name};
use gradsync_formats::run_config::Length;
use gradsync_rendezvous::wire::{
    Ask, DoneReport, HeldState, LeaveCause, MemberMessage, MemberReport, Plan, Progress, Refusal,
};
use gradsync_trainer::agent::environment::RankEnvironment;
use gradsync_trainer::agent::link::RankLink;
use gradsync_trainer::agent::run::AgentArgs;
use gradsync_trainer::agent::{exit_code, rank_start, run};
use gradsync_trainer::group::{Asked, Group, GroupError, Joined, Next};
use serde::Deserialize;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What the ranks do.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Script {
    /// Before this step all ranks wait, still answering the service, until the file exists.
    hold: Option<Hold>,
    /// The ranks of one worker are not ready until the file exists.
    hold_join: Option<HoldJoin>,
    /// Ranks at a hold do not listen to anybody.
    deaf: bool,
    /// Faults.
    faults: Vec<Fault>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hold {
    before_step: u64,
    file: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HoldJoin {
    slot: u32,
    file: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fault {
    slot: u32,
    before_step: u64,
    kind: FaultKind,
    /// Only processes that were restarted in place fewer times than this have the fault.
    #[serde(default = "once")]
    times: u32,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum FaultKind {
    /// Ends with a message on standard error.
    Crash,
    /// Tells the service that no restart would help.
    UserError,
}

fn once() -> u32 {
    1
}

#[derive(Parser)]
enum Arguments {
    Agent(Box<AgentArgs>),
    Rank,
}

fn main() -> ExitCode {
    let code = match Arguments::parse() {
        Arguments::Agent(args) => run::run(*args).unwrap_or_else(|error| {
            eprintln!("error: {error}");
            exit_code::FAULT
        }),
        Arguments::Rank => rank(),
    };
    ExitCode::from(code)
}

fn rank() -> u8 {
    let environment = RankEnvironment::read(|name| std::env::var(name).ok()).expect("started by an agent");
    let link = rank_start::connect(&environment).expect("the agent holds the link");
    let mut rank = Rank {
        environment,
        link,
        report: MemberReport::default(),
        position: Position::INITIAL,
    };
    match rank.live() {
        Ok(code) => code,
        Err(GroupError::Refused(refusal)) if matches!(*refusal, Refusal::Finished { .. }) => {
            exit_code::FINISHED
        }
        Err(error) => {
            eprintln!("error: {error}");
            exit_code::FAULT
        }
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

struct Rank {
    environment: RankEnvironment,
    link: RankLink,
    report: MemberReport,
    position: Position,
}

enum Left {
    Again,
    Ended(u8),
}

impl Rank {
    fn live(&mut self) -> Result<u8, GroupError> {
        let joined = self.link.join(self.report.clone(), soon())?;
        let script: Script =
            serde_json::from_value(joined.run_config.task.parameters.clone()).expect("a script");
        if let Some(hold) = &script.hold_join
            && hold.slot == self.environment.member.slot
        {
            while !hold.file.exists() {
                std::thread::park_timeout(Duration::from_millis(5));
            }
        }
        self.report.ready = true;
        self.report.addresses = vec!["127.0.0.1:1".into()];
        self.report.run_config_digest = Some(joined.run_config_digest.clone());
        self.report.fingerprints = Some(Fingerprints {
            task: joined.run_config.task.name.clone(),
            parameter_layout: "none".into(),
            data: "none".into(),
        });
        loop {
            self.report.held = Some(self.held());
            self.link.join(self.report.clone(), soon())?;
            let plan = loop {
                match self.link.next(self.report.left, soon())? {
                    Next::Plan { plan, digest, head } => {
                        self.report.planned_digest = Some(digest);
                        break (plan, head.rank);
                    }
                    Next::Floor(floor) => {
                        self.report.left = floor;
                        self.link.join(self.report.clone(), soon())?;
                    }
                    Next::Ask(Ask::Stop { .. }) => return self.stopped(),
                    Next::Ask(Ask::Finished { .. }) => return Ok(exit_code::FINISHED),
                    Next::Ask(Ask::Rejoin { .. }) => {
                        self.link.join(self.report.clone(), soon())?;
                    }
                    Next::Ask(other) => {
                        eprintln!("error: {other:?}");
                        return Ok(exit_code::FAULT);
                    }
                }
            };
            match self.generation(&plan.0, plan.1, &joined, &script)? {
                Left::Again => self.report.left = plan.0.generation,
                Left::Ended(code) => return Ok(code),
            }
        }
    }

    fn held(&self) -> HeldState {
        HeldState {
            position: self.position,
            chain: format!("chain-{}", self.position.commit),
            state_digest: digest(self.position),
        }
    }

    fn stopped(&mut self) -> Result<u8, GroupError> {
        let cause = LeaveCause::Stopped {
            position: self.position,
            checkpoint: None,
        };
        self.link.report(MemberMessage::Leave { cause }, soon())?;
        Ok(exit_code::STOPPED)
    }

    fn generation(
        &mut self,
        plan: &Plan,
        rank: u32,
        joined: &Joined,
        script: &Script,
    ) -> Result<Left, GroupError> {
        let generation = plan.generation;
        let Length::Steps(steps) = joined.run_config.training.length else {
            panic!("the script needs steps");
        };
        self.report.planned = generation;
        self.position = plan.base.position;
        self.report.established = generation;
        self.link
            .report(MemberMessage::Established { generation }, soon())?;
        let mut record = self.open_record(plan, rank, joined);
        while self.position.commit < steps {
            if let Some(left) = self.before_step(generation, script)? {
                return Ok(left);
            }
            self.step(generation, &mut record);
        }
        let world_size = plan.world_size;
        if let Some(left) = self.wait(generation, script, |rank| {
            rank.all_recorded(generation, world_size, steps)
        })? {
            return Ok(left);
        }
        let report = DoneReport {
            generation,
            rank,
            world_size: plan.world_size,
            position: self.position,
            total_steps: steps,
            epochs: 1,
            state_digest: digest(self.position),
            final_loss: "0.5".into(),
            metrics: std::collections::BTreeMap::new(),
            checkpoint: None,
        };
        match self.link.report(MemberMessage::Done(report), soon()) {
            Ok(()) => Ok(Left::Ended(exit_code::FINISHED)),
            Err(GroupError::Refused(refusal)) if refusal.wants_join() => Ok(Left::Again),
            Err(error) => Err(error),
        }
    }

    /// Answers the service, and does what the script says.
    fn before_step(&mut self, generation: Generation, script: &Script) -> Result<Option<Left>, GroupError> {
        let next = self.position.commit + 1;
        let slot = self.environment.member.slot;
        for fault in &script.faults {
            let due =
                fault.slot == slot && fault.before_step == next && self.environment.restart < fault.times;
            match fault.kind {
                FaultKind::Crash if due => {
                    eprintln!("error: the script crashes worker {slot} before step {next}");
                    return Ok(Some(Left::Ended(exit_code::FAULT)));
                }
                FaultKind::UserError if due => {
                    let error =
                        format!("task.parameters.faults: worker {slot} is told to fail before step {next}");
                    let cause = LeaveCause::Fatal { error };
                    self.link.report(MemberMessage::Leave { cause }, soon())?;
                    return Ok(Some(Left::Ended(exit_code::USER_ERROR)));
                }
                FaultKind::Crash | FaultKind::UserError => {}
            }
        }
        self.wait(generation, script, |_| match &script.hold {
            Some(hold) => hold.before_step != next || hold.file.exists(),
            None => true,
        })
    }

    /// Waits until `is_over`, answering the service meanwhile.
    fn wait(
        &mut self,
        generation: Generation,
        script: &Script,
        is_over: impl Fn(&Rank) -> bool,
    ) -> Result<Option<Left>, GroupError> {
        loop {
            match self.link.asked(generation) {
                _ if script.deaf => {}
                Asked::Nothing => {}
                Asked::Reform { .. } | Asked::Over { .. } => return Ok(Some(Left::Again)),
                Asked::Stop(_) => return self.stopped().map(|code| Some(Left::Ended(code))),
                Asked::Finished(_) => return Ok(Some(Left::Ended(exit_code::FINISHED))),
                Asked::Failed(reason) | Asked::Refused(reason) | Asked::AgentGone(reason) => {
                    eprintln!("error: {reason}");
                    return Ok(Some(Left::Ended(exit_code::FAULT)));
                }
            }
            if is_over(self) {
                return Ok(None);
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Whether all ranks of `generation` have recorded `steps` commits: the closing barrier.
    fn all_recorded(&self, generation: Generation, world_size: u32, steps: u64) -> bool {
        let Some(directory) = &self.environment.record_directory else {
            return true;
        };
        let last = format!("\"commit\":{steps},");
        let done = std::fs::read_dir(directory)
            .expect("the records can be listed")
            .filter_map(|entry| entry.ok())
            .filter(|entry| {
                entry
                    .file_name()
                    .to_string_lossy()
                    .starts_with(&format!("{generation}-"))
            })
            .filter_map(|entry| std::fs::read_to_string(entry.path()).ok())
            .filter(|text| {
                text.lines()
                    .any(|line| line.contains("\"committed\"") && line.contains(&last))
            })
            .count();
        done >= world_size as usize
    }

    fn step(&mut self, generation: Generation, record: &mut Option<File>) {
        let commit = self.position.commit + 1;
        self.position = Position { commit, generation };
        let progress = DataProgress {
            step: commit,
            epoch: 0,
            cursor: commit,
        };
        write(
            record,
            &RecordLine::Computed {
                position: self.position,
                epoch: 0,
                cursor: commit - 1,
                samples: 8,
                parts: vec![],
            },
        );
        write(
            record,
            &RecordLine::Committed {
                position: self.position,
                kind: CommitKind::Apply,
                progress,
                loss: (1.0 / commit as f64).to_string(),
                chain: String::new(),
                seconds: 0.01,
                compute_seconds: 0.005,
                wait_seconds: 0.005,
            },
        );
        self.link.alive(Some(Progress {
            position: self.position,
            step: commit,
            activity: "training".into(),
            ..Progress::default()
        }));
    }

    fn open_record(&self, plan: &Plan, rank: u32, joined: &Joined) -> Option<File> {
        let directory = self.environment.record_directory.as_ref()?;
        let name = record_file_name(plan.generation, &self.environment.member);
        let mut file = File::create(directory.join(name)).ok();
        write(
            &mut file,
            &RecordLine::Opened {
                version: 1,
                job_uid: self.environment.job_uid.clone(),
                generation: plan.generation,
                member: self.environment.member.clone(),
                rank,
                world_size: plan.world_size,
                lineage: plan.lineage.clone(),
                epoch_samples: 1000,
                global_batch_size: joined.run_config.training.global_batch_size,
                micro_batch_size: joined.run_config.micro_batch_size,
                seed: joined.run_config.training.seed,
                origin: DataProgress::default(),
                length: joined.run_config.training.length,
                at: String::new(),
            },
        );
        file
    }
}

fn digest(position: Position) -> String {
    format!("state-{}", position.commit)
}

fn write(record: &mut Option<File>, line: &RecordLine) {
    if let Some(file) = record {
        let mut bytes = serde_json::to_vec(line).expect("a record line is JSON");
        bytes.push(b'\n');
        file.write_all(&bytes).expect("the record can be written");
    }
}
