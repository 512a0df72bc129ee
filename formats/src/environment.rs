//! The environment variables by which launcher or operator, agent and rank hand each other what is local
//! to a process. What is equal for all members travels in RunConfig instead.

/// The job's UID.
pub const JOB_UID: &str = "GRADSYNC_JOB_UID";
/// The pod's slot: the index in its name.
pub const SLOT: &str = "GRADSYNC_SLOT";
/// The pod's UID; in `gradsync run` a UUID made for each agent that is started.
pub const POD_UID: &str = "GRADSYNC_POD_UID";
/// URL of the rendezvous service. For the agent only.
pub const SERVICE: &str = "GRADSYNC_SERVICE";
/// The secret with which a pod proves itself to the service in `gradsync run`. For the agent only: it
/// removes it from what its ranks inherit.
pub const POD_SECRET: &str = "GRADSYNC_POD_SECRET";
/// Ranks of this pod.
pub const DEVICES_PER_WORKER: &str = "GRADSYNC_DEVICES_PER_WORKER";
/// Which of the pod's ranks this process is. For the rank only.
pub const LOCAL_RANK: &str = "GRADSYNC_LOCAL_RANK";
/// The incarnation that the agent has given to this process. For the rank only.
pub const INCARNATION: &str = "GRADSYNC_INCARNATION";
/// How often this rank was started in this pod before. For the rank only.
pub const RESTART: &str = "GRADSYNC_RESTART";
/// Threads of one operator in one rank.
pub const INTRA_OP_THREADS: &str = "GRADSYNC_INTRA_OP_THREADS";
/// Where container paths lie on this machine: a [`crate::path_map::PathMap`] as JSON; absent: as they are.
pub const PATH_MAP: &str = "GRADSYNC_PATH_MAP";
/// Directory of the run record; absent: `records` beside the checkpoints.
pub const RECORD_DIRECTORY: &str = "GRADSYNC_RECORD_DIRECTORY";
/// Directory to which the agent appends each rank's output; absent: it is passed through.
pub const LOG_DIRECTORY: &str = "GRADSYNC_LOG_DIRECTORY";
/// Address that this pod's ranks listen on for their peers and publish.
pub const LISTEN_ADDRESS: &str = "GRADSYNC_LISTEN_ADDRESS";
/// Process id of the parent, checked against a parent that died before its child could ask to die with
/// it; absent: the parent is not watched (the agent as first process of a container).
pub const PARENT_PID: &str = "GRADSYNC_PARENT_PID";
/// Seconds that ranks get to stop in order after the agent was told to stop.
pub const GRACE_SECONDS: &str = "GRADSYNC_GRACE_SECONDS";
/// File to which the agent writes its last word, as JSON: Kubernetes' termination message.
pub const TERMINATION_MESSAGE: &str = "GRADSYNC_TERMINATION_MESSAGE";
/// File on which agent and rank hold a shared lock while they live, so that whoever gets it exclusively
/// knows that all have ended.
pub const ALIVE_LOCK: &str = "GRADSYNC_ALIVE_LOCK";
