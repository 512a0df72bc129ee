//! `cargo xtask broken-rules`: breaks one rule after the other in a copy of the sources and says whether the test that
//! claims it fails, by its own assertion. A test that cannot fail proves nothing.

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Arguments of `cargo xtask broken-rules`.
#[derive(Debug, clap::Args)]
pub(crate) struct BrokenRulesArgs {
    /// Only these rules, such as I4,G2.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// The list, below the root.
const LIST: &str = "tests/broken-rules.yaml";
/// Longest time for one build and one test: a broken rule must be seen, not waited for.
const DEADLINE: Duration = Duration::from_secs(900);
/// Lines of output shown of a test that did not do what is expected.
const SHOWN: usize = 40;

/// Characters of each that are shown.
const WIDTH: usize = 400;

/// One rule, how it is broken, and the test that must see it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Broken {
    rule: String,
    broken: String,
    file: PathBuf,
    find: String,
    replace: String,
    /// Package, target, name.
    test: (String, String, String),
    says: String,
}

/// How it went.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The test failed and said so.
    Seen,
    /// The test failed, but not by its own assertion.
    SaidOtherwise,
    /// The test passed.
    Missed,
    /// The test did not run: the broken code does not build, or there is no such test.
    NotRun,
    /// The test hung.
    Hung,
}

/// Plays the list.
pub(crate) fn run(root: &Path, args: &BrokenRulesArgs) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(root.join(LIST)).with_context(|| format!("read {LIST}"))?;
    let list: Vec<Broken> = serde_saphyr::from_str(&text).with_context(|| format!("read {LIST}"))?;
    for only in &args.only {
        ensure!(
            list.iter().any(|entry| entry.rule == *only),
            "rule {only} is not in {LIST}"
        );
    }
    let place = root.join("target/broken-rules");
    let copy = place.join("source");
    copy_sources(root, &copy)?;
    share_dependencies(root, &place)?;
    let list: Vec<Broken> = list
        .into_iter()
        .filter(|entry| args.only.is_empty() || args.only.contains(&entry.rule))
        .collect();
    build(root, &place, &list)?;
    let mut missed = 0;
    for entry in &list {
        let began = Instant::now();
        let (verdict, output) = play(root, &place, entry)?;
        println!(
            "{:<4} {:<9} {:>4} s  {}\n{:25}{}",
            entry.rule,
            match verdict {
                Verdict::Seen => "seen",
                Verdict::SaidOtherwise => "OTHERWISE",
                Verdict::Missed => "MISSED",
                Verdict::NotRun => "NOT RUN",
                Verdict::Hung => "HUNG",
            },
            began.elapsed().as_secs(),
            entry.broken,
            "",
            entry.test.2,
        );
        if verdict != Verdict::Seen {
            missed += 1;
            let from = output.len().saturating_sub(SHOWN);
            for line in &output[from..] {
                println!("{}", line.chars().take(WIDTH).collect::<String>());
            }
        }
    }
    if missed > 0 {
        bail!("{missed} broken rules were not seen as {LIST} says");
    }
    Ok(())
}

/// Breaks one rule, runs its test, and mends it again.
fn play(root: &Path, place: &Path, entry: &Broken) -> anyhow::Result<(Verdict, Vec<String>)> {
    let path = place.join("source").join(&entry.file);
    let whole = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let broken = replace_once(&whole, entry)?;
    std::fs::write(&path, broken).with_context(|| format!("write {}", path.display()))?;
    let outcome = test(root, place, entry);
    std::fs::write(&path, whole).with_context(|| format!("write {}", path.display()))?;
    let (ended, output) = outcome?;
    Ok((judge(entry, ended, &output), output))
}

fn replace_once(whole: &str, entry: &Broken) -> anyhow::Result<String> {
    let times = whole.matches(&entry.find).count();
    ensure!(
        times == 1,
        "{LIST}: what rule {} looks for stands {times} times in {}, not once:\n{}",
        entry.rule,
        entry.file.display(),
        entry.find
    );
    Ok(whole.replacen(&entry.find, &entry.replace, 1))
}

fn judge(entry: &Broken, ended: bool, output: &[String]) -> Verdict {
    let has = |text: &str| output.iter().any(|line| line.contains(text));
    if !ended {
        Verdict::Hung
    } else if has(&format!("test {} ... ok", entry.test.2)) {
        Verdict::Missed
    } else if !has(&format!("test {} ... FAILED", entry.test.2)) {
        Verdict::NotRun
    } else if has(&entry.says) {
        Verdict::Seen
    } else {
        Verdict::SaidOtherwise
    }
}

/// `cargo test` of an entry's target in the copy.
fn cargo_test(root: &Path, place: &Path, entry: &Broken) -> Command {
    let (package, target, _) = &entry.test;
    let libtorch =
        std::env::var_os("LIBTORCH").map_or(root.join("third_party/libtorch/torch"), PathBuf::from);
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(place.join("source"))
        .env("CARGO_TARGET_DIR", place.join("target"))
        .env("LIBTORCH", libtorch)
        .args(["test", "--locked", "--package", package]);
    match target.as_str() {
        "lib" => command.arg("--lib"),
        file => command.args(["--test", file]),
    };
    command
}

