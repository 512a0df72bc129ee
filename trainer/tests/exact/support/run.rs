//! Runs all ranks of a group to their end, and reads what they left behind.

use super::store::{Told, ToldStore};
use super::{LostJoins, MemoryGroup, Rendezvous};
use gradsync_collective::{Communicator, in_process};
use gradsync_formats::audit::{Given, RecordFile, Verdict};
use gradsync_formats::record::RecordLine;
use gradsync_formats::run_config::RunConfig;
use gradsync_formats::store::{MemoryStore, Store};
use gradsync_rendezvous::membership::Saved;
use gradsync_rendezvous::wire::{Plan, PlanHead};
use gradsync_trainer::clock::SystemClock;
use gradsync_trainer::group::Group as _;
use gradsync_trainer::record::to_disk;
use gradsync_trainer::step::Fatal;
use gradsync_trainer::task::{PathMap, Task};
use gradsync_trainer::train::{Observer, Patience, Summary, Surroundings, train};
use gradsync_trainer::transport::{Agreement, ConnectFailure, TcpTransport, Transport};
use std::collections::BTreeMap;
use std::io::BufReader;
use std::net::{IpAddr, Ipv4Addr};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// In-process communicators, made when the first rank of a generation connects.
#[derive(Default)]
struct Hub(Mutex<Generations>);

/// By generation, each rank's end until it is taken.
type Generations = BTreeMap<u64, Vec<Option<Arc<dyn Communicator>>>>;

/// Something that a test puts between the engine and its communicator.
pub type Wrap = Arc<dyn Fn(Arc<dyn Communicator>) -> Arc<dyn Communicator> + Send + Sync>;

struct InProcess(Arc<Hub>);

impl Transport for InProcess {
    fn listen(&mut self) -> Result<Vec<String>, ConnectFailure> {
        Ok(vec!["in-process:0".into()])
    }

    fn connect(
        &mut self,
        plan: &Plan,
        head: &PlanHead,
        _: &Agreement,
        _: Duration,
    ) -> Result<Arc<dyn Communicator>, ConnectFailure> {
        let mut generations = self.0.0.lock().unwrap();
        let members = generations.entry(plan.generation.0).or_insert_with(|| {
            in_process::group(plan.world_size as usize, &plan.job_uid.0, plan.generation.0)
                .into_iter()
                .map(Some)
                .collect()
        });
        Ok(members[head.rank as usize]
            .take()
            .expect("each rank connects once"))
    }
}

/// Told of a connection before it is made; an error is what comes of it.
pub type Connecting = Arc<dyn Fn(&Plan, &PlanHead) -> Result<(), ConnectFailure> + Send + Sync>;

/// Either transport, with what the test puts around it.
struct Wrapped {
    inner: Box<dyn Transport>,
    wrap: Option<Wrap>,
    connecting: Option<Connecting>,
}

impl Transport for Wrapped {
    fn listen(&mut self) -> Result<Vec<String>, ConnectFailure> {
        self.inner.listen()
    }

    fn connect(
        &mut self,
        plan: &Plan,
        head: &PlanHead,
        agreement: &Agreement,
        within: Duration,
    ) -> Result<Arc<dyn Communicator>, ConnectFailure> {
        if let Some(connecting) = &self.connecting {
            connecting(plan, head)?;
        }
        let communicator = self.inner.connect(plan, head, agreement, within)?;
        Ok(match &self.wrap {
            Some(wrap) => wrap(communicator),
            None => communicator,
        })
    }
}

/// Which transport a group uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Memory,
    Tcp,
}

/// What a rank that was killed leaves behind.
pub struct Killed;

/// Ends the rank of this thread as a kill does: nothing of it runs on, and its connections close. The
/// rendezvous is told that the process was reaped, and a fresh one takes its place.
pub fn die() -> ! {
    resume_unwind(Box::new(Killed))
}

/// What ranks log, together.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

const OPERATION: Duration = Duration::from_secs(60);

/// Told of a file that is brought to the disk.
pub type Synced = Arc<dyn Fn(&Path) + Send + Sync>;

/// How a test runs a group.
pub struct Run<'a> {
    pub config: RunConfig,
    pub world: u32,
    pub wire: Wire,
    /// The tasks of the rank in a slot.
    pub tasks: &'a (dyn Fn(u32) -> Vec<Box<dyn Task>> + Sync),
    pub store: Arc<MemoryStore>,
    pub records: Option<PathBuf>,
    pub saved: Saved,
    pub wrap: Option<Wrap>,
    pub connecting: Option<Connecting>,
    /// Told of what ranks ask of the store.
    pub told: Option<Told>,
    /// How long a rank without a state waits for a directory that is away.
    pub directory: Duration,
    /// The share of the parts that each rank takes instead of its own.
    pub shares: Option<Vec<u32>>,
    pub log: Log,
    /// Told of every record that is brought to the disk, just before it is.
    pub synced: Option<Synced>,
    /// Joins of each rank that are not answered.
    pub lost_joins: Option<LostJoins>,
    /// Whether a fresh rank takes the place of one that was killed.
    pub restart: bool,
}

