//! A start from beginning to end: the rendezvous service in this process, the launcher's loop, and what is
//! left when all workers have ended.

use super::agents::AgentProgram;
use super::fallbacks::{self, Fallbacks, Look};
use super::finish::{self, Ended};
use super::history::{History, MemberDigest, with_service};
use super::kept;
use super::launcher::Launcher;
use super::live::Live;
use super::logs;
use super::prepare::Prepared;
use super::proof;
use super::signals::Signals;
use super::summary::{State, Summary};
use super::verdict::{EndFacts, FailureFacts, is_bad_input, verdict};
use super::view::View;
use crate::terminal::{put, with_causes};
use anyhow::Context as _;
use gradsync_formats::lineage::Lineage;
use gradsync_formats::run_config::RunConfig;
use gradsync_rendezvous::membership::{Saved, Settings, SizeBounds};
use gradsync_rendezvous::server::{
    self, EndProof, LocalAuthenticator, PersistError, ServiceHandle, ServiceOptions, ServicePhase,
    ServiceSnapshot,
};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The state that the summary tells.
    pub state: State,
    /// Whether it failed before the first step by something that the user can mend.
    pub bad_input: bool,
    /// Whether summary, metrics and curve could be written.
    pub written: bool,
}

/// What concerns this start alone.
#[derive(Clone, Debug)]
pub struct Options {
    /// Lines instead of bars.
    pub plain: bool,
    /// What workers get to stop in order.
    pub grace: Duration,
    /// Address of the rendezvous service.
    pub listen: SocketAddr,
}

/// Trains; returns when all processes have ended and the output is written.
///
/// # Errors
/// When training could not be started; an output directory that was made for it is gone again.
pub fn launch(prepared: Prepared, options: &Options) -> anyhow::Result<Outcome> {
    // All on one thread: the kernel ends agents with the thread that started them, and this one lives as
    // long as the process.
    let begun = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")
        .and_then(|runtime| {
            let begun = runtime.block_on(begin(&prepared, options))?;
            Ok((runtime, begun))
        });
    match begun {
        Ok((runtime, begun)) => Ok(runtime.block_on(work(&prepared, begun))),
        Err(error) => {
            prepared.output.abandon();
            Err(error)
        }
    }
}

/// What there is before the first worker.
struct Begun {
    started: Instant,
    view: View,
    signals: Signals,
    launcher: Launcher,
}

/// Everything that can keep training from starting.
async fn begin(prepared: &Prepared, options: &Options) -> anyhow::Result<Begun> {
    let started = Instant::now();
    logs::log_to(&prepared.output.join("logs/launcher.log"))?;
    let view = View::new(options.plain);
    proof::wait_for_earlier_workers(&prepared.output).await?;
    let service = start_service(prepared, options).await?;
    for directory in &prepared.volumes.directories {
        super::output::make(directory)?;
    }
    let live = Live::new(prepared, started)?;
    // Whoever looks while this start goes on must not take the earlier one's end for its own.
    prepared.output.remove("summary.json")?;
    let program = program(prepared, &service, options);
    let checkpoints = checkpoint_directory(prepared);
    let job = prepared.persist.job_uid().clone();
    let look: Look = Arc::new(move |folder: &str| kept::why_unusable(checkpoints.as_ref()?, &job, folder));
    let damaged = match live.checkpoint() {
        Some(folder) => fallbacks::damaged(&look, folder).await,
        None => None,
    };
    // Signals count from here on; before, they end this process, which has no children yet.
    let signals = Signals::watch()?;
    let launcher = Launcher::new(
        program,
        live,
        prepared.workers,
        service,
        options.grace,
        Fallbacks::new(look, damaged),
    );
    for note in &prepared.notes {
        view.say(note);
    }
    Ok(Begun {
        started,
        view,
        signals,
        launcher,
    })
}

