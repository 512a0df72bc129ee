//! What a measurement was taken on.

use std::fmt;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use rustix::net::sockopt;
use serde::Serialize;

/// The machine, as far as it explains numbers.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    cpu: String,
    /// Congestion control that the connections of a group get on loopback.
    congestion: String,
    /// Load averages before the measurement.
    load_before: String,
}

impl Machine {
    /// This machine, now. What cannot be found out is "unknown": it must not stop a measurement.
    pub(crate) fn here() -> Machine {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let load = read("/proc/loadavg");
        Machine {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            cpu: cpu_model(&read("/proc/cpuinfo")).unwrap_or("unknown").to_owned(),
            congestion: congestion().unwrap_or_else(|_| "unknown".to_owned()),
            load_before: load.split_whitespace().take(3).collect::<Vec<_>>().join(" "),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine {
            cores,
            cpu,
            congestion,
            load_before,
        } = self;
        write!(
            f,
            "{cores} cores ({cpu}), congestion control {congestion}, load before {load_before}"
        )
    }
}

/// The model's name in the text of `/proc/cpuinfo`.
fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    fields
        .find(|(name, _)| name.trim() == "model name")
        .map(|(_, value)| value.trim())
}

/// Asks for what a group asks for, and tells what was got.
fn congestion() -> std::io::Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    // Where it is not allowed, the groups keep the default, too.
    let _ = sockopt::set_tcp_congestion(&stream, "reno");
    Ok(sockopt::tcp_congestion(&stream)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_model_name_is_the_cpu() {
        let text = "processor\t: 0\nmodel name\t: A CPU @ 2 GHz\n\nprocessor\t: 1\nmodel name\t: B\n";
        assert_eq!(cpu_model(text), Some("A CPU @ 2 GHz"));
        assert_eq!(cpu_model("processor\t: 0\n"), None);
    }
}
