//! What a rank process is told by its agent: read once at start from the environment.

use gradsync_formats::environment as names;
use gradsync_formats::identity::{Incarnation, JobUid, MemberId, PodUid};
use gradsync_formats::path_map::PathMap;
use std::net::IpAddr;
use std::path::PathBuf;

/// What is local to one rank process.
#[derive(Clone, Debug, PartialEq)]
pub struct RankEnvironment {
    /// The job.
    pub job_uid: JobUid,
    /// This process. Its agent chose the incarnation.
    pub member: MemberId,
    /// How often this rank was started in this pod before.
    pub restart: u32,
    /// Ranks of this pod.
    pub devices_per_worker: u32,
    /// Threads of one operator.
    pub intra_op_threads: u32,
    /// Where container paths lie.
    pub paths: PathMap,
    /// Directory of the run record; absent: beside the checkpoints.
    pub record_directory: Option<PathBuf>,
    /// Address to listen on for peers.
    pub listen_address: IpAddr,
    /// File to hold a shared lock on while the process lives.
    pub alive_lock: Option<PathBuf>,
    /// The agent's process id, where the process is to end with it.
    pub parent_pid: Option<i32>,
}

/// A variable that is absent or malformed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// Not set.
    #[error("read {0}: it is not set; a rank is started by its agent (`agent`), not by hand")]
    Absent(&'static str),
    /// Not what it should be.
    #[error("read {name}={value:?}: {problem}")]
    Malformed {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is wrong.
        problem: String,
    },
}

impl RankEnvironment {
    /// Reads the environment through `get` (in a program: `|name| std::env::var(name).ok()`).
    ///
    /// # Errors
    /// When a variable is absent or malformed, naming it.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<RankEnvironment, EnvironmentError> {
        let required = |name| get(name).ok_or(EnvironmentError::Absent(name));
        Ok(RankEnvironment {
            job_uid: JobUid(required(names::JOB_UID)?),
            member: MemberId {
                slot: number(names::SLOT, &required(names::SLOT)?)?,
                local_rank: number(names::LOCAL_RANK, &required(names::LOCAL_RANK)?)?,
                pod: PodUid(required(names::POD_UID)?),
                incarnation: incarnation(names::INCARNATION, &required(names::INCARNATION)?)?,
            },
            restart: optional(names::RESTART, &get, number)?.unwrap_or(0),
            devices_per_worker: optional(names::DEVICES_PER_WORKER, &get, number)?.unwrap_or(1),
            intra_op_threads: optional(names::INTRA_OP_THREADS, &get, number)?.unwrap_or(1),
            paths: optional(names::PATH_MAP, &get, path_map)?.unwrap_or_default(),
            record_directory: get(names::RECORD_DIRECTORY).map(PathBuf::from),
            listen_address: optional(names::LISTEN_ADDRESS, &get, number)?
                .unwrap_or(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)),
            alive_lock: get(names::ALIVE_LOCK).map(PathBuf::from),
            parent_pid: optional(names::PARENT_PID, &get, number)?,
        })
    }
}

fn optional<T>(
    name: &'static str,
    get: &impl Fn(&str) -> Option<String>,
    parse: impl Fn(&'static str, &str) -> Result<T, EnvironmentError>,
) -> Result<Option<T>, EnvironmentError> {
    get(name).map(|text| parse(name, &text)).transpose()
}

fn number<T: std::str::FromStr>(name: &'static str, text: &str) -> Result<T, EnvironmentError>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|e: T::Err| EnvironmentError::Malformed {
        name,
        value: text.to_owned(),
        problem: e.to_string(),
    })
}

fn incarnation(name: &'static str, text: &str) -> Result<Incarnation, EnvironmentError> {
    number(name, text).map(Incarnation)
}

fn path_map(name: &'static str, text: &str) -> Result<PathMap, EnvironmentError> {
    serde_json::from_str(text).map_err(|e| EnvironmentError::Malformed {
        name,
        value: text.to_owned(),
        problem: e.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn variables() -> BTreeMap<&'static str, String> {
        [
            (names::JOB_UID, "uid"),
            (names::SLOT, "3"),
            (names::LOCAL_RANK, "1"),
            (names::POD_UID, "pod"),
            (names::INCARNATION, "67e5504410b1426f9247bb680e5fe0c8"),
            (names::PATH_MAP, r#"[{"mount":"/data","target":"/home/d"}]"#),
            (names::LISTEN_ADDRESS, "::1"),
        ]
        .map(|(k, v)| (k, v.to_owned()))
        .into()
    }

    fn read(variables: &BTreeMap<&'static str, String>) -> Result<RankEnvironment, EnvironmentError> {
        RankEnvironment::read(|name| variables.get(name).cloned())
    }

    #[test]
    fn a_rank_knows_its_place_and_defaults_are_for_one_rank() {
        let seen = read(&variables()).unwrap();
        assert_eq!((seen.member.slot, seen.member.local_rank), (3, 1));
        assert_eq!(
            (seen.devices_per_worker, seen.intra_op_threads, seen.restart),
            (1, 1, 0)
        );
        assert_eq!(seen.paths.apply("/data/x".as_ref()), PathBuf::from("/home/d/x"));
        assert!(seen.listen_address.is_ipv6());
    }

    #[test]
    fn absent_and_malformed_variables_are_named() {
        let mut without = variables();
        without.remove(names::SLOT);
        assert_eq!(read(&without).unwrap_err(), EnvironmentError::Absent(names::SLOT));
        let mut wrong = variables();
        wrong.insert(names::SLOT, "two".into());
        let text = read(&wrong).unwrap_err().to_string();
        assert!(text.contains("GRADSYNC_SLOT=\"two\""), "{text}");
    }
}
