//! Reads typed fields out of a JSON object and names the field whenever its value does not fit.

use super::ResolveError;
use serde_json::Value;

/// An object of the specification, with the path that leads to it. An absent or null object reads as
/// one without fields, so that defaults fill it.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    value: Option<&'a Value>,
    parents: Option<&'a Fields<'a>>,
    name: &'a str,
}

impl<'a> Fields<'a> {
    /// The root object, called `name` in messages.
    pub(super) fn root(name: &'a str, value: &'a Value) -> Fields<'a> {
        Fields {
            value: Some(value),
            parents: None,
            name,
        }
    }

    fn path(&self) -> String {
        self.parents
            .map_or_else(|| self.name.to_owned(), |p| format!("{}.{}", p.path(), self.name))
    }

    /// An error at field `name` of this object.
    pub(super) fn error(&self, name: &str, problem: impl Into<String>) -> ResolveError {
        ResolveError {
            path: format!("{}.{name}", self.path()),
            problem: problem.into(),
        }
    }

    /// The raw value of field `name`; None when absent or null.
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.value?.get(name).filter(|v| !v.is_null())
    }

    /// The object in field `name`; one without fields when absent.
    pub(super) fn object(&'a self, name: &'a str) -> Result<Fields<'a>, ResolveError> {
        let value = self.get(name);
        match value {
            Some(v) if !v.is_object() => Err(self.error(name, format!("{v} is not an object"))),
            _ => Ok(Fields {
                value,
                parents: Some(self),
                name,
            }),
        }
    }

    /// Whether the object itself is there.
    pub(super) fn is_present(&self) -> bool {
        self.value.is_some()
    }

    /// An integer of at least `min`.
    pub(super) fn integer(&self, name: &str, min: u64) -> Result<Option<u64>, ResolveError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        // YAML may hand an integer over as 256.0.
        let whole = value.as_u64().or_else(|| {
            value
                .as_f64()
                .filter(|f| f.fract() == 0.0 && (0.0..9e15).contains(f))
                .map(|f| f as u64)
        });
        match whole {
            Some(n) if n >= min && i64::try_from(n).is_ok() => Ok(Some(n)),
            _ => Err(self.error(name, format!("{value} is not an integer of at least {min}"))),
        }
    }

    /// An integer of at least `min` that fits 32 bits.
    pub(super) fn integer32(&self, name: &str, min: u64) -> Result<Option<u32>, ResolveError> {
        self.integer(name, min)?
            .map(|n| {
                u32::try_from(n)
                    .ok()
                    .filter(|n| i32::try_from(*n).is_ok())
                    .ok_or_else(|| self.error(name, format!("{n} is larger than {}", i32::MAX)))
            })
            .transpose()
    }

    /// A finite number for which `fits`, described by `wanted`.
    pub(super) fn number(
        &self,
        name: &str,
        fits: impl Fn(f64) -> bool,
        wanted: &str,
    ) -> Result<Option<f64>, ResolveError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(f) if f.is_finite() && fits(f) => Ok(Some(f)),
            _ => Err(self.error(name, format!("{value} is not {wanted}"))),
        }
    }

    /// A number that is not negative.
    pub(super) fn not_negative(&self, name: &str) -> Result<Option<f64>, ResolveError> {
        self.number(name, |f| f >= 0.0, "a number of at least 0")
    }

    /// A number in [0, 1).
    pub(super) fn below_one(&self, name: &str) -> Result<Option<f64>, ResolveError> {
        self.number(name, |f| (0.0..1.0).contains(&f), "a number in [0, 1)")
    }

    /// A boolean.
    pub(super) fn boolean(&self, name: &str) -> Result<Option<bool>, ResolveError> {
        self.get(name)
            .map(|v| {
                v.as_bool()
                    .ok_or_else(|| self.error(name, format!("{v} is neither true nor false")))
            })
            .transpose()
    }

    /// A text.
    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, ResolveError> {
        self.get(name)
            .map(|v| {
                v.as_str()
                    .ok_or_else(|| self.error(name, format!("{v} is not a string")))
            })
            .transpose()
    }

    /// A list of texts.
    pub(super) fn texts(&self, name: &str) -> Result<Option<Vec<String>>, ResolveError> {
        self.get(name)
            .map(|v| {
                v.as_array()
                    .and_then(|all| all.iter().map(|t| t.as_str().map(str::to_owned)).collect())
                    .ok_or_else(|| self.error(name, format!("{v} is not a list of strings")))
            })
            .transpose()
    }

    /// One of `names`, by its text.
    pub(super) fn one_of<T: Copy>(&self, name: &str, names: &[(&str, T)]) -> Result<Option<T>, ResolveError> {
        let Some(given) = self.text(name)? else {
            return Ok(None);
        };
        names
            .iter()
            .find(|(n, _)| *n == given)
            .map(|(_, v)| Some(*v))
            .ok_or_else(|| {
                let known: Vec<&str> = names.iter().map(|(n, _)| *n).collect();
                self.error(name, format!("{given:?} is not one of {}", known.join(", ")))
            })
    }

    /// The value of a field that must be there.
    pub(super) fn required<T>(&self, name: &str, value: Option<T>) -> Result<T, ResolveError> {
        value.ok_or_else(|| self.error(name, "is missing"))
    }
}
