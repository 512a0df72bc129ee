//! Medians, spread and the table of the all-reduce benchmark.

use std::fmt;

use serde::Serialize;

use super::all_reduce::Measured;
use super::quartiles::Quartiles;

/// Both measurements of one round at one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) ours: Measured,
    pub(crate) raw: Measured,
}

/// All rounds at one size.
#[derive(Debug)]
pub(crate) struct Measurement {
    pub(crate) ranks: usize,
    pub(crate) bytes: usize,
    pub(crate) samples: Vec<Sample>,
}

impl Measurement {
    pub(crate) fn new(ranks: usize, bytes: usize) -> Measurement {
        Measurement {
            ranks,
            bytes,
            samples: Vec::new(),
        }
    }

    fn of(&self, value: impl Fn(&Sample) -> f64) -> Quartiles {
        Quartiles::of(self.samples.iter().map(value).collect())
    }

    fn row(&self) -> Row {
        let megabytes = self.bytes as f64 / 1e6;
        Row {
            ranks: self.ranks,
            bytes: self.bytes,
            all_reduce_us: self.of(|sample| sample.ours.seconds * 1e6),
            raw_us: self.of(|sample| sample.raw.seconds * 1e6),
            all_reduce_gb_per_s: self.of(|sample| megabytes / 1e3 / sample.ours.seconds),
            fraction_of_limit: self.of(|sample| sample.raw.seconds / sample.ours.seconds),
            all_reduce_core_us_per_mb: self.of(|sample| sample.ours.cpu_seconds * 1e6 / megabytes),
            raw_core_us_per_mb: self.of(|sample| sample.raw.cpu_seconds * 1e6 / megabytes),
        }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    ranks: usize,
    bytes: usize,
    all_reduce_us: Quartiles,
    raw_us: Quartiles,
    /// Bytes of the buffer per time.
    all_reduce_gb_per_s: Quartiles,
    /// Raw time by our time, round by round.
    fraction_of_limit: Quartiles,
    /// Of all ranks together, per megabyte of the buffer.
    all_reduce_core_us_per_mb: Quartiles,
    raw_core_us_per_mb: Quartiles,
}

/// All measurements of a run.
pub(crate) struct Report {
    rounds: usize,
    cores: usize,
    load_before: String,
    pub(crate) congestion: String,
    pub(crate) measurements: Vec<Measurement>,
}

impl Report {
    pub(crate) fn new(rounds: usize) -> Report {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Report {
            rounds,
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            load_before: load.split_whitespace().take(3).collect::<Vec<_>>().join(" "),
            congestion: String::new(),
            measurements: Vec::new(),
        }
    }
}

impl Serialize for Report {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut report = serializer.serialize_struct("Report", 5)?;
        report.serialize_field("rounds", &self.rounds)?;
        report.serialize_field("cores", &self.cores)?;
        report.serialize_field("load_before", &self.load_before)?;
        report.serialize_field("congestion", &self.congestion)?;
        let rows: Vec<Row> = self.measurements.iter().map(Measurement::row).collect();
        report.serialize_field("sizes", &rows)?;
        report.end()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            rounds,
            cores,
            load_before,
            congestion,
            measurements,
        } = self;
        writeln!(
            f,
            "f32 sum over loopback TCP, {cores} cores, congestion control {congestion}, load before \
             {load_before}; medians of {rounds} interleaved rounds, [quartiles]; raw = bare sockets that \
             carry the same 2(N-1)/N bytes both ways"
        )?;
        if measurements.iter().any(|measurement| measurement.ranks > *cores) {
            writeln!(f, "more ranks than cores: oversubscribed, compare with raw only")?;
        }
        writeln!(
            f,
            "\n{:>5} {:>9} {:>26} {:>26} {:>8} {:>18} {:>14} {:>14}",
            "ranks", "size", "all-reduce us", "raw us", "GB/s", "of limit", "core-us/MB", "raw core-us/MB"
        )?;
        for row in measurements.iter().map(Measurement::row) {
            let time = |q: Quartiles| format!("{:.0} [{:.0}-{:.0}]", q.median, q.lower, q.upper);
            let q = row.fraction_of_limit;
            let fraction = format!("{:.2} [{:.2}-{:.2}]", q.median, q.lower, q.upper);
            writeln!(
                f,
                "{:>5} {:>9} {:>26} {:>26} {:>8.2} {:>18} {:>14.0} {:>14.0}",
                row.ranks,
                size(row.bytes),
                time(row.all_reduce_us),
                time(row.raw_us),
                row.all_reduce_gb_per_s.median,
                fraction,
                row.all_reduce_core_us_per_mb.median,
                row.raw_core_us_per_mb.median
            )?;
        }
        Ok(())
    }
}

fn size(bytes: usize) -> String {
    if bytes < 1 << 20 {
        format!("{} KiB", bytes >> 10)
    } else {
        format!("{} MiB", bytes >> 20)
    }
}