impl<'a> Run<'a> {
    pub fn new(
        config: RunConfig,
        world: u32,
        tasks: &'a (dyn Fn(u32) -> Vec<Box<dyn Task>> + Sync),
    ) -> Run<'a> {
        Run {
            config,
            world,
            wire: Wire::Memory,
            tasks,
            store: Arc::new(MemoryStore::new()),
            records: None,
            saved: Saved::default(),
            wrap: None,
            connecting: None,
            told: None,
            directory: OPERATION,
            shares: None,
            log: Log::default(),
            synced: None,
            lost_joins: None,
            restart: true,
        }
    }

    /// Runs all ranks to their end. `observe` makes the observer of the rank in a slot, again for each that
    /// takes the place of a killed one; the last is returned.
    pub fn go<O: Observer>(
        self,
        observe: impl Fn(u32, &Arc<Rendezvous>) -> O + Sync,
    ) -> (Vec<Result<Summary, Fatal>>, Vec<O>, Arc<Rendezvous>) {
        let service = Rendezvous::new(&self.config, self.world, self.saved.clone());
        let hub = Arc::new(Hub::default());
        let (run, service_ref, hub, observe) = (&self, &service, &hub, &observe);
        let ended: Vec<_> = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..self.world)
                .map(|slot| scope.spawn(move || run.lives(slot, service_ref, hub, observe)))
                .collect();
            ranks
                .into_iter()
                .map(|rank| rank.join().unwrap_or_else(|panic| resume_unwind(panic)))
                .collect()
        });
        let (results, observers) = ended.into_iter().unzip();
        (results, observers, service)
    }

    /// The rank in a slot, and those that take its place.
    fn lives<O: Observer>(
        &self,
        slot: u32,
        service: &Arc<Rendezvous>,
        hub: &Arc<Hub>,
        observe: &impl Fn(u32, &Arc<Rendezvous>) -> O,
    ) -> (Result<Summary, Fatal>, O) {
        let log = self.log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || log.clone())
            .finish();
        let _logging = tracing::subscriber::set_default(subscriber);
        loop {
            let mut observer = observe(slot, service);
            let mut group = MemoryGroup::new(service, slot, self.shares.clone(), self.lost_joins);
            let member = group.member().clone();
            let life = catch_unwind(AssertUnwindSafe(|| {
                self.rank(slot, &mut group, hub, &mut observer)
            }));
            match life {
                Ok(result) => return (result, observer),
                Err(panic) if panic.is::<Killed>() => service.exited(&member),
                Err(panic) => resume_unwind(panic),
            }
            if !self.restart {
                return (Err(Fatal::process("killed")), observer);
            }
        }
    }

    fn rank(
        &self,
        slot: u32,
        group: &mut MemoryGroup,
        hub: &Arc<Hub>,
        observer: &mut dyn Observer,
    ) -> Result<Summary, Fatal> {
        let inner: Box<dyn Transport> = match self.wire {
            Wire::Memory => Box::new(InProcess(Arc::clone(hub))),
            Wire::Tcp => Box::new(TcpTransport::new(IpAddr::V4(Ipv4Addr::LOCALHOST), OPERATION)),
        };
        let mut transport = Wrapped {
            inner,
            wrap: self.wrap.clone(),
            connecting: self.connecting.clone(),
        };
        let tasks = (self.tasks)(slot);
        let inner = Arc::clone(&self.store);
        let store: Arc<dyn Store> = match self.told.clone() {
            Some(told) => Arc::new(ToldStore { inner, told }),
            None => inner,
        };
        train(
            &tasks,
            &mut Surroundings {
                group,
                transport: &mut transport,
                clock: &SystemClock,
                open_store: &move |_| Ok(Arc::clone(&store)),
                observer,
                paths: PathMap::default(),
                records: self.records.clone(),
                to_disk: &|path, file| {
                    if let Some(synced) = &self.synced {
                        synced(path);
                    }
                    to_disk(path, file)
                },
                patience: Patience {
                    operation: OPERATION,
                    answer: Duration::from_millis(200),
                    join_pause: Duration::from_millis(20),
                    directory: self.directory,
                    plan: OPERATION,
                    reread: Duration::ZERO,
                    ..Patience::default()
                },
            },
        )
    }
}

/// Another store with the objects whose keys `wanted` picks.
pub fn copy_store(store: &MemoryStore, wanted: impl Fn(&str) -> bool) -> Arc<MemoryStore> {
    let copy = MemoryStore::new();
    for key in store.list("").unwrap().iter().filter(|key| wanted(key)) {
        copy.put(key, &store.get(key).unwrap()).unwrap();
    }
    Arc::new(copy)
}

/// Audits the records in `directory` of a run that says it is complete.
pub fn audit(directory: &Path) -> Verdict {
    let files: Vec<RecordFile<'_>> = record_files(directory)
        .into_iter()
        .map(|path| RecordFile {
            name: path.file_name().unwrap().to_string_lossy().into_owned(),
            open: Box::new(move || Ok(Box::new(BufReader::new(std::fs::File::open(&path)?)))),
        })
        .collect();
    let given = Given {
        complete: true,
        ..Given::default()
    };
    gradsync_formats::audit::audit(&files, &given).unwrap()
}

/// Why members came into a generation anew, one reason for each member and generation.
pub fn recoveries(directory: &Path) -> Vec<String> {
    let lines = record_files(directory)
        .into_iter()
        .flat_map(|path| -> Vec<RecordLine> {
            let text = std::fs::read_to_string(path).unwrap();
            text.lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect()
        });
    lines
        .filter_map(|line| match line {
            RecordLine::Recovered { reason, .. } => Some(reason),
            _ => None,
        })
        .collect()
}

fn record_files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(
        files
            .iter()
            .all(|file| file.extension().is_some_and(|e| e == "jsonl"))
    );
    files
}