async fn work(prepared: &Prepared, begun: Begun) -> Outcome {
    let Begun {
        started,
        mut view,
        mut signals,
        mut launcher,
    } = begun;
    view.say(&format!(
        "training {} with {} in {}",
        prepared.name,
        workers(prepared.workers),
        prepared.output.path().display()
    ));
    launcher.train(&mut view, &mut signals).await;
    view.finish();
    let service = launcher.service.snapshot();
    let (state, error) = judge(&launcher, &service);
    let bad_input = state == State::Failed
        && is_bad_input(&FailureFacts {
            mistake: launcher.mistake,
            restarts: (
                service.restarts.charged.len(),
                prepared.run_config.failure_policy.max_restarts,
            ),
            trained: launcher.live.commit() > 0,
        });
    let log = failure_log(prepared, &launcher, &service).filter(|_| state == State::Failed);
    launcher.service.shut_down().await;
    let fallbacks = launcher.fallbacks.told();
    let (history, setup_seconds) = launcher.live.into_history();
    let ended = Ended {
        name: prepared.name.clone(),
        job_uid: prepared.persist.job_uid().clone(),
        state,
        error,
        wall_seconds: started.elapsed().as_secs_f64(),
        setup_seconds,
        restarts: u32::try_from(service.restarts.charged.len()).unwrap_or(u32::MAX),
        digests: final_digests(&service.done, &history),
        recoveries: with_service(history.recoveries(), &service.generations, &service.recoveries),
        fallbacks,
        checkpoints: checkpoint_directory(prepared),
    };
    let mut summary = finish::summarise(&ended, &history);
    let lineage = lineage_in_force(history.lineage(), prepared.persist.saved());
    finish::add_kept(&mut summary, &ended, &history, &lineage, |kept| {
        kept::command(
            kept,
            prepared.output.path(),
            &prepared.volumes.map,
            &prepared.again,
        )
    });
    let written = report(prepared, &summary, &history);
    if let Some(log) = log {
        put(&logs::tail(&log));
    }
    Outcome {
        state,
        bad_input,
        written,
    }
}

/// The lineage that a resume goes on with: the membership's, which knows of a generation before a record of it is
/// written. The records' one where the membership cannot be read.
fn lineage_in_force(recorded: &Lineage, saved: Result<Saved, PersistError>) -> Lineage {
    let formed = saved
        .inspect_err(|error| tracing::warn!(%error, "the lineage is taken from the records"))
        .ok()
        .and_then(|saved| saved.formed);
    match formed {
        Some(formed) if formed.generation >= recorded.newest() => formed.lineage,
        _ => recorded.clone(),
    }
}

fn judge(launcher: &Launcher, service: &ServiceSnapshot) -> (State, Option<String>) {
    // A failure that could not be persisted, on a full disk for example, is one all the same.
    let failed = (service.phase == ServicePhase::Failed).then(|| {
        let text = service.reason.as_str();
        text.strip_prefix("failed: ").unwrap_or(text)
    });
    verdict(&EndFacts {
        ending: service.ending.as_ref(),
        failed,
        given_up: launcher.given_up.as_deref(),
        stopping: launcher.is_stopping(),
        unsaved: service.unsaved.as_deref(),
        trouble: launcher.trouble.as_deref(),
    })
}

/// Tells people, then writes the files; says whether that could be done.
fn report(prepared: &Prepared, summary: &Summary, history: &History) -> bool {
    put(&summary.for_people(prepared.output.path()));
    match finish::write(&prepared.output, summary, history) {
        Ok(()) => true,
        Err(error) => {
            put(&format!(
                "error: {}; the run record in {} has all that was trained\n",
                with_causes(&error.into()),
                prepared.output.join("records").display()
            ));
            false
        }
    }
}

/// The log that tells most of a failure: of the last rank that was charged, or its agent's where it never
/// came to a rank.
fn failure_log(prepared: &Prepared, launcher: &Launcher, service: &ServiceSnapshot) -> Option<PathBuf> {
    if let Some(slot) = launcher.stranger {
        return Some(launcher.program.log_file(slot));
    }
    let id = &service.restarts.charged.last()?.member;
    let rank = prepared
        .output
        .join(&format!("logs/worker-{}-{}.log", id.slot, id.local_rank));
    Some(if rank.exists() {
        rank
    } else {
        launcher.program.log_file(id.slot)
    })
}