/// Builds all that is whole, so that each deadline is for what is broken alone.
fn build(root: &Path, place: &Path, list: &[Broken]) -> anyhow::Result<()> {
    let mut targets: Vec<_> = list.iter().collect();
    targets.sort_by_key(|entry| (&entry.test.0, &entry.test.1));
    targets.dedup_by_key(|entry| (entry.test.0.clone(), entry.test.1.clone()));
    for entry in targets {
        let status = cargo_test(root, place, entry)
            .args(["--quiet", "--no-run"])
            .status()
            .context("start cargo")?;
        ensure!(status.success(), "build the tests of {}: {status}", entry.test.0);
    }
    Ok(())
}

/// Runs an entry's test; whether it ended in time, and its output.
fn test(root: &Path, place: &Path, entry: &Broken) -> anyhow::Result<(bool, Vec<String>)> {
    let name = &entry.test.2;
    let (reader, writer) = std::io::pipe().context("make a pipe")?;
    let mut command = cargo_test(root, place, entry);
    command
        .args(["--", "--exact", name])
        .stdin(Stdio::null())
        .stdout(writer.try_clone().context("make a pipe")?)
        .stderr(writer)
        .process_group(0);
    let child = Group(command.spawn().context("start cargo")?);
    drop(command);
    let (sender, lines) = sync_channel(64);
    std::thread::spawn(move || {
        for line in BufReader::new(reader).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    let deadline = Instant::now() + DEADLINE;
    let mut output = Vec::new();
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => output.push(line),
            Err(RecvTimeoutError::Timeout) => return Ok((false, output)),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    drop(child);
    Ok((true, output))
}

/// A process and its children, which end with it.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.0.id())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
            && matches!(self.0.try_wait(), Ok(None))
        {
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// Brings the copy to what git knows of here; what is equal keeps its time, so that little is built anew.
fn copy_sources(root: &Path, copy: &Path) -> anyhow::Result<()> {
    let listed = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("start git")?;
    ensure!(
        listed.status.success(),
        "git ls-files: {}",
        String::from_utf8_lossy(&listed.stderr)
    );
    let names = String::from_utf8(listed.stdout).context("read file names")?;
    for name in names.split_terminator('\0') {
        let (from, to) = (root.join(name), copy.join(name));
        // A link, a folder, or a file that was deleted and is still in the index.
        if !from.is_file() {
            continue;
        }
        let content = std::fs::read(&from).with_context(|| format!("read {}", from.display()))?;
        if std::fs::read(&to).is_ok_and(|there| there == content) {
            continue;
        }
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        std::fs::write(&to, content).with_context(|| format!("write {}", to.display()))?;
    }
    Ok(())
}

/// Starts from the dependencies that are built already.
fn share_dependencies(root: &Path, place: &Path) -> anyhow::Result<()> {
    let (from, to) = (root.join("target/debug"), place.join("target"));
    if to.exists() || !from.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(&to).with_context(|| format!("create {}", to.display()))?;
    let status = Command::new("cp")
        .args(["-a", "--reflink=auto"])
        .args([&from, &to])
        .status()
        .context("start cp")?;
    ensure!(status.success(), "copy {}: {status}", from.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Broken {
        Broken {
            rule: "I9".into(),
            broken: "nothing".into(),
            file: "a.rs".into(),
            find: "one".into(),
            replace: "two".into(),
            test: ("package".into(), "lib".into(), "a::b".into()),
            says: "left == right".into(),
        }
    }

    /// The invariants of training that `tests/README.md` lists, such as I1.
    fn listed(index: &str) -> Vec<&str> {
        let rules = index
            .lines()
            .filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
        rules
            .filter(|rule| {
                let mut letters = rule.chars();
                letters.next().is_some_and(|first| first.is_ascii_uppercase())
                    && letters.next().is_some_and(|second| second.is_ascii_digit())
                    && letters.next().is_none()
            })
            .collect()
    }

    #[test]
    fn every_invariant_of_the_index_is_broken_and_what_is_looked_for_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
        let list: Vec<Broken> = serde_saphyr::from_str(&read(LIST)).unwrap();
        let index = read("tests/README.md");
        let rules = listed(&index);
        assert!(rules.len() >= 12, "{rules:?}");
        for rule in rules {
            assert!(
                list.iter().any(|entry| entry.rule == rule),
                "{rule} is never broken"
            );
        }
        for entry in &list {
            replace_once(&read(entry.file.to_str().unwrap()), entry).unwrap();
            let name = entry.test.2.rsplit("::").next().unwrap();
            assert!(index.contains(&format!("`{name}`")), "{name} is not in the index");
        }
    }

    #[test]
    fn what_is_looked_for_must_stand_exactly_once() {
        assert_eq!(replace_once("a one b", &entry()).unwrap(), "a two b");
        for text in ["a b", "one one"] {
            let error = replace_once(text, &entry()).unwrap_err().to_string();
            assert!(error.contains("I9") && error.contains("a.rs"), "{error}");
        }
    }

    #[test]
    fn only_a_failure_by_the_own_assertion_counts_as_seen() {
        let verdict = |ended, lines: &[&str]| {
            let lines: Vec<String> = lines.iter().map(|&line| line.to_owned()).collect();
            judge(&entry(), ended, &lines)
        };
        let failed = "test a::b ... FAILED";
        assert_eq!(
            verdict(true, &[failed, "assertion `left == right` failed"]),
            Verdict::Seen
        );
        assert_eq!(verdict(true, &[failed, "no such file"]), Verdict::SaidOtherwise);
        assert_eq!(verdict(true, &["test a::b ... ok"]), Verdict::Missed);
        assert_eq!(verdict(true, &["error: could not compile"]), Verdict::NotRun);
        assert_eq!(verdict(false, &[failed, "left == right"]), Verdict::Hung);
    }
}
