//! What a file system may refuse for a moment (a server that is away, no descriptors left) is tried again, a
//! bounded number of times.

use crate::step::{Fatal, FatalKind};
use std::time::Duration;

/// How often something is tried that can also be done later: for a few seconds, with the default first pause.
pub(crate) const BRIEFLY: u32 = 5;
/// How often something is tried without which this process cannot go on: for about two minutes, less than the
/// others of its group wait for it ([`super::Patience::operation`]).
pub(crate) const PATIENTLY: u32 = 14;
/// Pauses are doubled so often; later ones are as long.
const DOUBLINGS: u32 = 6;

/// Does `work` until it succeeds or fails for another reason than a platform fault, at most `tries` times. The
/// pause after the first failure is `pause`; each one after it is twice as long, up to a limit.
///
/// # Errors
/// The last failure.
pub(crate) fn try_again<T>(
    tries: u32,
    pause: Duration,
    mut work: impl FnMut() -> Result<T, Fatal>,
) -> Result<T, Fatal> {
    for number in 1..tries {
        match work() {
            Err(fatal) if fatal.kind == FatalKind::Process => {
                tracing::warn!(number, "trying again: {fatal}");
                std::thread::sleep(pause * (1 << (number - 1).min(DOUBLINGS)));
            }
            ended => return ended,
        }
    }
    work().map_err(|fatal| {
        if fatal.kind == FatalKind::Process {
            Fatal::process(format!("{fatal}; it was tried {tries} times"))
        } else {
            fatal
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platform_faults_are_tried_a_bounded_number_of_times_and_others_never() {
        let mut calls = 0;
        let mut failing = |times: u32, error: fn(&'static str) -> Fatal| {
            calls = 0;
            let result = try_again(BRIEFLY, Duration::ZERO, || {
                calls += 1;
                if calls > times {
                    Ok(calls)
                } else {
                    Err(error("no"))
                }
            });
            (result.map_err(|fatal| fatal.message), calls)
        };
        assert_eq!(failing(0, Fatal::process), (Ok(1), 1));
        assert_eq!(failing(BRIEFLY - 1, Fatal::process), (Ok(BRIEFLY), BRIEFLY));
        let (result, calls) = failing(BRIEFLY, Fatal::process);
        assert!(result.unwrap_err().contains("tried 5 times"));
        assert_eq!(calls, BRIEFLY);
        assert_eq!(failing(1, Fatal::user), (Err("no".to_owned()), 1));
    }
}
