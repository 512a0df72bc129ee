//! One error for everything that libtorch can answer.

/// libtorch refused an operation, or a tensor was not what an operation needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct TorchError {
    message: String,
}

impl TorchError {
    /// An error with this text, cut at its first line: libtorch appends a C++ backtrace to its own.
    #[must_use]
    pub fn new(message: impl AsRef<str>) -> Self {
        let message = message.as_ref();
        Self {
            message: message.lines().next().unwrap_or_default().trim_end().to_owned(),
        }
    }

    /// The same error, saying what was being done.
    #[must_use]
    pub fn context(self, what: impl std::fmt::Display) -> Self {
        Self::new(format!("{what}: {}", self.message))
    }
}

impl From<tch::TchError> for TorchError {
    fn from(error: tch::TchError) -> Self {
        let text = error.to_string();
        Self::new(text.strip_prefix("Internal torch error: ").unwrap_or(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backtrace_of_a_c_plus_plus_error_is_left_out() {
        let error = tch::Tensor::from_slice(&[1.0]).f_reshape([2]).unwrap_err();
        assert!(
            error.to_string().lines().count() > 1,
            "libtorch no longer appends one"
        );
        let ours = TorchError::from(error).context("reshape");
        assert_eq!(ours.to_string().lines().count(), 1);
        assert!(ours.to_string().starts_with("reshape: "), "{ours}");
    }
}