fn workers(count: u32) -> String {
    if count == 1 {
        "1 worker".to_owned()
    } else {
        format!("{count} workers")
    }
}

fn checkpoint_directory(prepared: &Prepared) -> Option<PathBuf> {
    let checkpoint = prepared.run_config.checkpoint.as_ref()?;
    Some(prepared.volumes.map.apply(checkpoint.directory.as_ref()))
}

/// The ranks' own reports; without them what the records say.
fn final_digests(
    done: &std::collections::BTreeMap<u32, gradsync_rendezvous::wire::DoneReport>,
    history: &History,
) -> Vec<MemberDigest> {
    let of_record = history.digests();
    done.iter()
        .map(|(rank, report)| MemberDigest {
            rank: *rank,
            slot: of_record
                .iter()
                .find(|d| d.rank == *rank)
                .map_or(*rank, |d| d.slot),
            digest: report.state_digest.clone(),
        })
        .collect()
}

async fn start_service(
    prepared: &Prepared,
    options: &Options,
) -> anyhow::Result<ServiceHandle<LocalAuthenticator>> {
    let config: &RunConfig = &prepared.run_config;
    let settings = Settings::new(
        prepared.persist.job_uid().clone(),
        SizeBounds::fixed(prepared.workers),
        config.digest(),
    );
    let service = server::start(
        options.listen,
        ServiceOptions::new(settings, config.clone()),
        prepared.persist.clone(),
        LocalAuthenticator::default(),
    )
    .await?;
    // The workers of an earlier start have ended: their locks are free. Nothing waits for them.
    let earlier = prepared.saved.formed.iter().flat_map(|formed| &formed.members);
    for member in earlier {
        service
            .pod_ended(member.pod.clone(), member.slot, EndProof::default())
            .await;
    }
    Ok(service)
}

fn program(
    prepared: &Prepared,
    service: &ServiceHandle<LocalAuthenticator>,
    options: &Options,
) -> AgentProgram {
    AgentProgram {
        trainer: prepared.trainer.clone(),
        job: prepared.persist.job_uid().clone(),
        service: service.url(),
        devices_per_worker: prepared.run_config.workers.devices_per_worker,
        intra_op_threads: prepared.run_config.workers.intra_op_threads,
        paths: prepared.volumes.map.clone(),
        logs: prepared.output.join("logs"),
        records: prepared.output.join("records"),
        alive: proof::lock_file(&prepared.output),
        grace: options.grace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradsync_formats::identity::{Generation, Position};
    use gradsync_rendezvous::membership::Formed;
    use gradsync_rendezvous::wire::{Base, BaseSource};

    #[test]
    fn what_a_resume_goes_on_with_is_the_memberships_lineage_also_before_a_record_tells_it() {
        let recorded = Lineage::default().extended(Generation(1), Position::INITIAL);
        let base = Base {
            position: Position {
                commit: 50,
                generation: Generation(1),
            },
            source: BaseSource::Initial,
            state_digest: None,
            chain: None,
        };
        let lineage = recorded.extended(Generation(2), base.position);
        let formed = |generation| Saved {
            formed: Some(Formed {
                generation: Generation(generation),
                plan_digest: "d".into(),
                members: vec![],
                root: base.clone(),
                base: base.clone(),
                lineage: lineage.clone(),
                fingerprints: None,
                checkpoint: None,
            }),
            ..Saved::default()
        };
        assert_eq!(lineage_in_force(&recorded, Ok(formed(2))), lineage);
        assert_eq!(lineage_in_force(&recorded, Err(PersistError::Closing)), recorded);
        assert_eq!(lineage_in_force(&recorded, Ok(Saved::default())), recorded);
        let newer = lineage.extended(Generation(3), base.position);
        assert_eq!(lineage_in_force(&newer, Ok(formed(2))), newer);
    }
}
