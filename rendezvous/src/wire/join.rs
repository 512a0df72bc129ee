//! Joining, and the proof that a process has ended.

use super::{MemberReport, Secret};
use gradsync_formats::identity::{Generation, Incarnation, MemberId};
use gradsync_formats::run_config::RunConfig;
use serde::{Deserialize, Serialize};

/// A member presents itself, or says where it stands now. Authorised by the pod's own credential or by the
/// session token of an earlier join. Joining again with the same report changes nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinRequest {
    /// Who.
    pub member: MemberId,
    /// Where it stands.
    pub report: MemberReport,
    /// What became of the process that ran in its place before.
    #[serde(default)]
    pub restart: RestartReport,
}

/// How this process came to be started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RestartReport {
    /// How many processes of this slot and local rank its agent has started before.
    pub number: u32,
    /// The process in whose place it runs. The agent has reaped it before it started this one, so naming it
    /// proves its end.
    pub replaces: Option<Incarnation>,
    /// How that one ended.
    pub last: Option<ExitStatus>,
}

/// How a process ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExitStatus {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether the kernel killed it for want of memory.
    pub oom_killed: bool,
    /// The error that it gave last, in one line.
    pub error: Option<String>,
}

impl ExitStatus {
    /// Whether the end is charged to the user's restarts: an error code or a fatal signal, but neither
    /// success, nor the polite signals by which people and platforms stop a process (SIGHUP, SIGINT,
    /// SIGTERM), nor the codes by which the trainer says that nobody is to blame: its agent was gone (4),
    /// the service refused it (5), it stopped in order (6); `trainer/src/agent/exit_code.rs` has them all.
    #[must_use]
    pub fn is_charged(&self) -> bool {
        const POLITE: [i32; 3] = [1, 2, 15];
        const BLAMELESS: [i32; 4] = [0, 4, 5, 6];
        match (self.oom_killed, self.signal, self.code) {
            (true, _, _) => true,
            (_, Some(signal), _) => !POLITE.contains(&signal),
            (_, None, Some(code)) => !BLAMELESS.contains(&code) && !POLITE.contains(&(code - 128)),
            (_, None, None) => false,
        }
    }
}

impl std::fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.oom_killed, self.signal, self.code) {
            (true, _, _) => f.write_str("killed for want of memory")?,
            (_, Some(signal), _) => write!(f, "ended by signal {signal}")?,
            (_, None, Some(code)) => write!(f, "exited with code {code}")?,
            (_, None, None) => f.write_str("ended")?,
        }
        match &self.error {
            Some(error) => write!(f, ": {error}"),
            None => Ok(()),
        }
    }
}

/// Answer to a join.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinReply {
    /// Authorises everything that follows, for all ranks of the pod.
    pub session: Secret,
    /// The configuration in force. A member whose report named another one loads it and joins again.
    pub run_config: RunConfig,
    /// Its digest, to be given back in reports.
    pub run_config_digest: String,
    /// See [`super::MemberNews::floor`].
    pub floor: Generation,
}

/// The parent's word, agent or launcher, that it has reaped the process of `member`: the proof that
/// nothing of it is left running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExitReport {
    /// Whose process.
    pub member: MemberId,
    /// How it ended.
    pub status: ExitStatus,
}
