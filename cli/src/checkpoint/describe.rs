//! Checkpoints as rows of a table and as a page.

use gradsync_formats::checkpoint::{Group, Listing, Snapshot};
use gradsync_formats::identity::{JobUid, Position};
use gradsync_formats::lineage::Lineage;
use gradsync_formats::manifest::{DataProgress, Evaluated, Fingerprints};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// One checkpoint of a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The job.
    pub job_uid: JobUid,
    /// Folder, relative to the checkpoint directory.
    pub path: String,
    /// The state's position.
    pub position: Position,
    /// Whether it is whole and counts.
    pub usable: bool,
    /// Why not.
    pub reason: Option<String>,
    /// Where in the data; none where the manifest is of no use.
    pub progress: Option<DataProgress>,
    /// Bytes of its tensors.
    pub bytes: Option<u64>,
    /// When it was written.
    pub written_at: Option<String>,
    /// What an evaluation of exactly this state found.
    pub evaluation: Option<Evaluated>,
    /// Whether no other usable one has a lower evaluated loss, or the same and is older.
    pub best: bool,
}

/// The rows of a job's listing, newest first.
#[must_use]
pub fn rows(job: &JobUid, listing: &Listing) -> Vec<Row> {
    let evaluated = listing.whole.iter().rev().filter_map(|whole| {
        let found = whole.manifest.evaluation.as_ref()?;
        Some((whole.reference.position, found.loss))
    });
    let best = evaluated
        .min_by(|(_, one), (_, other)| one.total_cmp(other))
        .map(|(position, _)| position);
    let whole = listing.whole.iter().map(|w| Row {
        job_uid: job.clone(),
        path: w.reference.path.clone(),
        position: w.reference.position,
        usable: true,
        reason: None,
        progress: Some(w.manifest.progress),
        bytes: Some(w.manifest.parts.iter().map(|p| p.bytes).sum()),
        written_at: Some(w.manifest.written_at.clone()),
        evaluation: w.manifest.evaluation.clone(),
        best: best == Some(w.reference.position),
    });
    let passed = listing.passed_over.iter().map(|p| Row {
        job_uid: job.clone(),
        path: p.path.clone(),
        position: p.position,
        usable: false,
        reason: Some(p.reason.to_string()),
        progress: None,
        bytes: None,
        written_at: None,
        evaluation: None,
        best: false,
    });
    let mut rows: Vec<Row> = whole.chain(passed).collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.position));
    rows
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path)?;
        if let Some(p) = self.progress {
            write!(f, "  step {}, epoch {} + {} samples", p.step, p.epoch, p.cursor)?;
        }
        if let Some(bytes) = self.bytes {
            write!(f, ", {bytes} bytes")?;
        }
        if let Some(at) = &self.written_at {
            write!(f, ", written {at}")?;
        }
        if let Some(found) = &self.evaluation {
            let best = if self.best { " (best)" } else { "" };
            write!(f, ", evaluated loss {}{best}", found.loss)?;
        }
        match &self.reason {
            Some(reason) => write!(f, "  not usable: {reason}"),
            None => Ok(()),
        }
    }
}

/// What one checkpoint holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    /// Folder, relative to the checkpoint directory.
    pub path: String,
    /// The state's position.
    pub position: Position,
    /// Generations that led to it.
    pub lineage: Lineage,
    /// Where in the data.
    pub progress: DataProgress,
    /// Seed of the run.
    pub seed: u64,
    /// Micro-batch size of the grid.
    pub micro_batch_size: u64,
    /// Ranks that wrote it.
    pub world_size: u32,
    /// When it was written.
    pub written_at: String,
    /// Members that agreed on this state, bit for bit; 0 if a member saved it alone.
    pub agreed_by: u32,
    /// What an evaluation of exactly this state found.
    pub evaluation: Option<Evaluated>,
    /// Task, model and data.
    pub fingerprints: Fingerprints,
    /// Digest over the state.
    pub state_digest: String,
    /// Chain value.
    pub chain: String,
    /// Scalars of optimiser, schedule and loss scale.
    pub scalars: BTreeMap<String, serde_json::Value>,
    /// Tensors by file.
    pub tensors: BTreeMap<String, Vec<TensorRow>>,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorRow {
    /// Full name.
    pub name: String,
    /// Element type.
    pub dtype: String,
    /// Sizes.
    pub shape: Vec<usize>,
}

/// Describes the checkpoint in `path`, which was loaded with every hash checked.
#[must_use]
pub fn describe(path: &str, snapshot: &Snapshot) -> Description {
    let tensors = Group::ALL.into_iter().filter_map(|group| {
        let rows: Vec<TensorRow> = snapshot
            .group(group)
            .iter()
            .map(|t| TensorRow {
                name: t.name.clone(),
                dtype: t.dtype.to_string(),
                shape: t.shape.clone(),
            })
            .collect();
        (!rows.is_empty()).then(|| (group.file_name().to_owned(), rows))
    });
    Description {
        path: path.to_owned(),
        position: snapshot.position,
        lineage: snapshot.lineage.clone(),
        progress: snapshot.progress,
        seed: snapshot.seed,
        micro_batch_size: snapshot.micro_batch_size,
        world_size: snapshot.world_size,
        written_at: snapshot.written_at.clone(),
        agreed_by: snapshot.agreed_by,
        evaluation: snapshot.evaluation.clone(),
        fingerprints: snapshot.fingerprints.clone(),
        state_digest: snapshot.state_digest.clone(),
        chain: snapshot.chain.clone(),
        scalars: snapshot.scalars.clone(),
        tensors: tensors.collect(),
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = &self.progress;
        writeln!(f, "{}: whole, every hash matches", self.path)?;
        writeln!(f, "  state        {}", self.position)?;
        writeln!(
            f,
            "  progress     step {}, epoch {}, {} samples of it",
            p.step, p.epoch, p.cursor
        )?;
        writeln!(
            f,
            "  run          task {}, seed {}, micro-batch {}, written by {} ranks at {}",
            self.fingerprints.task, self.seed, self.micro_batch_size, self.world_size, self.written_at
        )?;
        let lineage: Vec<String> = self
            .lineage
            .0
            .iter()
            .map(|e| format!("{} from commit {}", e.generation, e.base.commit))
            .collect();
        writeln!(f, "  lineage      generations {}", lineage.join(", "))?;
        match self.agreed_by {
            0 => writeln!(f, "  agreement    none: saved by one rank alone")?,
            ranks => writeln!(f, "  agreement    {ranks} ranks, bit for bit")?,
        }
        if let Some(found) = &self.evaluation {
            write!(f, "  evaluation   loss {}", found.loss)?;
            for (name, value) in &found.metrics {
                write!(f, ", {name} {value}")?;
            }
            writeln!(f)?;
        }
        writeln!(f, "  layout       {}", self.fingerprints.parameter_layout)?;
        writeln!(f, "  data         {}", self.fingerprints.data)?;
        writeln!(f, "  digest       {}", self.state_digest)?;
        writeln!(f, "  chain        {}", self.chain)?;
        for (name, value) in &self.scalars {
            writeln!(f, "  scalar       {name} = {value}")?;
        }
        for (file, tensors) in &self.tensors {
            let elements: usize = tensors.iter().map(|t| t.shape.iter().product::<usize>()).sum();
            writeln!(f, "  {file}: {} tensors, {elements} elements", tensors.len())?;
            for t in tensors {
                writeln!(f, "    {} {} {:?}", t.name, t.dtype, t.shape)?;
            }
        }
        Ok(())
    }
}
